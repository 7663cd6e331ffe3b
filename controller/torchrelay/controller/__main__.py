"""`python -m torchrelay.controller --config FILE`: serves one job, or checks, to the end of that or of standard input."""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path

from torchrelay.controller.checkpoints.checkpoint import CheckpointOrigin, read_checkpoint, stranger
from torchrelay.controller.config import ControllerConfig, load_config
from torchrelay.controller.core import Core
from torchrelay.controller.machines.checks import ChecksMeeting
from torchrelay.controller.machines.claims import Claims
from torchrelay.controller.metrics.served import ServedJob
from torchrelay.controller.serving.checks_service import ChecksService
from torchrelay.controller.serving.relay import Relay
from torchrelay.controller.serving.service import RelayService
from torchrelay.protocol import relay_pb2_grpc
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.health.policy_file import read_policy
from torchrelay.protocol.logs.log_lines import LogPart
from torchrelay.protocol.logs.part_process import run_part
from torchrelay.protocol.names import EXIT_STOOD_DOWN
from torchrelay.protocol.security.secret_file import read_secret
from torchrelay.protocol.security.tls import Credentials, make_server

log = logging.getLogger(__name__)

AGENTS_END_S = 60.0
"""An agent gives its processes half a minute to end. An agent that is not gone by then is not waited for."""
EXIT_STOPPED = 128 + signal.SIGTERM


async def serve(config: ControllerConfig, secret: bytes) -> int:
    """Serve the job to its end. Return the job's exit code.

    Raises UserError for an address, a policy or a checkpoint that cannot be used.
    """
    checkpoint = read_checkpoint(Path(config.resume_dir), config.world_size) if config.resume_dir else None
    claims = Claims(Path(config.jit_dir), config.run_id, config.job_name)
    policy = read_policy(config.health_policy, config.health_observe)
    core = Core(config, time.time, checkpoint, policy, claim=claims.claim)
    core.driver.spares.respawns.recall_starts(config.respawned, time.monotonic() - time.time())
    if checkpoint is not None:
        origin = CheckpointOrigin(config.command, config.script_sha256)
        if word := stranger(f"--resume {config.resume_dir}", checkpoint.origin, origin):
            core.outbox.log("warning", word)
    metrics = ServedJob(core, config.run_id, config.restarts_done)
    relay = Relay(core, metrics.hear if config.metrics_port else None)
    async with _listening(config, secret, RelayService(relay)):
        try:
            metrics.open(config.metrics_host, config.metrics_port)
            ends = relay.resign if config.epoch > 0 else _ended_with_the_command(relay.end)
            with _end_with_the_command(ends), _end_by_signal(relay.end), _policy_watched(config, core):
                await relay.run()
                if core.ended is None:
                    log.info("%s", core.leading.stood_down or "its command is gone; another machine leads on")
                    return EXIT_STOOD_DOWN
                if not await relay.all_gone(AGENTS_END_S):
                    log.warning("some agents are still there, and are left to themselves")
        finally:
            metrics.close()
    return core.ended.exit_code


async def serve_checks(config: ControllerConfig, secret: bytes) -> int:
    """Let the checks of the job's machines meet, until each has been told of the others.

    Raises UserError for an address that cannot be used.
    """
    service = ChecksService(ChecksMeeting(config.nnodes))
    async with _listening(config, secret, service):
        with _end_with_the_command(_ended_with_the_command(service.end)), _end_by_signal(service.end):
            await service.over()
    return 0


@asynccontextmanager
async def _listening(
    config: ControllerConfig, secret: bytes, service: relay_pb2_grpc.RelayServicer
) -> AsyncIterator[None]:
    server = make_server(port_is_held=config.port_is_held)
    relay_pb2_grpc.add_RelayServicer_to_server(service, server)
    host = f"[{config.listen_host}]" if ":" in config.listen_host else config.listen_host
    credentials = Credentials.from_secret(secret, "controller").server()
    try:
        port = server.add_secure_port(f"{host}:{config.listen_port}", credentials)
    except RuntimeError as e:
        raise UserError(f"cannot listen on {host}:{config.listen_port} ({e}); choose another port") from e
    await server.start()
    try:
        _write_address(Path(config.address_file), config.listen_host, port)
        log.info("listening on %s:%d", host, port)
        yield
    finally:
        await server.stop(grace=1.0)


def _policy_watched(config: ControllerConfig, core: Core) -> AbstractContextManager[object]:
    if not config.health_policy:
        return nullcontext()
    from torchrelay.controller.health.policy_watch import PolicyWatch

    return PolicyWatch(Path(config.health_policy), config.health_observe, core.health.take_policy, core.outbox.log)


def _write_address(path: Path, host: str, port: int) -> None:
    partial = path.with_name(path.name + ".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as f:
        json.dump({"host": host, "port": port, "pid": os.getpid()}, f)
    partial.replace(path)


class _end_with_the_command:  # reads as a statement
    """Calls `ends` when standard input ends.

    Standard input is a pipe that the command holds: its end is the command's end, however that came.
    """

    def __init__(self, ends: Callable[[], None]) -> None:
        self._ends = ends
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        with suppress(PermissionError):  # a file or /dev/null: started by hand, nobody to outlive
            self._loop.add_reader(0, self._readable)

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(0)

    def _readable(self) -> None:
        with suppress(BlockingIOError):
            if not os.read(0, 4096):
                self._loop.remove_reader(0)
                self._ends()


def _ended_with_the_command(end: Callable[[int, str], None]) -> Callable[[], None]:
    return functools.partial(end, EXIT_STOPPED, "the command that started the job is gone")


class _end_by_signal:
    def __init__(self, end: Callable[[int, str], None]) -> None:
        self._end = end
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(
                number, self._end, 128 + number, f"the controller was stopped by {signal.Signals(number).name}"
            )

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="torchrelay.controller", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file with the keys of config.ControllerConfig")
    arguments = parser.parse_args()

    def work() -> int:
        config = load_config(arguments.config)
        serves = serve_checks if config.checks_only else serve
        return asyncio.run(serves(config, read_secret(Path(config.secret_file))))

    return run_part(LogPart.CONTROLLER, os.environ, "torchrelay controller: %(word)s%(message)s", work)


if __name__ == "__main__":
    sys.exit(main())
