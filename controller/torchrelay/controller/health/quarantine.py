"""Keeps which nodes and devices are given no rank, and why, until a person or the end of the reason clears them."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.health.judge import HealthJudge
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.events import QuarantineCleared
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.classify import DeviceVerdict, classify
from torchrelay.protocol.health.history import History, SeenEvidence
from torchrelay.protocol.messages import CheckDevice, ClearReply, DeviceChecked

LONG_S = 86400.0


class Quarantine:
    def __init__(self, job: Job, outbox: Outbox, judge: HealthJudge) -> None:
        self._job = job
        self._outbox = outbox
        self._judge = judge
        self._by_notice: dict[str, set[str]] = {}
        """Node or device -> the notices that it is in quarantine for, if nothing else was the first reason."""
        self._checks: dict[str, tuple[str, str]] = {}
        """Subject -> the reason for the check, and who asked for it."""

    def put(self, v: DeviceVerdict) -> None:
        subjects = [v.seen.node] if v.quarantine == k.NODE else self._devices_of(v) if v.quarantine == k.DEVICE else []
        for subject in subjects:
            if v.seen.kind == k.NODE_CONDITION and subject not in self._job.quarantine:
                self._by_notice.setdefault(subject, set())
            if v.seen.kind == k.NODE_CONDITION and subject in self._by_notice:
                self._by_notice[subject].add(v.seen.subject)
            elif v.seen.kind != k.NODE_CONDITION:
                self._by_notice.pop(subject, None)  # the end of a notice does not heal that
            self._job.quarantine.setdefault(subject, v.reason)

    def notice_over(self, seen: SeenEvidence) -> None:
        """Clear what is in quarantine for this notice only.

        The operator of the machine took the notice back, or a program that acts for one.
        """
        for subject in dict.fromkeys((seen.node, seen.subject)):
            notices = self._by_notice.get(subject, set())
            if seen.subject not in notices:
                continue
            notices.discard(seen.subject)
            if not notices:
                del self._by_notice[subject]
                if self._job.quarantine.pop(subject, None) is not None:
                    self._outbox.emit(QuarantineCleared(subject, f"it is over: {seen.detail}"))

    def check(self, subject: str, reason: str, by: str = "") -> ClearReply:
        """Have the agent look at a device or node. `checked` takes what the agent saw."""
        if subject not in self._job.quarantine:
            return self.clear(subject, reason, by)
        users = (w.node for w in self._job.workers.values() if subject in w.devices)
        node = subject if subject in self._job.nodes else next(users, "")
        if not node:
            return ClearReply(
                False, f"no node of this job is known to have {subject}; look at it, and clear it without a check"
            )
        self._checks[subject] = reason, by
        self._outbox.to_agent(node, CheckDevice(subject))
        return ClearReply(False, f"{node} looks at {subject}; if it is well, it is cleared, and told either way", True)

    def checked(self, message: DeviceChecked) -> None:
        asked = self._checks.pop(message.subject, None)
        if asked is None or message.subject not in self._job.quarantine:
            return
        if problem := message.message if not message.found else self._problem(message):
            self._outbox.log("warning", f"{message.subject} stays in quarantine, the check was not passed: {problem}")
        else:
            reason, by = asked
            self.clear(message.subject, f"{reason}; a check was passed: {message.message}", by)

    def _problem(self, message: DeviceChecked) -> str:
        """Return what the policy would act on, had it been seen in a device that is used; empty if nothing."""
        history = History()
        policy = dataclasses.replace(self._judge.policy, observe=False)
        for s in message.signals:
            seen = SeenEvidence(s.kind, 0.0, "", s.device, s.worker, s.code, s.value, s.detail)
            history.add(seen)
            # The evidence counts as if it had lasted for as long as any row waits.
            verdict = classify(history, seen, policy, LONG_S)
            if verdict.action in (k.MIGRATE, k.REPLACE, k.STOP):
                return verdict.reason
        return ""

    def clear(self, subject: str, reason: str, by: str = "") -> ClearReply:
        if self._job.quarantine.pop(subject, None) is None:
            kept = ", ".join(self._job.quarantine) or "nothing"
            return ClearReply(False, f"{subject} is not in quarantine; {kept} is")
        self._by_notice.pop(subject, None)
        for node in self._job.nodes:
            self._judge.history.forget(node, subject)
        self._outbox.emit(QuarantineCleared(subject, reason, by))
        return ClearReply(True, f"{subject} may be used again")

    def _devices_of(self, v: DeviceVerdict) -> list[str]:
        if v.seen.device:
            return [v.seen.device]
        worker = self._job.workers.get(v.seen.worker)
        return [d for d in worker.devices if d.startswith("GPU-")] if worker else []
