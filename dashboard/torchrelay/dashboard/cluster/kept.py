"""What is kept of a cluster's jobs in a folder, so that it outlives controllers and TrainingJobs; the folder's size is bounded."""

from __future__ import annotations

import hashlib
import json
import logging
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

JOB_FILE, EVENTS_FILE = "job.json", "events.jsonl"
JOB_BYTES = 2 << 20
"""Of one job's events: beyond it only its end is written."""
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
        """Of its own in the folder, and of its page: a later job of its name has another one."""
        digest = hashlib.sha256(f"{self.namespace}/{self.job}/{self.lineage}".encode()).hexdigest()
        return f"{self.namespace}.{self.job}.{digest[:8]}"


class KeptJobs:
    """`most_bytes`: of all of them together."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._writing: dict[str, EventWriter] = {}
        self._failed = False

    def newest(self) -> list[KeptJob]:
        """Return those that nothing is written of now, the newest first."""
        found = [job for path in self._folders() if (job := _read(path)) and path.name not in self._writing]
        return sorted(found, key=lambda job: job.began_s, reverse=True)

    def begin(self, seen: JobSeen, now_s: float) -> tuple[KeptJob, EventWriter | None]:
        """Return the job, as it was kept before if it was, and what writes of it: None where there is no room, which is said."""
        job = KeptJob(seen.namespace, seen.job, seen.lineage, seen.owner, now_s)
        path = self._folder / job.folder_name
        job = _read(path) or job
        self._make_room(path)
        if (len(self._writing) + 1) * JOB_BYTES > self._most_bytes:
            self._say(
                f"no more jobs are kept at once than {len(self._writing)}: dashboard.history.sizeMiB is the bound"
            )
            return job, None
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / JOB_FILE).write_text(json.dumps(asdict(job)), encoding="utf-8")
        except OSError as e:
            self._fail(e)
            return job, None
        writer = self._writing[path.name] = EventWriter(path / EVENTS_FILE, self._fail, JOB_BYTES)
        return job, writer

    def end(self, job: KeptJob) -> None:
        """Nothing is heard of it any more."""
        if (writer := self._writing.pop(job.folder_name, None)) is not None:
            writer.close()

    def close(self) -> None:
        """Nothing is heard of any job any more."""
        for writer in self._writing.values():
            writer.close()
        self._writing.clear()

    def record_of(self, job: KeptJob) -> RunRecord:
        """Return what its events come to; an empty one where none can be read, which is said."""
        path, record = self._folder / job.folder_name / EVENTS_FILE, RunRecord(job.folder_name, job.names, BOUNDS)
        try:
            return EventLines(path, record).read_all() if path.exists() else record
        except UserError as e:
            log.warning("%s", e)
            return record

    def _make_room(self, path: Path) -> None:
        """Remove the oldest that are over, until what is written of now has its room beside the others, and `path`, too."""
        room = self._most_bytes - (len(self._writing) + 1) * JOB_BYTES
        for job in self.newest():
            own = self._folder / job.folder_name
            room -= sum(file.stat().st_size for file in own.iterdir()) if own != path else 0
            if room < 0 and own != path:
                shutil.rmtree(own, ignore_errors=True)

    def _folders(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if path.is_dir() and not path.is_symlink()]
        except OSError:
            return []  # there is none yet

    def _fail(self, error: OSError) -> None:
        self._say(f"what happens to jobs is not kept in {self._folder}: {error}")

    def _say(self, text: str) -> None:
        if not self._failed:
            self._failed = True
            log.warning("%s", text)


def _read(path: Path) -> KeptJob | None:
    """Return None where there is no whole one."""
    try:
        return KeptJob(**json.loads((path / JOB_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
