"""Machines that can be cut off from each other: network namespaces of this one, on a bridge in another namespace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

HOLD = ["sleep", "infinity"]


class Network:
    """`count` machines. Needs the rights to make namespaces; `why_not` says what is missing."""

    def __init__(self, count: int) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        try:
            self._switch = self._namespace()
            self._machines = [self._namespace() for _ in range(count)]
            _ip(self._switch, "link", "add", "bridge0", "type", "bridge")
            _ip(self._switch, "link", "set", "bridge0", "up")
            for number, machine in enumerate(self._machines):
                peer = ["peer", "name", "eth0", "netns", str(machine)]
                _ip(self._switch, "link", "add", f"port{number}", "type", "veth", *peer)
                _ip(self._switch, "link", "set", f"port{number}", "master", "bridge0", "up")
                _ip(machine, "addr", "add", f"{self.host(number)}/24", "dev", "eth0")
                _ip(machine, "link", "set", "eth0", "up")
                _ip(machine, "link", "set", "lo", "up")
        except BaseException:
            self.remove()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def host(self, machine: int) -> str:
        return f"10.213.0.{machine + 1}"

    def namespace(self, machine: int) -> str:
        """The file of that machine's namespace."""
        return f"/proc/{self._machines[machine]}/ns/net"

    def inside(self, machine: int) -> list[str]:
        """In front of a command that is to run on that machine."""
        return ["nsenter", f"--net={self.namespace(machine)}"]

    def cut_off(self, machine: int) -> None:
        """What it sends, and what is sent to it, gets lost from now on; no connection ends."""
        _ip(self._switch, "link", "set", f"port{machine}", "down")

    def join(self, machine: int) -> None:
        _ip(self._switch, "link", "set", f"port{machine}", "up")

    def remove(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def _namespace(self) -> int:
        """The process that keeps it."""
        holder = subprocess.Popen(["unshare", "--net", *HOLD])
        self._holders.append(holder)
        while _is_ours(holder.pid) and holder.poll() is None:
            os.sched_yield()
        assert holder.poll() is None, "no network namespace can be made"
        return holder.pid


def why_not() -> str:
    """Why there can be no such network here; empty if there can."""
    try:
        Network(1).remove()
    except (OSError, AssertionError, subprocess.CalledProcessError) as e:
        return f"network namespaces cannot be made: {e}"
    return ""


def _is_ours(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()


def _ip(namespace: int, *words: str) -> None:
    subprocess.run(
        ["nsenter", f"--net=/proc/{namespace}/ns/net", "ip", *words],
        check=True,
        capture_output=True,
    )
