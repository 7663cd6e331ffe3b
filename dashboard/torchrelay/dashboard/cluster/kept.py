"""What is kept of a cluster's jobs in a folder, so that it outlives controllers and TrainingJobs; the folder's size is bounded."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from torchrelay.dashboard.event_lines import EventLines
from torchrelay.dashboard.event_writer import EventWriter
from torchrelay.dashboard.record import RunRecord
from torchrelay.dashboard.run_facts import Bounds, ClusterJob
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube.job_feed import JobSeen

log = logging.getLogger(__name__)

JOB_FILE = "job.json"
EVENTS_FILE = "events.jsonl"
JOB_BYTES = 2 << 20
"""Of one job: beyond it only its end is written."""
MOST_JOBS = 2000
BLOCK_BYTES = 4096
_OURS = re.compile(r"[a-z0-9-]+\.[a-z0-9.-]+\.[0-9a-f]{8}")
BOUNDS = Bounds(migrations=200, heard=80)


@dataclass(frozen=True)
class KeptJob:
    """A job of which something is kept. `began_s`: when this was first heard of it, in seconds since the epoch."""

    namespace: str
    job: str
    lineage: str
    owner: str
    began_s: float

    @property
    def names(self) -> ClusterJob:
        return ClusterJob(self.namespace, self.job)

    @property
    def folder_name(self) -> str:
        """Return the name of the job's folder and page. A later job of the same name has another one."""
        digest = hashlib.sha256(f"{self.namespace}/{self.job}/{self.lineage}".encode()).hexdigest()
        return f"{self.namespace}.{self.job}.{digest[:8]}"


@dataclass(frozen=True)
class _Folder:
    """A job's folder. `job`: None if it does not say which; `size_bytes`: what it takes of the volume."""

    job: KeptJob | None
    size_bytes: int = 0

    @property
    def began_s(self) -> float:
        return self.job.began_s if self.job is not None else 0.0


class KeptJobs:
    """The jobs that are kept in a folder. `most_bytes`: of all of them together."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._writing: dict[str, EventWriter] = {}
        self._known: dict[str, _Folder] | None = None
        """By their names, while nobody else writes here."""
        self._failed = False

    @property
    def is_listed(self) -> bool:
        return self._known is not None

    def list_again(self) -> None:
        """Look into all folders. This takes time."""
        self._known = {path.name: _Folder(_read(path), _size_bytes(path)) for path in self._folders()}

    def forget(self) -> None:
        """Forget what lies there: another one may write there from now on."""
        self._known = None

    def newest(self) -> list[KeptJob]:
        """Return the kept jobs that nothing is written of now, the newest first."""
        return [folder.job for _, folder in self._over() if folder.job is not None]

    def begin(self, seen: JobSeen, now_s: float) -> tuple[KeptJob, EventWriter | None]:
        """Return the job, as it was kept before if it was, and its writer.

        The writer is None if there is no room or the folder cannot be written. This is logged.
        """
        job = KeptJob(seen.namespace, seen.job, seen.lineage, seen.owner, now_s)
        path = self._folder / job.folder_name
        known = self._there()
        before = known[path.name].job if path.name in known else None
        job = before or job
        if (len(self._writing) + 1) * JOB_BYTES > self._most_bytes:
            self._say(
                f"no more jobs are kept at once than {len(self._writing)}: dashboard.history.sizeMiB is the bound"
            )
            return job, None
        self._make_room(path.name)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if before is None:
                _write_whole(path / JOB_FILE, json.dumps(asdict(job)))
        except OSError as e:
            self._fail(e)
            return job, None
        known[path.name] = _Folder(job)
        writer = self._writing[path.name] = EventWriter(path / EVENTS_FILE, self._fail, JOB_BYTES - 2 * BLOCK_BYTES)
        return job, writer

    def end(self, job: KeptJob) -> None:
        """Close the job's file: nothing more is heard of it."""
        if (writer := self._writing.pop(job.folder_name, None)) is not None:
            writer.close()
            if self._known is not None:
                self._known[job.folder_name] = _Folder(job, _size_bytes(self._folder / job.folder_name))

    def close(self) -> None:
        """Close all files: nothing more is heard of any job."""
        for writer in self._writing.values():
            writer.close()
        self._writing.clear()

    def record_of(self, job: KeptJob) -> RunRecord:
        """Read the job's events into a record. If they cannot be read, log that and return what there is."""
        path = self._folder / job.folder_name / EVENTS_FILE
        record = RunRecord(job.folder_name, job.names, BOUNDS)
        try:
            return EventLines(path, record).read_all() if path.exists() else record
        except UserError as e:
            log.warning("%s", e)
            return record

    def _make_room(self, name: str) -> None:
        """Remove the oldest jobs that are over, until there is room for the folder `name` and all that are written now."""
        written = len(self._writing) + 1
        room_bytes = self._most_bytes - written * JOB_BYTES
        places = MOST_JOBS - written
        for other, folder in self._over():
            if other == name:
                continue
            room_bytes = room_bytes - folder.size_bytes
            places = places - 1
            if room_bytes < 0 or places < 0:
                shutil.rmtree(self._folder / other, ignore_errors=True)
                del self._there()[other]

    def _over(self) -> list[tuple[str, _Folder]]:
        """Return those of which nothing is written now, the newest first; last what does not say of which job it is."""
        over = [(name, folder) for name, folder in self._there().items() if name not in self._writing]
        return sorted(over, key=lambda one: one[1].began_s, reverse=True)

    def _there(self) -> dict[str, _Folder]:
        if self._known is None:
            self.list_again()
        assert self._known is not None
        return self._known

    def _folders(self) -> list[Path]:
        """Return our folders. The volume may have others, too."""
        try:
            paths = list(self._folder.iterdir())
        except OSError:
            return []  # there is none yet
        return [path for path in paths if _OURS.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]

    def _fail(self, error: OSError) -> None:
        self._say(f"what happens to jobs is not kept in {self._folder}: {error}")

    def _say(self, text: str) -> None:
        if not self._failed:
            self._failed = True
            log.warning("%s", text)


def _read(path: Path) -> KeptJob | None:
    """Read what a job was; None if there is no whole file."""
    try:
        return KeptJob(**json.loads((path / JOB_FILE).read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is never seen half written, on a full volume neither. Raises OSError."""
    partial = path.with_suffix(".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _size_bytes(folder: Path) -> int:
    """Return what a folder and its files take of the volume, as far as that is known: each has a block at least."""
    size_bytes = BLOCK_BYTES
    try:
        for file in folder.iterdir():
            taken = file.lstat()
            size_bytes += max(taken.st_blocks * 512, taken.st_size, BLOCK_BYTES)
    except OSError as e:
        log.debug("%s: %s", folder, e)  # somebody has removed it
    return size_bytes
