"""Listens to the controller beside this dashboard, and comes again when it was cut off."""

from __future__ import annotations

import asyncio
import logging

from torchrelay.dashboard.cluster.jobs import ClusterJobs
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.kube.job_feed import LONGEST_LINE_BYTES, STILL_THERE_S, parse

log = logging.getLogger(__name__)

AGAIN_S = 2.0
SILENT_S = 4 * STILL_THERE_S
AT_ONCE_BYTES = 64 << 10
SWEEP_S = 10.0


async def follow(jobs: ClusterJobs, path: str) -> None:
    """Follow the controller until cancelled. `path`: of the controller's socket."""
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError as e:
            _say(jobs, f"the controller beside this dashboard does not answer ({e.strerror or e})")
        else:
            if jobs.asks is not None:
                jobs.asks.connected(writer)
            try:
                await _listen(jobs, reader)
                _say(jobs, "the controller beside this dashboard has ended")
            except asyncio.TimeoutError:
                _say(jobs, f"the controller beside this dashboard has said nothing for {SILENT_S:.0f} s")
            except (OSError, FrameError) as e:
                _say(jobs, f"the controller beside this dashboard is not understood: {e}")
            finally:
                if jobs.asks is not None:
                    jobs.asks.cut()
                writer.close()
        await asyncio.sleep(AGAIN_S)


async def sweep(jobs: ClusterJobs) -> None:
    """Drop jobs that are gone, and read those that were kept before, until cancelled."""
    while True:
        await asyncio.sleep(SWEEP_S)
        jobs.sweep()
        for job in jobs.to_recall():
            jobs.recall(job, await asyncio.to_thread(jobs.read, job))


async def _listen(jobs: ClusterJobs, reader: asyncio.StreamReader) -> None:
    jobs.connected()
    rest = bytearray()
    while data := await asyncio.wait_for(reader.read(AT_ONCE_BYTES), SILENT_S):
        rest += data
        if b"\n" in data:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in lines:
                _take(jobs, line)
                if jobs.is_list_due:
                    await asyncio.to_thread(jobs.list_kept)
        elif len(rest) > LONGEST_LINE_BYTES:
            raise FrameError(f"a line of more than {LONGEST_LINE_BYTES >> 20} MiB")


def _take(jobs: ClusterJobs, line: bytes) -> None:
    try:
        jobs.take(parse(line))
    except FrameError as e:  # of a controller of another version: they are replaced together, one after the other
        log.warning("%s", e)


def _say(jobs: ClusterJobs, problem: str) -> None:
    if jobs.problem != problem:
        log.warning("%s", problem)
    jobs.problem = problem
    jobs.leading = None
