"""Read and write what `functools.lru_cache` keeps of the calls of a function.

Leans on the order in which the garbage collector is told what such a cache refers to: its type, key, result and type of each link
of one with a size, the oldest first, the dictionary, and the function. Where it is another one, nothing is known of the cache.
One without a size is filled through its dictionary. One with a size is filled by calls: meanwhile its function returns what it is
given, as it has other code. Seen on CPython 3.11.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

CallCache: type = type(functools.lru_cache(lambda: None))
_CALLED = "result"
"""Stands in code for what is called there."""
_BY_NAME = NotImplemented
"""Stands in a key between arguments and those by name, where Python has an object of its own."""


def function_of(cache: Any) -> FunctionType | None:
    """Return the function of Python that is called where nothing is kept; None of another callable."""
    found = vars(cache).get("__wrapped__")
    function = found.__func__ if type(found) is MethodType else found
    return function if type(function) is FunctionType else None


def counts(cache: Any) -> tuple[int, ...]:
    """Return what tells whether calls have changed the cache: misses and entries, and hits where these decide what is dropped."""
    hits, misses, most, size = CallCache.cache_info(cache)  # type: ignore[attr-defined]
    return (misses, size, hits) if most is not None and size == most else (misses, size)


def entries(cache: Any) -> dict[Any, Any] | None:
    """Return the results by what is kept as a key, the oldest first; None where that cannot be told."""
    found = _parts(cache)
    if found is None:
        return None
    links, kept = found
    size = CallCache.cache_info(cache).currsize  # type: ignore[attr-defined]
    if size != len(kept):
        return None
    if not links:
        return {_told(key): value for key, value in kept.items()} if _has_no_size(cache) or not kept else None
    width = len(links) // size
    if width not in (2, 3) or width * size != len(links):
        return None
    made = dict(zip(links[::width], links[1::width]))
    return {_told(key): value for key, value in made.items()} if made.keys() == kept.keys() else None


def put(cache: Any, wanted: Mapping[Any, Any]) -> bool:
    """Let a cache have these results, the oldest first. Return whether it could be done: else it is empty."""
    found = _parts(cache)
    CallCache.cache_clear(cache)  # type: ignore[attr-defined]
    function = function_of(cache)
    if found is None or function is None:
        return False
    if _has_no_size(cache):
        found[1].update((_own(key), value) for key, value in wanted.items())
        return True
    own = function.__code__
    results = iter([*wanted.values()])
    has_types = _has_types(cache)
    calls = [_call(_without_types(key) if has_types else key) for key in wanted]
    function.__code__ = _giving(own, results.__next__)
    try:
        for args, named in calls:
            CallCache.__call__(cache, *args, **named)
    except Exception:  # noqa: BLE001 - a key that leads to no call, or one whose class will not be compared
        CallCache.cache_clear(cache)  # type: ignore[attr-defined]
        return False
    finally:
        function.__code__ = own
    return True


def _has_no_size(cache: Any) -> bool:
    return CallCache.cache_info(cache).maxsize is None  # type: ignore[attr-defined]


def _has_types(cache: Any) -> bool:
    """Return whether a key ends with the types of its arguments (`typed=True`), as `functools` has noted at the cache."""
    noted = vars(cache).get("cache_parameters")
    return type(noted) is FunctionType and noted.__module__ == functools.__name__ and bool(noted()["typed"])


def _parts(cache: Any) -> tuple[list[Any], dict[Any, Any]] | None:
    function = vars(cache).get("__wrapped__")
    found = gc.get_referents(cache)
    place = next((n for n, part in enumerate(found) if part is function), 0)
    if place < 2 or type(found[place - 1]) is not dict or found[0] is not type(cache):
        return None
    return found[1 : place - 1], found[place - 1]


def _mark() -> Any:
    """Return what Python has in a key between arguments and those by name."""

    @functools.cache
    def given(**named: Any) -> None: ...

    given(name=0)
    found = _parts(given)
    return next(iter(found[1]))[0] if found is not None and found[1] else _BY_NAME


_PYTHONS_MARK = _mark()


def _told(key: Any) -> Any:
    return tuple(_BY_NAME if part is _PYTHONS_MARK else part for part in key) if type(key) is tuple else key


def _own(key: Any) -> Any:
    return tuple(_PYTHONS_MARK if part is _BY_NAME else part for part in key) if type(key) is tuple else key


def _without_types(key: tuple[Any, ...]) -> tuple[Any, ...]:
    place = next((n for n, part in enumerate(key) if part is _BY_NAME), None)
    if place is None:
        return key[: len(key) // 2]
    named = (len(key) - 2 * place - 1) // 3
    return key[: place + 1 + 2 * named]


def _call(key: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if type(key) is not tuple:
        return (key,), {}
    place = next((n for n, part in enumerate(key) if part is _BY_NAME), len(key))
    named = key[place + 1 :]
    return key[:place], dict(zip(named[::2], named[1::2]))


def _giving(own: CodeType, give: Any) -> CodeType:
    """Return code that can stand for `own` in a function with its variables, and returns what `give` does."""
    code = _template.__code__
    consts = tuple(give if const == _CALLED else const for const in code.co_consts)
    return code.replace(co_consts=consts, co_freevars=own.co_freevars, co_name=own.co_name)


def _template(*args: Any, **named: Any) -> Any:
    return "result".__call__()  # type: ignore[operator]
