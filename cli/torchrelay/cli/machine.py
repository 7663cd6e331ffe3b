"""What this machine has: processors, GPUs, free ports, files that can be run."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.machine.visible_gpus import selections

_NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")
_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_NVIDIA_SMI_TIMEOUT_S = 20
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10_000
_TRIES = 100


class LocalMachine:
    """Implements options.Machine for the machine that this command runs on."""

    def cpu_count(self) -> int:
        return os.cpu_count() or 1

    def gpu_count(self) -> int:
        nvidia = _nvidia_gpus()
        count = nvidia or _amd_gpus()
        for selection in selections(os.environ, amd=not nvidia):
            count = visible_gpus(count, selection)
        return count

    def port_is_free(self, port: int) -> bool:
        try:
            _listen(port).close()
        except OSError:
            return False
        return True

    def free_port(self) -> int:
        """Return a free port outside the range that the kernel gives away itself.

        In that range, another program could get the port before rank 0 listens there.
        """
        ephemeral = ephemeral_ports()
        candidates = [port for port in range(_FIRST_PORT, 1 << 16) if port not in ephemeral]
        for port in random.sample(candidates, min(_TRIES, len(candidates))):
            if self.port_is_free(port):
                return port
        with _listen(0) as sock:
            return int(sock.getsockname()[1])

    def script_problem(self, script: str) -> str | None:
        path = Path(script)
        if path.is_dir():
            if (path / "__main__.py").is_file():
                return None
            return "is a folder without __main__.py; give the script, or use -m for a module"
        if not path.exists():
            return "no such file; give the training script, or use -m for a module"
        if not os.access(path, os.R_OK):
            return "cannot be read by this user; change its permissions"
        return None

    def program_problem(self, program: str) -> str | None:
        if shutil.which(program):
            return None
        if Path(program).is_file():
            return f"is not executable, as --no-python needs it; do `chmod +x {program}`"
        return "no such program; --no-python needs one that is on PATH, or its path"

    def folder_problem(self, folder: Path) -> str | None:
        try:
            existing = folder.absolute()
        except FileNotFoundError:
            return "the folder that this was started in is gone; change to one that is there"
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            return f"{existing} is no folder; give another path"
        if not os.access(existing, os.W_OK | os.X_OK):
            return f"this user cannot write into {existing}; give another path"
        return None


def ephemeral_ports(setting: Path = _EPHEMERAL) -> range:
    """Return the ports that the kernel gives to outgoing connections, and to programs that ask for any port.

    Linux's own default if the setting cannot be read.
    """
    try:
        first, last = map(int, setting.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        first = 32768
        last = 60999
    return range(first, last + 1)


def any_address_socket() -> socket.socket:
    """Make a socket for a port on every address, of both families if the kernel has both."""
    if not socket.has_dualstack_ipv6():
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock


def _listen(port: int) -> socket.socket:
    """Listen like torch's TCPStore: on every address, of both families if the kernel has both."""
    sock = any_address_socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
        sock.listen(1)
    except OSError:
        sock.close()
        raise
    return sock


def _nvidia_gpus() -> int:
    if _NVIDIA_GPUS.is_dir():
        return len(list(_NVIDIA_GPUS.iterdir()))
    with suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=True
        )
        return sum(line.startswith("GPU ") for line in result.stdout.splitlines())
    return 0


def _amd_gpus(nodes: Path = _AMD_NODES) -> int:
    """Count the AMD GPUs in the kernel's list of nodes. Processors are in the list, too, with the number 0."""
    count = 0
    for number in nodes.glob("*/gpu_id"):
        with suppress(OSError):  # of a GPU that this container was not given
            count += number.read_text(encoding="ascii").strip() not in ("", "0")
    return count


def visible_gpus(installed: int, selection: str) -> int:
    """Return how many of the installed GPUs are shown: the list ends at its first entry that names none."""
    count = 0
    for entry in selection.split(","):
        entry = entry.strip()
        named = entry.startswith(("GPU-", "MIG-")) or (entry.isascii() and entry.isdigit() and int(entry) < installed)
        if not named:
            break
        count += 1
    return count if installed else 0


def address_towards(host: str) -> str:
    """Return the address from which this machine would reach `host`. Raises UserError if that is not known."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as sock:
            sock.connect(address)  # of a datagram socket: nothing is sent
            return str(sock.getsockname()[0])
    except OSError as e:
        raise UserError(f"{host} cannot be reached from this machine ({e}): check the name and the network") from e
