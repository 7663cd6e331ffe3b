"""Count the hooks of modules, tell whether the script has registered or removed some, put them back as they were, make them again.

Leans on `torch.utils.hooks.RemovableHandle.next_id`, the number that the next hook of any kind gets, under which its owner keeps
it. Seen on torch 2.13.0; where it is missing, nothing is known of hooks.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

NAMES = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)
_NOTES = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
"""What torch notes of some hooks, by their numbers."""


def next_hook() -> int:
    return int(getattr(RemovableHandle, "next_id", 0))


def hook_counts(named: Sequence[tuple[str, torch.nn.Module]]) -> dict[tuple[str, str], int]:
    """Return how many hooks there are, by the module's path and the name of the attribute that keeps them.

    Torch's own hooks, which `fully_shard` makes in the first forward, come by themselves.
    """
    return {
        (name, kept): count
        for name, module in named
        for kept in NAMES
        if (hooks := module.__dict__.get(kept)) and (count := sum(not _is_torchs(hook) for hook in hooks.values()))
    }


def kept(module: torch.nn.Module, name: str) -> list[tuple[Any, tuple[str, ...]]]:
    """Return the hooks that an attribute of a module keeps, but for torch's own, each with what torch notes of it."""
    own: dict[str, Any] = module.__dict__
    hooks = own.get(name) or {}
    notes = [note for note in _NOTES if own.get(note)]
    return [(hook, tuple(n for n in notes if key in own[n])) for key, hook in hooks.items() if not _is_torchs(hook)]


def put_in_order(module: torch.nn.Module, name: str, wanted: Sequence[int | tuple[Any, Sequence[str]]]) -> None:
    """Give an attribute of a module these hooks in this order; torch's own stay in front.

    `wanted`: the place of a hook that `kept` has told of, or another hook with what torch notes of it.
    """
    own: dict[str, Any] = module.__dict__
    hooks = own[name]
    here = [(key, hook) for key, hook in hooks.items() if not _is_torchs(hook)]
    stay = {here[place][0] for place in wanted if isinstance(place, int)}
    for key, _ in here:
        del hooks[key]
        if key not in stay:
            for note in _NOTES:
                own.get(note, {}).pop(key, None)
    for each in wanted:
        if isinstance(each, int):
            key, hook = here[each]
            hooks[key] = hook
            continue
        hook, notes = each
        key = RemovableHandle(hooks).id
        hooks[key] = hook
        for note in notes:
            own[note][key] = True


class MadeHooks:
    """The hooks that were made in this process as a lost rank's training had registered them."""

    def __init__(self) -> None:
        self._is_new = False
        self._made: dict[int, Any] = {}
        self._of_set_up: dict[tuple[int, str], tuple[torch.nn.Module, list[tuple[Any, tuple[str, ...]]]]] = {}
        """What was there before, by the module's id and the attribute; the module is kept, so that its id stays its own."""

    def __contains__(self, hook: Any) -> bool:
        return id(hook) in self._made

    def of_set_up(self, module: torch.nn.Module, name: str, count: int) -> list[tuple[Any, tuple[str, ...]]]:
        """Return the hooks that set-up has registered here, as `kept`, whatever was put in their place since.

        `count`: how many the lost rank's set-up had.
        """
        _, known = self._of_set_up.get((id(module), name), (module, None))
        return kept(module, name) if known is None or len(known) != count else known

    def loop_is_over(self) -> None:
        """Count what there is as registered by the set-up of the next outermost loop."""
        self._made = {}
        self._of_set_up = {}

    def anew(self) -> MadeHooks:
        """Return those of the outermost loop that begins: none, but where this process has just entered it."""
        if not self._is_new:
            return MadeHooks()
        self._is_new = False
        return self

    def put(
        self,
        module: torch.nn.Module,
        name: str,
        own: list[tuple[Any, tuple[str, ...]]],
        wanted: Sequence[int | tuple[Any, Sequence[str]]],
    ) -> None:
        """Give an attribute of a module these hooks.

        `own`: as of `of_set_up`. `wanted`: as of `put_in_order`, with places in `own`.
        """
        self._is_new = True
        self._of_set_up[id(module), name] = module, own
        here = [hook for hook, _ in kept(module, name)]
        places = {id(hook): place for place, hook in enumerate(here)}
        order = [own[each] if isinstance(each, int) else each for each in wanted]
        self._made.update((id(each[0]), each[0]) for each in wanted if not isinstance(each, int))
        put_in_order(module, name, [places.get(id(hook), (hook, notes)) for hook, notes in order])


