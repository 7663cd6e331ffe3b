"""Exchange the communicator inside a live ProcessGroup.

`ProcessGroup._register_backend` binds a backend to a device under a backend type that was not used in that group before, and
collectives go to the backend that the tensor's device is bound to. The group's default type stays: torch takes the group's name
from it (`_get_backend_name`, for each new DistributedDataParallel, and for each forward of SyncBatchNorm), and knows none for our
types. Backend types are 8-bit numbers: where old backends cannot be let go of (`old_backends.py`), a process can take part in about
240 migrations. Seen on torch 2.13.0 and 2.14.1 (`BackendType` accepts any number).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError

_FIRST_TYPE = 10
_LAST_TYPE = 250
_FAKE = "FAKE"

Unconnected = Callable[[str, int, int], Any]
"""Makes a communicator from a backend's name, and its place and size in the group."""


def check_supported() -> None:
    """Raise UnsupportedError where this torch lacks what the exchange needs."""
    missing = [
        name
        for owner, name in (
            (dist.ProcessGroup, "_register_backend"),
            (dist.ProcessGroup, "_set_default_backend"),
            (dist.ProcessGroup, "BackendType"),
            (c10d, "_world"),
            (c10d, "BackendConfig"),
            (c10d, "_new_process_group_helper"),
        )
        if not hasattr(owner, name)
    ]
    if missing:
        raise UnsupportedError(f"torch {torch.__version__} lacks {', '.join(missing)}")


def groups() -> list[Any]:
    """Return the live process groups in which this rank communicates with others, in the order of their creation.

    For any thread: the script may make and destroy some meanwhile. A group that the script made on the backend `fake` communicates
    with nobody: torchtitan has one for the dimension that says which data a rank reads.
    """
    return [
        pg for pg in list(c10d._world.pg_map) if _members(pg) > 1 and {*_configured(pg).values()} != {_FAKE.lower()}
    ]


def alone() -> list[Any]:
    """Return the live process groups that this rank is the only member of. Their communicators stay over generations."""
    return [pg for pg in list(c10d._world.pg_map) if _members(pg) == 1]


def _members(group: Any) -> int:
    return len(c10d._world.pg_group_ranks.get(group, ()))


def group_ranks(group: Any) -> list[int]:
    """Return the global ranks of the group, in group order."""
    ranks = c10d._world.pg_group_ranks[group]
    return sorted(ranks, key=lambda r: ranks[r])


def name_of(group: Any) -> str:
    """Return the group's name, which is the same on all ranks. Rank lists repeat within a mesh."""
    return str(c10d._world.pg_names[group])


def named_or_default(group: Any) -> tuple[str, list[int]]:
    """Return name and global ranks of a group. None stands for the default group."""
    found = group if group is not None else c10d._get_default_group()
    return name_of(found), group_ranks(found)


def name_if_known(group: Any) -> str:
    """Return the group's name; empty for a group that was destroyed."""
    return str(c10d._world.pg_names.get(group, ""))


def find(name: str) -> Any:
    """Return the group of that name, or None."""
    return next((group for group, known in c10d._world.pg_names.items() if known == name), None)


def named(name: str) -> tuple[Any, list[int]]:
    """Return the group of that name, and its global ranks. Raises StateMismatchError where there is none."""
    group = find(name)
    if group is None:
        raise StateMismatchError(f"there is no process group {name!r} here")
    return group, group_ranks(group)


def size_of(name: str) -> int:
    """Return how many members the group of that name has; 0 where there is none."""
    return next((len(group_ranks(group)) for group, known in c10d._world.pg_names.items() if known == name), 0)


def declared_backend(group: Any) -> str:
    """Return what the script named, as `get_backend` says it: `undefined` where it left that to torch."""
    return str(c10d._world.pg_map[group][0])


def backend_name(group: Any) -> str:
    """Return the backend that serves all devices of the group, whatever the script named; else each device with its own."""
    names = set(_configured(group).values())
    return names.pop() if len(names) == 1 else str(c10d._world.pg_backend_config[group])


def backend_names(group: Any) -> dict[str, str]:
    """Return the name of the backend for each type of device that the group has a communicator for."""
    configured = _configured(group)
    return {device.type: configured[device.type] for device in device_types(group)}


def fake_for(backend: str | None) -> str:
    """Return the backend to ask torch for a group that communicates with no peer, and has the devices of a group on `backend`."""
    wanted = c10d.BackendConfig(dist.Backend(backend or dist.Backend.UNDEFINED))
    return ",".join(f"{device}:fake" for device in wanted.get_device_backend_map())


