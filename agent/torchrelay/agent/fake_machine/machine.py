"""A machine whose GPUs, network ports and kernel log can be given faults: a driver library, and trees of files.

The code that reads it is the code that reads a real machine; only the paths differ. For `--inject`, `bench detect` and the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.faults import COMPILERS

ENV_STATE = "TORCHRELAY_FAKE_NVML"
MAX_GPUS = 64
COUNTERS = (
    *("counters/" + n for n in ("excessive_buffer_overrun_errors", "local_link_integrity_errors", "symbol_error")),
    *("counters/" + n for n in ("link_error_recovery", "port_rcv_errors", "port_xmit_discards", "link_downed")),
    *("hw_counters/" + n for n in ("rnr_nak_retry_err", "local_ack_timeout_err", "roce_slow_restart")),
)


class FakeMachine:
    """Below `root`: `dev/kmsg`, `sys`, `lib/libnvidia-ml.so.1` and its `nvml.state`. GPU n has port `mlx5_n/1` beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.library = root / "lib" / "libnvidia-ml.so.1"
        self.state = root / "nvml.state"
        self.kernel_log = root / "dev" / "kmsg"
        self.sys = root / "sys"
        self._gpus = 1
        self._values: dict[tuple[int, str], int] = {}
        self._events: list[tuple[int, int, int]] = []
        self._hanging = ""

    def make(self, gpus: int, library: Path | None = None) -> None:
        """Make a new fake machine, in the place of the one before. `library`: a fake driver that was built before.

        Raises UserError without a C compiler.
        """
        self._gpus = gpus
        for folder in (self.library.parent, self.kernel_log.parent, self.sys):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        if library is None:
            build_library(self.library)
        else:
            self.library.symlink_to(library)
        os.mkfifo(self.kernel_log)
        for number in range(gpus):
            self._make_port(number)
        self._write()

    def _make_port(self, number: int) -> None:
        bridge = self.sys / "devices" / "pci0000:00" / f"0000:00:{number:02x}.0"
        gpu = bridge / f"0000:{0x10 + number:02x}:00.0"
        card = bridge / f"0000:{0x80 + number:02x}:00.0"
        gpu.mkdir(parents=True)
        card.mkdir()
        addresses = self.sys / "bus" / "pci" / "devices"
        addresses.mkdir(parents=True, exist_ok=True)
        (addresses / gpu.name).symlink_to(gpu)
        device = self.sys / "class" / "infiniband" / f"mlx5_{number}"
        port = device / "ports" / "1"
        for name in COUNTERS:
            (port / name).parent.mkdir(parents=True, exist_ok=True)
            (port / name).write_text("0\n")
        (device / "device").symlink_to(card)
        self.port(number, "state", "4: ACTIVE")
        self.port(number, "phys_state", "5: LinkUp")

    def set(self, gpu: int, key: str, value: int) -> None:
        """Set a reading of a GPU, by its name in nvml.c."""
        self._values[gpu, key] = value
        self._write()

    def add(self, gpu: int, key: str, value: int) -> None:
        self.set(gpu, key, self._values.get((gpu, key), 0) + value)

    def xid(self, gpu: int, code: int, text: str = "", kernel: bool = True) -> None:
        """Report an XID as the driver does: by an event, and (with `kernel`) by a line in the log."""
        self._events.append((len(self._events), gpu, code))
        self._write()
        if kernel:
            self.say(f"NVRM: Xid (PCI:0000:{0x10 + gpu:02x}:00): {code}, {text or 'pid=1, name=python'}")

    def hang(self, function: str) -> None:
        """Let calls of a driver function hang, until `hang("")`."""
        self._hanging = function
        self._write()

    def say(self, text: str) -> None:
        """Write one line to the kernel's log. Nothing happens while no process reads it."""
        file = os.open(self.kernel_log, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(file, f"3,1,1,-;{text}\n".encode())
        finally:
            os.close(file)

    def write(self, path: str, text: str) -> None:
        """Write a file of the machine. An empty text removes the file."""
        file = self.root / path
        if text:
            file.parent.mkdir(parents=True, exist_ok=True)
            _replace(file, text)
        else:
            file.unlink()

    def port(self, number: int, file: str, text: str) -> None:
        path = self.sys / "class" / "infiniband" / f"mlx5_{number}" / "ports" / "1" / file
        _replace(path, text + "\n")

    def count(self, number: int, counter: str, value: int) -> None:
        """Raise one counter of a port by `value`."""
        path = self.sys / "class" / "infiniband" / f"mlx5_{number}" / "ports" / "1" / counter
        _replace(path, f"{int(path.read_text()) + value}\n")

    def _write(self) -> None:
        lines = [f"gpus {self._gpus}"]
        lines += [f"gpu {gpu} {key} {value}" for (gpu, key), value in self._values.items()]
        lines += [f"event {seq} {gpu} {code}" for seq, gpu, code in self._events[-200:]]
        if self._hanging:
            lines.append(f"hang {self._hanging}")
        _replace(self.state, "\n".join(lines) + "\n")


def build_library(path: Path) -> None:
    """Build the fake driver. Raises UserError without a C compiler, or if the compiler refuses."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise UserError(
            f"faults of devices need a fake driver, and that a C compiler: install one of {', '.join(COMPILERS)}"
        )
    source = resources.files("torchrelay.agent.fake_machine").joinpath("nvml.c")
    with resources.as_file(source) as file:
        command = [
            compiler,
            "-shared",
            "-fPIC",
            "-O1",
            "-Wall",
            "-Wl,-soname,libnvidia-ml.so.1",
            "-o",
            str(path),
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"the fake driver cannot be built: {done.stderr.strip()[-500:]}")


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)