def is_full(module: torch.nn.Module) -> bool | None:
    """Return whether the hooks of a module's backward pass are of torch's newer kind; None where none were registered."""
    found: bool | None = module.__dict__.get("_is_full_backward_hook")
    return found


def set_full(module: torch.nn.Module, value: bool | None) -> None:
    module.__dict__["_is_full_backward_hook"] = value


def own_spaces(module: torch.nn.Module) -> list[Any]:
    """Return the dictionaries in which a module keeps its hooks."""
    return [space for kept in NAMES if (space := module.__dict__.get(kept)) is not None]


def spaces(named: Sequence[tuple[str, torch.nn.Module]]) -> dict[int, tuple[str, str]]:
    """Return where modules keep hooks: the module's path and the attribute, by the id of what keeps them."""
    found = ((name, kept, module.__dict__.get(kept)) for name, module in named for kept in NAMES)
    return {id(space): (name, kept) for name, kept, space in found if space is not None}


def place_of(handle: RemovableHandle, among: Mapping[int, tuple[str, str]]) -> tuple[str, str, int] | None:
    """Return where the hook of a handle is: its module's path, the attribute, and as which one there. `among`: as of `spaces`.

    None if it is in none of these.
    """
    own: Any = handle.hooks_dict_ref()
    found = among.get(id(own))
    if own is None or found is None or handle.id not in own:
        return None
    return (*found, [*own].index(handle.id))


def handle_of(module: torch.nn.Module, name: str, place: int) -> RemovableHandle | None:
    """Return a handle of a hook, by what `place_of` has told; None where the module has no such hook."""
    own: dict[str, Any] = module.__dict__
    hooks = own.get(name) or {}
    if place >= len(hooks):
        return None
    key = [*hooks][place]
    notes = [own[note] for note in _NOTES if note in own]
    made = RemovableHandle.__new__(RemovableHandle)
    made.__setstate__((hooks, key, notes))
    return made


def _is_torchs(hook: Any) -> bool:
    hook = getattr(hook, "hook", hook)
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(getattr(hook, "__func__", hook), "__module__", "")).startswith("torch.")


class Hooks:
    """The hooks of these modules, as they were at the latest look."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        spaces = (module.__dict__.get(name) for name in (*NAMES, *_NOTES) for module in modules)
        self._spaces: list[dict[Any, Any]] = [space for space in spaces if isinstance(space, dict)]
        self._look()

    def _look(self) -> None:
        self._next = next_hook()
        self._lengths = [*map(len, self._spaces)]
        self._then = {place: dict(space) for place, space in enumerate(self._spaces) if space}

    def are_same(self) -> bool:
        """Return whether the script has neither registered a hook since, nor removed one. Torch's own do not count."""
        pairs = [(self._spaces[place], then) for place, then in self._then.items()]
        if self._next == next_hook() and all(len(now) == len(then) for now, then in pairs):
            return True
        if [*map(len, self._spaces)] != self._lengths or any([*now] != [*then] for now, then in pairs):
            if any(_of_script(now) != _of_script(self._then.get(place, {})) for place, now in enumerate(self._spaces)):
                return False
            self._look()
        self._next = next_hook()
        return True

    def put_back(self, number: int) -> None:
        """Remove hooks with this number or a later one, and register again those that were removed since."""
        for place, space in enumerate(self._spaces):
            for key in [key for key in space if isinstance(key, int) and key >= number]:
                del space[key]
            then = {
                key: hook
                for key, hook in self._then.get(place, {}).items()
                if not (isinstance(key, int) and key >= number)
            }
            if any(key not in space for key in then):
                now = {**then, **space}
                space.clear()
                space.update(now)


def _of_script(hooks: dict[Any, Any]) -> list[tuple[Any, int]]:
    return [(key, id(hook)) for key, hook in hooks.items() if hook is not True and not _is_torchs(hook)]