def _configured(group: Any) -> dict[str, str]:
    pairs = (pair.partition(":") for pair in str(c10d._world.pg_backend_config.get(group, "")).split(","))
    return {device: name for device, _, name in pairs}


def device_types(group: Any) -> list[torch.device]:
    return list(group._device_types)


def communicators(group: Any) -> dict[torch.device, Any]:
    """Return the group's present communicator for each of its devices; several devices may share one."""
    return {device: group._get_backend(device) for device in device_types(group)}


def default_timeout_s() -> float:
    """Return the timeout of the default process group's collectives; 0 where there is no such group."""
    world = dist.group.WORLD
    return 0.0 if world is None else timeout_of(world).total_seconds()


def timeout_of(group: Any) -> timedelta:
    """Return the timeout that collectives of the group have now."""
    return timeout_of_communicator(group._get_backend(device_types(group)[0]))


def called(communicator: Any) -> int:
    """Return how many collectives were called on the communicator; 0 where it does not say.

    Those within a graph of the device that is being captured count, too.
    """
    count = getattr(communicator, "_get_sequence_number_for_group", None)
    return 0 if count is None else int(count())


def timeout_of_communicator(communicator: Any) -> timedelta:
    options = getattr(communicator, "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else c10d.default_pg_timeout


def unused_number(used: Sequence[int]) -> int:
    """Return a number of a backend type that no group has a communicator under. Raises UnsupportedError when all are used up."""
    number = next((n for n in range(_FIRST_TYPE, _LAST_TYPE + 1) if n not in used), None)
    if number is None:
        raise UnsupportedError(
            f"this process has taken part in {len(used)} migrations; torch has no further backend types"
        )
    return number


def first_type(name: str) -> Any:
    """Return the type under which torch registers a group's first communicator of the backend of this name."""
    return dist.Backend.backend_type_map.get(name, dist.ProcessGroup.BackendType.CUSTOM)


def type_of(number: int) -> Any:
    return dist.ProcessGroup.BackendType(number)


def install(group: Any, made: Mapping[torch.device, tuple[Any, Any]], store: Any) -> None:
    """Make communicators those of the live group, under the group's name, which torch keeps in the backend.

    `made`: for each device the communicator, and the backend type to register it under.
    """
    description = group.group_desc
    for device, (communicator, backend_type) in made.items():
        group._register_backend(device, backend_type, communicator)
    group._set_group_name(name_of(group))
    group._set_group_desc(description)
    c10d._world.pg_map[group] = (declared_backend(group), store)


def reinstall(group: Any, types: Mapping[torch.device, Any], record: Any) -> None:
    """Put communicators back that were installed before, each under its type.

    torch takes the one that it has by that type. It compares its device with that of the given one, which it does not look at
    (2.13).
    """
    for device, backend_type in types.items():
        group._register_backend(device, backend_type, group._get_backend(device))
    c10d._world.pg_map[group] = record


def record_of(group: Any) -> Any:
    return c10d._world.pg_map[group]


_fake: list[Any] = []


@contextmanager
def fakes() -> Iterator[Any]:
    """Let groups be made that communicate with no peer. Yields the class of their stores.

    A plugin that torch knows costs every group of `cpu:gloo` its name: so torch knows this one within the context alone.
    """
    plugins = dist.Backend._plugins
    by_device = dist.Backend.default_device_backend_map
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if _FAKE in plugins and not _fake:
        _fake.append(plugins[_FAKE])
    plugins[_FAKE] = _fake[0]
    try:
        yield FakeStore
    finally:
        del plugins[_FAKE]
        for device in [device for device, name in by_device.items() if name == "fake"]:
            del by_device[device]


def init_fake(
    rank: int,
    world_size: int,
    backend: str | None,
    device: Any,
    original: Any,
    unconnected: Unconnected,
    store: Any = None,
) -> None:
    """Make a default group that communicates with no peer, for a joiner's set-up. It names itself as the real one would.

    `backend`, `device`: what the script asked for. `unconnected`: makes a communicator of the backend of a name, or None. `store`:
    what the script can ask for by itself; None: one that answers nothing.
    """
    with fakes() as fake_store:
        original(fake_for(backend), store=store or fake_store(), rank=rank, world_size=world_size)
    group = c10d._get_default_group()
    _name_as(group, dist.Backend(backend or dist.Backend.UNDEFINED), unconnected)
    if device is not None:
        group.bound_device_id = torch.device(device)


def _name_as(group: Any, backend: Any, unconnected: Unconnected) -> None:
    world = c10d._world
    world.pg_map[group] = (backend, world.pg_map[group][1])
    world.pg_backend_config[group] = str(c10d.BackendConfig(backend))
    name = _leading(group)
    namesake = unconnected(name, group.rank(), group.size())
    if namesake is not None:
        _take_name_of(group, namesake, first_type(name))


def _leading(group: Any) -> str:
    """Return the backend that torch names the group by."""
    names = list(_configured(group).values())
    return dist.Backend.NCCL if dist.Backend.NCCL in names else names[0]


def _take_name_of(group: Any, namesake: Any, kind: Any) -> None:
    """Make `namesake` the group's default backend, while its devices keep theirs: DDP's logger believes the default one's name.

    From torch 2.14 on the group says what its default backend says of rank and size, too.
    """
    for device in device_types(group):
        present = group._get_backend(device)
        group._register_backend(device, kind, namesake)
        group._register_backend(device, dist.ProcessGroup.BackendType.CUSTOM, present)
    group._set_default_backend(kind)


def asked_or_default(backend: str | None) -> str:
    """Return the backend of a further group: the default group's where the script asked for none."""
    return backend or declared_backend(c10d._get_default_group())


def name_if_member(group: Any, backend: str, device: Any, unconnected: Unconnected) -> None:
    """Name a further group as the real one would name itself, if this rank is a member of it."""
    if group in c10d._world.pg_map:
        _name_as(group, dist.Backend(backend), unconnected)
        if device is not None:
            group.bound_device_id = torch.device(device)


def named_so_far() -> int:
    """Return how many groups torch has numbered: the next one's name."""
    return int(c10d._world.group_count)


def name_from(number: int) -> None:
    """Let the next groups have the names that they have in a process that had numbered so many."""
    c10d._world.group_count = number


class GroupNames(NamedTuple):
    """The groups that this process has at one moment: torch's number for the next group, and the names of all."""

    next_number: int
    names: frozenset[str]


def group_names() -> GroupNames:
    return GroupNames(named_so_far(), frozenset(map(str, c10d._world.pg_names.values())))


def forget_later(than: GroupNames) -> None:
    """Destroy the groups that were made later: they will be made again, under the same names.

    Their communicators are broken. Raises StateMismatchError where a group of that time was destroyed meanwhile.
    """
    present = group_names()
    if present == than:
        return
    lacking = sorted(than.names - present.names)
    if lacking:
        raise StateMismatchError(f"process group {lacking[0]!r} was destroyed by a step that is to be done again")
    for name in present.names - than.names:
        c10d.destroy_process_group(find(name))
    name_from(than.next_number)


def described() -> tuple[tuple[Any, ...], ...]:
    """Return the live groups of this rank by name, each with its global ranks, and what it says of itself."""
    found = ((name_of(g), tuple(group_ranks(g)), declared_backend(g), str(g.group_desc)) for g in groups())
    return tuple(sorted(found))


def be_member_of(wanted: Sequence[tuple[Any, ...]], unconnected: Unconnected) -> None:
    """Make a joiner a member of the groups that the lost rank was in.

    It makes the groups that it has passed over, and destroys others. Raises StateMismatchError where a group of the same name
    differs.
    """
    own = {description[0]: description for description in described()}
    for name, ranks, backend, text in wanted:
        if name not in own:
            _make_fake(name, ranks, backend, text, unconnected)
        elif own[name][1] != tuple(ranks):
            raise StateMismatchError(f"process group {name!r} has ranks {ranks}, and here {own[name][1]}")
    for name in own.keys() - {description[0] for description in wanted}:
        c10d.destroy_process_group(named(name)[0])


def _make_fake(name: str, ranks: Sequence[int], backend: str, text: str, unconnected: Unconnected) -> None:
    members = list(ranks)
    default = c10d._get_default_group()
    with fakes():
        group, _ = c10d._new_process_group_helper(
            len(members),
            members.index(default.rank()),
            members,
            fake_for(backend),
            c10d._world.pg_map[default][1],
            group_name=name,  # type: ignore[arg-type]  # a str under a name of its own
            timeout=timeout_of(default),
            group_desc=text,
        )
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(members)}
    _name_as(group, dist.Backend(backend), unconnected)


_VAIN_TAG = 0x7E57


def receive_in_vain(peer: int) -> None:
    """Wait for a message that is never sent. Raises RuntimeError when the communicator is broken."""
    group = c10d._get_default_group()
    group.recv([torch.empty(1)], peer, _VAIN_TAG).wait()
