"""The output of the training processes, as torchrun's --tee, --redirects and --log-dir have it.

By default they write to the agent's own stdout and stderr. What is redirected goes to a file; what is teed goes to a file that is
followed and repeated line by line behind `[default0]:`. A pipe would let a slow terminal stop training.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from torchrelay.agent.output_streams import STDERR, STDOUT, parse_streams, streams_of

log = logging.getLogger(__name__)

STREAM_NAMES = {STDOUT: "stdout", STDERR: "stderr"}
POLL_S = 0.1
_MAX_LINE_BYTES = 1 << 20


@dataclass
class FileFollower:
    """One file of one process, repeated on the console."""

    path: Path
    console: BinaryIO
    prefix: Callable[[], bytes | None]
    """Returns the text that stands before each line now; None: the line is for the file alone."""
    worker: str = ""
    offset_bytes: int = 0
    rest: bytes = b""

    def advance(self, last: bool = False) -> None:
        """Repeat the whole lines that were added; with `last`, an unfinished one too."""
        if os.stat(self.path).st_size > self.offset_bytes:
            self._read_on()
        if last and self.rest:
            self._repeat([self.rest])
            self.rest = b""

    def _read_on(self) -> None:
        with open(self.path, "rb") as f:
            f.seek(self.offset_bytes)
            while data := f.read(_MAX_LINE_BYTES):
                self.offset_bytes += len(data)
                *lines, self.rest = (self.rest + data).split(b"\n")
                self._repeat(lines)
                if len(self.rest) > _MAX_LINE_BYTES:
                    self._repeat([self.rest])
                    self.rest = b""

    def _repeat(self, lines: list[bytes]) -> None:
        prefix = self.prefix()
        if prefix is None or not lines:
            return
        self.console.write(b"".join(prefix + line + b"\n" for line in lines))
        self.console.flush()


class Output:
    """The files that the processes write to, and the one thread that follows the files."""

    def __init__(self, tee: str, redirects: str, log_dir: str, run_id: str, role: str) -> None:
        self._tee = parse_streams("tee", tee)
        self._redirects = parse_streams("redirects", redirects)
        self._log_dir = log_dir
        self._run_id = run_id
        self._role = role
        self._folder: Path | None = None
        self._followers: list[FileFollower] = []
        self._over: set[str] = set()
        """Workers that have ended, and whose output is followed to its end only."""
        self._local_ranks: dict[str, int | None] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="output", daemon=True)

    def open(self, worker: str, name: str, local_rank: int | None) -> dict[int, BinaryIO]:
        """Open files for the streams that do not go to the console. `name` is the process's folder below the log folder."""
        self._local_ranks[worker] = local_rank
        teed = streams_of(self._tee, local_rank)
        captured = teed | streams_of(self._redirects, local_rank)
        files: dict[int, BinaryIO] = {}
        for stream, file_name in STREAM_NAMES.items():
            if captured & stream:
                folder = self._attempt_folder() / name
                folder.mkdir(exist_ok=True)
                path = folder / f"{file_name}.log"
                files[stream] = open(path, "wb")  # noqa: SIM115  # the child's stream
                if teed & stream or local_rank is None:
                    console = (sys.stdout if stream == STDOUT else sys.stderr).buffer
                    self._followers.append(
                        FileFollower(path, console, partial(self._prefix, worker, name, stream), worker)
                    )
        return files

    def assign(self, worker: str, local_rank: int) -> None:
        """Mark a spare's lines from now on with the rank that it has got."""
        self._local_ranks[worker] = local_rank

    def forget(self, worker: str) -> None:
        """Follow the files of a process that has ended no longer than to their end."""
        if self._thread.is_alive():
            self._over.add(worker)
        else:
            self._local_ranks.pop(worker, None)

    def start(self) -> None:
        """Start to follow, after the processes were forked: a fork should find no other thread."""
        if self._followers:
            self._thread.start()

    def end(self, timeout_s: float = 10.0) -> None:
        """Repeat what is left, for at most `timeout_s`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _prefix(self, worker: str, name: str, stream: int) -> bytes | None:
        local_rank = self._local_ranks[worker]
        label = f"[{self._role}{local_rank}]:" if local_rank is not None else f"[{name}]:"
        if streams_of(self._tee, local_rank) & stream:
            return label.encode()
        return None if streams_of(self._redirects, local_rank) & stream else b""

    def _attempt_folder(self) -> Path:
        if self._folder is None:
            if self._log_dir:
                Path(self._log_dir).mkdir(parents=True, exist_ok=True)
            base = self._log_dir or tempfile.mkdtemp(prefix="torchrelay_")
            self._folder = Path(tempfile.mkdtemp(prefix=f"{self._run_id}_", dir=base)) / "attempt_0"
            self._folder.mkdir()
        return self._folder

    def _follow(self) -> None:
        while True:
            ended = self._ended.wait(POLL_S)
            over = set(self._over)
            for follower in list(self._followers):
                try:
                    follower.advance(last=ended or follower.worker in over)
                except OSError as e:  # the console is gone; the files go on
                    log.warning("output is no longer repeated: %s", e)
                    return
            if ended:
                return
            self._drop(over)

    def _drop(self, over: set[str]) -> None:
        """Drop the followers of workers that have ended.

        To be called on the thread that follows: other threads only add to these.
        """
        for follower in [f for f in self._followers if f.worker in over]:
            self._followers.remove(follower)
        self._over -= over
        for worker in over:
            self._local_ranks.pop(worker, None)
