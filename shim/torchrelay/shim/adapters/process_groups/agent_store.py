"""Host the store at MASTER_ADDR and MASTER_PORT in a process of its own, so that it outlives every rank.

Under torchrun its agent hosts the store, and says so in TORCHELASTIC_USE_AGENT_STORE: rank 0 is a client like any other
(`torch.distributed.rendezvous._create_c10d_store`). Our agent has no torch. So rank 0 forks a process for the store as soon as
torch is there, before the script can have touched a device. The process ends with the agent. Seen on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torchrelay.protocol.launch_env import USE_AGENT_STORE
from torchrelay.protocol.transport.readable import is_readable
from torchrelay.shim.adapters.process_groups import sockets

_ARGUMENTS = (
    *("host_name", "port", "world_size", "is_master", "timeout", "wait_for_workers", "multi_tenant"),
    *("master_listen_fd", "use_libuv"),
)
"""The parameters of TCPStore, in their order."""
_TIMEOUT = timedelta(seconds=300)
"""The timeout that torch gives a TCPStore by itself."""
_FOUND_WITHIN = timedelta(seconds=2)
_READY_WITHIN_S = 10.0
_BACKLOG = 2048


def use(environ: MutableMapping[str, str], agent_pid: int, *, joins: bool = False) -> None:
    """Make the store outlive rank 0, and tell torch so. Where it cannot be hosted so, rank 0 hosts it, as torch does by itself.

    To be called in each rank once torch is there. `environ`: the script's. `agent_pid`: the process with which the store ends.
    `joins`: this process takes over a rank, so that the store is there already, or was lost with the machine of MASTER_ADDR.
    """
    if (place := _place(environ)) is None or not dist.is_available():
        return
    port = place[1]
    if joins or environ.get("RANK") != "0" or _host(port, agent_pid):
        environ[USE_AGENT_STORE] = str(True)


def connections(environ: Mapping[str, str]) -> set[sockets.Inode]:
    """Return the sockets of this process that are connected to the store that outlives rank 0."""
    place = _lasting(environ)
    return set() if place is None else sockets.connected_to(place[1])


def of_default_group(environ: Mapping[str, str]) -> dist.Store | None:
    """Return the store that `init_process_group` makes of the environment, for a process that joins.

    None where no store outlives rank 0.
    """
    place = _lasting(environ)
    found = None if place is None else _find(*place)
    return None if found is None else dist.PrefixStore("default_pg", found)


def connects_to_it(environ: Mapping[str, str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether these arguments of TCPStore are those of a client of the store that outlives rank 0, and it is there."""
    asked = _asked(args, kwargs)
    place = _lasting(environ)
    is_its = place is not None and place == (asked.get("host_name"), asked.get("port")) and not asked.get("is_master")
    return place is not None and is_its and _find(*place) is not None


def connect_uncounted(init: Callable[..., None], store: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Make `store` such a client, by TCPStore's `init`. The process that this one replaces was counted as a worker."""
    init(store, **{**_asked(args, kwargs), "wait_for_workers": False})


def _asked(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(zip(_ARGUMENTS, args)) | dict(kwargs)


def _place(environ: Mapping[str, str]) -> tuple[str, int] | None:
    host = environ.get("MASTER_ADDR", "")
    port = environ.get("MASTER_PORT", "")
    return (host, int(port)) if host and port.isdecimal() else None


def _lasting(environ: Mapping[str, str]) -> tuple[str, int] | None:
    return _place(environ) if environ.get(USE_AGENT_STORE) == str(True) else None


def _find(host: str, port: int) -> dist.TCPStore | None:
    """Return a client of the store, or None where none is served there."""
    try:
        socket.create_connection((host, port), _FOUND_WITHIN.total_seconds()).close()  # TCPStore would try for longer
        found = dist.TCPStore(host, port, is_master=False, timeout=_FOUND_WITHIN, wait_for_workers=False)
    except (OSError, RuntimeError):
        return None
    found.set_timeout(_TIMEOUT)
    return found


def _host(port: int, agent_pid: int) -> bool:
    """Return whether a process of its own hosts the store. Fork it if none does for this agent yet."""
    opened: list[int] = []
    try:
        opened += (os.pidfd_open(agent_pid),)
        mark = _mark(agent_pid, port)
        if mark is None:
            os.close(opened[0])
            return _is_served(port)  # any user of this machine could have taken the name
        opened += (mark,)
        opened += (_listen(port),)
        opened += os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: they hold no lock that the child needs
            between = os.fork()
    except OSError:  # no pidfds, no room for a process; or somebody else has the port, of which torch tells
        for descriptor in opened:
            os.close(descriptor)
        return False
    agent, mark, listener, reading, writing = opened
    if between == 0:
        try:
            if os.fork() == 0:  # no child of the script's process, which may wait for all that it has
                _serve(port, listener, (agent, mark, writing))
        finally:
            os._exit(0)
    for descriptor in (agent, mark, listener, writing):
        os.close(descriptor)
    try:
        os.waitpid(between, 0)
        return is_readable(reading, _READY_WITHIN_S) and os.read(reading, 1) == b"1"
    finally:
        os.close(reading)  # one that is late ends then


def _is_served(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), _FOUND_WITHIN.total_seconds()).close()
    except OSError:
        return False
    return True


def _mark(agent_pid: int, port: int) -> int | None:
    """Return a descriptor that says, while it is open, that this agent's store is there; None if one says so already."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mark.bind(f"\0torchrelay-store-{agent_pid}-{port}")
    except OSError as e:
        mark.close()
        if e.errno != errno.EADDRINUSE:
            raise
        return None
    return mark.detach()


def _listen(port: int) -> int:
    """Return the descriptor of a socket that listens on every address, as TCPStore does. Raises OSError."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=both).detach()


def _serve(port: int, listener: int, others: tuple[int, int, int]) -> None:
    """Serve the store. Called in the child, which must hold no descriptor that others wait to see closed."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    agent, _, ready = others
    for number in map(int, os.listdir("/proc/self/fd")):  # up to the limit there may be a billion
        if number > 2 and number not in (listener, *others):
            with contextlib.suppress(OSError):  # that of the folder itself
                os.close(number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent's end is its end
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener)
    os.write(ready, b"1")
    os.close(ready)
    end = select.poll()
    end.register(agent, select.POLLIN)
    end.poll()
    del store
