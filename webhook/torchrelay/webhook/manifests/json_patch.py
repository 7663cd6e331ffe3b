"""The JSON patch (RFC 6902) that makes one document of another."""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]


def difference(old: Any, new: Any, path: str = "") -> list[Operation]:
    """Return the operations that turn `old` into `new`.

    A list whose elements keep their places is patched element by element, and new elements are appended. Any other list is
    replaced as a whole.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(old, new, path)
    if isinstance(old, list) and isinstance(new, list) and len(new) >= len(old):
        return _of_lists(old, new, path)
    if old == new and type(old) is type(new):  # to Python, true is equal to 1
        return []
    return [{"op": "replace", "path": path, "value": new}]


def _of_objects(old: dict[str, Any], new: dict[str, Any], path: str) -> list[Operation]:
    operations: list[Operation] = [{"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in old if key not in new]
    for key, value in new.items():
        below = f"{path}/{_escaped(key)}"
        if key in old:
            operations += difference(old[key], value, below)
        else:
            operations.append({"op": "add", "path": below, "value": value})
    return operations


def _of_lists(old: list[Any], new: list[Any], path: str) -> list[Operation]:
    named = [_name(a) == _name(b) for a, b in zip(old, new)]
    if not all(named):
        return [{"op": "replace", "path": path, "value": new}]
    operations: list[Operation] = []
    for i, (a, b) in enumerate(zip(old, new)):
        operations += difference(a, b, f"{path}/{i}")
    return operations + [{"op": "add", "path": f"{path}/-", "value": value} for value in new[len(old) :]]


def _name(element: Any) -> Any:
    return element.get("name", element) if isinstance(element, dict) else element


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
