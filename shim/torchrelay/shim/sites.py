"""Every loop that was rewritten, by the key that its instrumented code names it with."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType


@dataclass(frozen=True)
class Site:
    """`line` to `end_line` is the whole statement, with its `else`; `body_start` the first line of its body.

    `parent` is the key of the nearest rewritten loop around it in the same function.
    """

    key: str
    file: str
    line: int
    end_line: int
    body_start: int
    kind: str
    parent: str | None
    function: str


SITES: dict[str, Site] = {}
INSTRUMENTED_FILES: set[str] = set()
LEFT_ALONE: dict[str, str] = {}
"""Files of the user's that could not be rewritten, with the reason: for the protection report."""

_PLAIN: dict[str, CodeType] = {}


def register(file: str, sites: tuple[Site, ...], plain: CodeType) -> None:
    """Makes the sites of one instrumented file known. `plain` is the module's code as Python compiles it."""
    SITES.update((site.key, site) for site in sites)
    INSTRUMENTED_FILES.add(file)
    _PLAIN[file] = plain


def plain_code(code: CodeType) -> CodeType | None:
    """The code of the same function without our calls, or None if `code` is not instrumented.

    Both have the same local, cell and free variables: a compiler that traces bytecode can be given this one.
    """
    module = _PLAIN.get(code.co_filename)
    if module is None:
        return None
    to_visit = [module]
    while to_visit:
        candidate = to_visit.pop()
        if (candidate.co_name, candidate.co_firstlineno, candidate.co_varnames, candidate.co_freevars) == (
            code.co_name,
            code.co_firstlineno,
            code.co_varnames,
            code.co_freevars,
        ):
            return candidate
        to_visit.extend(c for c in candidate.co_consts if isinstance(c, CodeType))
    return None
