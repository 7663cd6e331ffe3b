"""How a process ended, from what it has said."""

from __future__ import annotations

import signal

import pytest

from torchrelay.agent.pod.ended import LastWords, how_it_ended
from torchrelay.protocol.messages import Armed, Finishing, ReplicaCheck, Warm, WorkerExited
from torchrelay.protocol.transport.last_reports import CHECKS_KEPT, LastReports


@pytest.mark.parametrize(
    ("words", "exited"),
    [
        (LastWords(), WorkerExited("w", 137, signal.SIGKILL, False)),
        (LastWords(finishing=True), WorkerExited("w", 0, 0, False)),
        (LastWords(failed=3), WorkerExited("w", 3, 0, False)),
        (LastWords(failed=3, finishing=True), WorkerExited("w", 3, 0, False)),
        (LastWords(told_to_end=True), WorkerExited("w", 137, signal.SIGKILL, True)),
        (LastWords(told_to_end=True, failed=1), WorkerExited("w", 137, signal.SIGKILL, True)),
    ],
)
def test_last_words_become_the_exit_of_a_worker(words: LastWords, exited: WorkerExited) -> None:
    assert how_it_ended("w", words) == exited


def test_what_a_process_said_is_told_again_in_its_order_and_only_what_holds() -> None:
    said = LastReports()
    checks = [ReplicaCheck(boundary, {}, {}) for boundary in range(CHECKS_KEPT + 2)]
    said.keep(Finishing(9))
    said.keep(Armed(1, 2, "gloo", "2"))
    said.keep(Warm("1"))
    said.keep(Warm("2"))
    for check in checks:
        said.keep(check)
    assert said.all() == [Warm("2"), Armed(1, 2, "gloo", "2"), Finishing(9), *checks[2:]]
