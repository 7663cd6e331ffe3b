"""Notices of a cluster's jobs to a webhook: what `torchrelay run --notify` posts of one, for all of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.jobs.run import JobRun
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol import events
from torchrelay.protocol.errors import FrameError, UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.messages import JobEvent
from torchrelay.protocol.notify.notices import JobCommands, JobNotice, ending, notice
from torchrelay.protocol.notify.target import NotifyTarget, TargetNames, read_target
from torchrelay.protocol.notify.webhook import NotifiedJob, NotifyWebhook

log = logging.getLogger(__name__)

URL_FILE = "url"
TEMPLATE_FILE = "template"
"""Keys of the Secret that is mounted as the folder."""
_READ = frozenset(
    events.NAMES[kind]
    for kind in (
        events.HealthVerdict,
        events.IncidentKept,
        events.JobFinished,
        events.JobRestarted,
        events.MigrationFinished,
        events.MoveNotMade,
        events.Protection,
        events.SparesChanged,
    )
)
"""Events that decide what is posted. Of the other events there are many."""


class ClusterNotices:
    """Posts notices. `post`: returns at once. `cluster`: what the notices call it."""

    def __init__(self, post: Callable[[JobNotice, NotifiedJob], None], cluster: str) -> None:
        self._post = post
        self._cluster = cluster

    def hear(self, run: JobRun, event: JobEvent) -> None:
        """Post a notice, if the event is worth it. `run`: whose event it is."""
        try:
            self._hear(run, event)
        except Exception:  # the job is well: that nobody can be told of it must not leave it unprotected
            log.exception("%s: nobody is notified of %s", run.key, event.name, extra={"run": str(run.key)})

    def _hear(self, run: JobRun, event: JobEvent) -> None:
        if event.name not in _READ:
            return
        try:
            what = events.from_job_event(event)
        except FrameError:
            return
        job = NotifiedJob(str(run.key), run.key.name, self._cluster)
        if isinstance(what, events.JobFinished):
            hint = "" if what.exit_code == 0 else commands_of(run.key).status
            self._post(ending(run.core.job.boundary, what.exit_code, what.reason, hint), job)
            return
        found = notice(run.told_of, what, commands_of(run.key))
        run.told_of = run.told_of.told(what)
        if found is not None:
            self._post(found, job)


def commands_of(key: JobKey) -> JobCommands:
    """Return the commands that a person types to ask about the job."""
    about = f"{key.name} -n {key.namespace}"
    return JobCommands(f"kubectl torchrelay status {about}", f"kubectl torchrelay history {about}")


def read_notify_target(settings: ClusterSettings) -> NotifyTarget | None:
    """Return where notices go; None where none are wanted, or the folder has no URL, which is said.

    Raises UserError for what cannot be meant.
    """
    if not settings.notify_folder:
        return None
    folder = Path(settings.notify_folder)
    try:
        url = (folder / URL_FILE).read_text().strip()
        template = (folder / TEMPLATE_FILE).read_text() if (folder / TEMPLATE_FILE).exists() else ""
    except (OSError, UnicodeDecodeError) as e:
        log.warning("nobody is notified: %s: %s; it is a Secret with the key %s", folder, e, URL_FILE)
        return None
    names = TargetNames(f"the key {URL_FILE} of {folder}", kube.ENV_NOTIFY_ON, kube.ENV_NOTIFY_FORM)
    return read_target(names, url, settings.notify_on, settings.notify_form, template)


@asynccontextmanager
async def notices_posted(settings: ClusterSettings) -> AsyncIterator[Callable[[JobRun, JobEvent], None]]:
    """Let notices be posted for as long as this controller leads. Yield what hears the events of all jobs.

    A target that is wrong is said, and ends nothing.
    """
    try:
        target = read_notify_target(settings)
    except UserError as e:
        log.error("nobody is notified: %s", e)
        target = None
    if target is None:
        yield lambda run, event: None
        return
    webhook = NotifyWebhook(target, lambda text: log.warning("%s", text))
    try:
        yield ClusterNotices(webhook.post, settings.notify_cluster).hear
    finally:
        await webhook.close()
