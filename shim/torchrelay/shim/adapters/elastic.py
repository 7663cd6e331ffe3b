"""Hook torch's elastic agent, which is what torchrun runs. Seen on 2.13.

Where another version lacks what is used of it, or something of ours fails, the launcher runs as it is, and a line says why. A
spare's launcher ends instead, where it would train.

While a job is protected its agents leave each other alone: none looks whether others want to join, tells the others that it lives,
or waits for them at its end, since the pod with their common store may be gone by then. A training process that was killed is
started again, to be parked: its rank lives elsewhere by then. The other processes of its pod train on. Anything else ends as it
always does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.names import ENV_SPARE, EXIT_NO_SPARE_LEFT

_AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent"
_PROCESSES = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
_REGISTRY = "torch.distributed.elastic.rendezvous.registry"
_ENDED_BY_ORDER = (128 + 9, EXIT_NO_SPARE_LEFT)
EXIT_UNAVAILABLE = 69
"""EX_UNAVAILABLE of sysexits.h. A process that ends with it must not meet the others as a rank that lives elsewhere."""
ALONE = "the job is protected: this launcher leaves the others alone"
_NODE_RANK = ("--node-rank", "--node_rank")
_SIGNALS = "torch.distributed.elastic.multiprocessing.api"


class ElasticHooks:
    """Hook torch's agent in the launcher's process.

    `environment`: of the training processes, besides what the launcher gives them. `mark`: a file that is there while the job is
    protected. `spare`: the launcher meets no other, and its processes are parked.
    """

    def __init__(self, environment: Mapping[str, str], mark: str, spare: bool, log: LogLines) -> None:
        self._environment = environment
        self._mark = mark
        self._spare = spare
        self._log = log
        self._given: dict[int, Mapping[str, str]] = {}
        """The environment that a process was started with, by the process's id."""
        self._alone = self._gave_up = False
        self._replaced: list[tuple[Any, str]] = []
        """Methods of torch's objects that were replaced, by object and name."""
        self._begin_heartbeats: Callable[[], None] | None = None
        """Begins heartbeats again; None where they were not ended."""
        self.imported: dict[str, Callable[[ModuleType], None]] = {
            _AGENT: self._guarded(self._hook_agent),
            _PROCESSES: self._guarded(self._hook_processes),
            _REGISTRY: self._guarded(self._hook_registry),
        }

    def _guarded(self, hook: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def imported(module: ModuleType) -> None:
            try:
                hook(module)
            except Exception as e:  # noqa: BLE001 - the launcher must run, whatever is wrong with us
                self._is_of_no_use(e)

        return imported

    def _is_of_no_use(self, error: Exception) -> None:
        """Say that what the launcher starts is not protected. End a spare's launcher.

        A spare's pod must not train: its ranks live elsewhere.
        """
        what = "this spare is of no use" if self._spare else "not protecting what this launcher starts"
        is_old = isinstance(error, AttributeError)
        self._log.say(f"{what}: its torch is of another kind: {error}" if is_old else f"{what}: {_named(error)}")
        if self._spare:
            os._exit(EXIT_UNAVAILABLE)

    def _hook_processes(self, module: ModuleType) -> None:
        handler: Any = module.SubprocessHandler
        popen = handler._popen

        def start(self_: Any, args: Any, env: Mapping[str, str]) -> Any:
            with_ours = env
            try:
                with_ours = {**env, **self._environment}
            except Exception as e:  # noqa: BLE001 - the launcher must run, whatever is wrong with us
                _let_signals_through(e)
                self._is_of_no_use(e)
            process = popen(self_, args, with_ours)
            try:
                self._given[process.pid] = env
            except Exception as e:  # noqa: BLE001 - as above
                _let_signals_through(e)
                self._log.say(f"a process that is killed will not be started again by torchrelay: {_named(e)}")
            return process

        handler._popen = start

    def _hook_agent(self, module: ModuleType) -> None:
        agent: Any = module.LocalElasticAgent
        monitor = agent._monitor_workers
        _ = agent._exit_barrier

        def look(self_: Any, group: Any) -> Any:
            try:
                if not self._gave_up and os.path.exists(self._mark):
                    self._leave_others_alone(self_, group.spec.rdzv_handler)
                    self._start_again(self_, group)
            except Exception as e:  # noqa: BLE001 - the launcher must run, whatever is wrong with us
                _let_signals_through(e)
                self._leave_to_torch(e)
            return monitor(self_, group)

        agent._monitor_workers = look

    def _leave_to_torch(self, error: Exception) -> None:
        """Let the launcher do from here on what it does without torchrelay."""
        self._gave_up = True
        self._log.say(f"this launcher goes on as without torchrelay: {_named(error)}")
        for of, name in self._replaced:
            vars(of).pop(name, None)
        if self._begin_heartbeats is not None:
            try:
                self._begin_heartbeats()
            except Exception as e:  # noqa: BLE001 - as above
                _let_signals_through(e)
                self._log.say(f"this launcher does not tell the others any more that it lives: {_named(e)}")

    def _leave_others_alone(self, agent: Any, rendezvous: Any) -> None:
        if self._alone:
            return
        self._alone = True
        self._replace(rendezvous, "num_nodes_waiting", lambda: 0)
        self._replace(rendezvous, "shutdown", lambda: True)
        self._replace(agent, "_exit_barrier", lambda: None)
        if (stop := getattr(rendezvous, "_stop_heartbeats", None)) is not None:
            stop()
            self._begin_heartbeats = getattr(rendezvous, "_start_heartbeats", None)
        self._log.say(ALONE)

    def _replace(self, of: Any, name: str, by: Callable[[], Any]) -> None:
        setattr(of, name, by)
        self._replaced.append((of, name))

    def _start_again(self, agent: Any, group: Any) -> None:
        for local_rank, handler in agent._pcontext.subprocess_handlers.items():
            code = handler.proc.poll()
            if code is None:
                _show_alive_once(handler.proc)
            if code is None or not (code < 0 or code in _ENDED_BY_ORDER):
                continue
            worker = group.workers[local_rank]
            env = self._given.pop(handler.proc.pid)
            self._log.say(f"process {handler.proc.pid} was killed; one that is parked takes its place")
            handler.proc = handler._popen(handler.proc.args, {**env, ENV_SPARE: "1"})
            worker.id = handler.proc.pid

    def _hook_registry(self, module: ModuleType) -> None:
        if self._spare and module.get_rendezvous_handler:
            module.get_rendezvous_handler = lambda params: _alone(params.run_id)  # type: ignore[attr-defined]  # a module's
            sys.argv[:] = with_node_rank(sys.argv)


def _let_signals_through(error: Exception) -> None:
    """Raise the error again if it is torch's exception of a signal that is to end the launcher. It may come anywhere."""
    ends = getattr(sys.modules.get(_SIGNALS), "SignalException", None)
    if ends is not None and isinstance(error, ends):
        raise error


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _show_alive_once(process: Any) -> None:
    """Let torch's own look, which follows at once, see the process alive.

    A process that is killed in between is then found at the next look, before torch ends all processes of the pod for it.
    """

    def poll() -> None:
        process.__dict__.pop("poll", None)

    process.poll = poll


def with_node_rank(arguments: list[str]) -> list[str]:
    """Return a spare's arguments with a number wherever `--node-rank` has none.

    A spare's pod has no number for `--node-rank $INDEX`.
    """
    fixed: list[str] = []
    expected = False
    for word in arguments:
        name, is_given, value = word.partition("=")
        if expected and not word.isdigit():
            fixed.append("0")
            if not word.startswith("-") and not os.path.exists(word):
                expected = False
                continue  # a value, and no next argument in the place of one that an empty variable has left out
        expected = word in _NODE_RANK
        fixed.append(f"{name}=0" if name in _NODE_RANK and is_given and not value.isdigit() else word)
    return [*fixed, "0"] if expected else fixed


def _alone(run_id: str) -> Any:
    """Return a meeting of one, so that processes are started and looked after as always."""
    from torch.distributed import HashStore
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

    class Alone(RendezvousHandler):
        def get_backend(self) -> str:
            return "torchrelay"

        def next_rendezvous(self) -> Any:
            return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("127.0.0.1", 0))

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            pass

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return run_id

        def shutdown(self) -> bool:
            return True

    return Alone()
