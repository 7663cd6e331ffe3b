"""`python -m torchrelay.controller.kube`: the controller of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from contextlib import AbstractContextManager

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from torchrelay.controller.kube.client.api import Api, connect
from torchrelay.controller.kube.client.lease import Elector
from torchrelay.controller.kube.controller import Controller
from torchrelay.controller.kube.dashboard_asks import DashboardAsks
from torchrelay.controller.kube.enrolment.authority import open_authority
from torchrelay.controller.kube.event_feed import EventFeed, feed_served
from torchrelay.controller.kube.figures import ClusterFigures
from torchrelay.controller.kube.notices import notices_posted
from torchrelay.controller.kube.pulse import Pulse
from torchrelay.controller.kube.readiness import serve_readiness
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.logs.log_lines import LogPart
from torchrelay.protocol.logs.part_process import run_part
from torchrelay.protocol.metrics.endpoint import Endpoint


async def _run(settings: ClusterSettings) -> None:
    api = connect()
    work = asyncio.ensure_future(_lead(api, settings))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    await work


async def _lead(api: Api, settings: ClusterSettings) -> None:
    elector = Elector(api, settings.namespace, settings.pod)
    await elector.look()
    pulse = Pulse()
    figures = ClusterFigures(api.calls)
    feed = EventFeed(settings.pod, lambda: elector.holder)
    async with await serve_readiness(settings, pulse), feed_served(settings.dashboard_socket, feed):
        with _metrics(settings, figures):
            await elector.win()
            await _work(api, settings, elector, pulse, figures, feed)


def _metrics(settings: ClusterSettings, figures: ClusterFigures) -> AbstractContextManager[object]:
    """Serve the metrics, if a port is set. Raises UserError for a port that is taken."""
    if not settings.metrics_port:
        return contextlib.nullcontext()
    return contextlib.closing(Endpoint(settings.host, settings.metrics_port, figures.samples))


async def _work(
    api: Api, settings: ClusterSettings, elector: Elector, pulse: Pulse, figures: ClusterFigures, feed: EventFeed
) -> None:
    async with notices_posted(settings) as listens:  # what waits goes out once another controller may lead
        try:
            authority = await open_authority(api, settings.namespace)
            controller = Controller(api, settings, authority, pulse)
            controller.ledger.listens = listens
            figures.lead(controller.ledger, authority)
            asks = DashboardAsks(api, controller.ledger) if settings.takes_asks else None
            feed.lead(controller.ledger, asks.answer if asks is not None else None)
            work = [asyncio.ensure_future(w) for w in (controller.run(), elector.hold(controller.keep_address))]
            try:
                done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in work:
                    task.cancel()
                await asyncio.gather(*work, return_exceptions=True)
        finally:
            with contextlib.suppress(TorchrelayError):
                await elector.release()


def main() -> int:
    def work() -> None:
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_run(ClusterSettings.from_environ(os.environ)))

    return run_part(LogPart.CONTROLLER, os.environ, "%(asctime)s %(word)s%(message)s", work, usual=logging.INFO)


if __name__ == "__main__":
    sys.exit(main())
