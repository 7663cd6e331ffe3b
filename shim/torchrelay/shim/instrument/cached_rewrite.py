"""Rewrites a module, or takes what rewriting it has made before."""

from __future__ import annotations

import marshal
from dataclasses import astuple, dataclass
from types import CodeType

from torchrelay.shim.instrument.code_cache import CodeCache
from torchrelay.shim.instrument.rewrite import instrument
from torchrelay.shim.script.sites import Site


@dataclass(frozen=True)
class Rewritten:
    """With neither `sites` nor `next_calls`, nothing in `code` is ours."""

    code: CodeType
    sites: tuple[Site, ...]
    next_calls: int


def rewrite(
    cache: CodeCache, source: bytes, path: str, *, loops: bool, package: bool, generators: frozenset[str]
) -> Rewritten:
    """Options and errors are those of `instrument`."""
    key = cache.key(repr((path, loops, package, sorted(generators))).encode() + source)
    kept = cache.load(key)
    if kept is not None:
        code, sites, next_calls = marshal.loads(kept)
        return Rewritten(code, tuple(Site(*fields) for fields in sites), next_calls)
    made = instrument(source, path, loops=loops, package=package, generators=generators)
    cache.store(key, marshal.dumps((made.code, [astuple(site) for site in made.sites], made.next_calls)))
    return Rewritten(made.code, made.sites, made.next_calls)
