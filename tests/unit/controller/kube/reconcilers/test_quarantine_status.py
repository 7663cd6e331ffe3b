"""Conditions of Quarantines: what holds, and when a node is free."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.kube_world import KEY, World, in_world

from torchrelay.controller.kube.client.api import QUARANTINES
from torchrelay.controller.kube.cluster.pods import JobKey
from torchrelay.controller.kube.cluster.quarantines import Quarantined
from torchrelay.controller.kube.reconcilers.quarantine_status import QuarantineStatus
from torchrelay.controller.kube.status.quarantine_conditions import find_quarantine_conditions
from torchrelay.protocol.errors import RetryableError

NOW_S = 1_790_000_000.0
OF_TWO = {KEY: [0, 1]}


def told(quarantined: Quarantined, ranks: dict[JobKey, list[int]]) -> dict[str, tuple[bool, str, str]]:
    found = find_quarantine_conditions(quarantined, NOW_S, ranks)
    return {kind.value: (state.holds, state.reason, state.message) for kind, state in found.items()}


def test_a_node_is_drained_once_no_rank_lives_there_and_not_before() -> None:
    node = Quarantined("n1", "", "fan")
    assert told(node, OF_TWO) == {
        "InForce": (True, "Holds", "node n1 is given no rank"),
        "Drained": (False, "RanksThere", "team/llama: 2 of its ranks"),
    }
    assert told(node, {})["Drained"] == (True, "NoRanks", "no rank lives there")


def test_one_that_does_not_hold_says_why_and_drains_nothing() -> None:
    over = told(Quarantined("n1", "", "fan", until_s=NOW_S), {})
    assert over["InForce"] == (False, "TimeOver", "its time is over")
    assert over["Drained"][:2] == (False, "NotInForce")
    assert told(Quarantined("n1", "", "fan", cleared="cleared: repaired"), {})["InForce"] == (
        False,
        "Cleared",
        "cleared: repaired",
    )


def test_of_a_device_it_is_not_known_who_uses_it() -> None:
    assert told(Quarantined("n1", "GPU-1", "XID"), OF_TWO) == {
        "InForce": (True, "Holds", "device GPU-1 is given no rank")
    }


def test_of_very_many_jobs_some_are_named() -> None:
    message = told(Quarantined("n1", "", "fan"), {JobKey("team", f"j{n:02}"): [0] for n in range(20)})["Drained"][2]
    assert message.startswith("team/j00: 1 of its ranks; ")
    assert message.endswith("; and 12 jobs more")


def quarantine(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q", "uid": "u-1"}, "spec": {"node": "n1", "reason": "fan", **spec}}


def conditions(w: World) -> dict[str, tuple[str, str]]:
    listed = w.api.objects[QUARANTINES.name, "", "q"].get("status", {}).get("conditions", [])
    return {c["type"]: (c["status"], c["lastTransitionTime"]) for c in listed}


def writes(w: World) -> int:
    return sum(verb == "patch" and kind == QUARANTINES.name for verb, kind, _ in w.api.calls)


def test_they_are_written_when_something_has_changed_and_say_since_when() -> None:
    async def test(w: World) -> None:
        status = QuarantineStatus(w.api, w.ledger)  # type: ignore[arg-type]  # a stand-in
        manifest = w.api.put(QUARANTINES, quarantine())
        status.changed(manifest, False)
        there = [1]
        w.run.ranks_in = lambda agent: there if "llama-1" in agent else []  # type: ignore[method-assign]
        await status.look(NOW_S)
        assert {k: s for k, (s, _) in conditions(w).items()} == {"InForce": "True", "Drained": "False"}
        await status.look(NOW_S + 60)
        assert writes(w) == 1
        there.clear()
        await status.look(NOW_S + 120)
        now = conditions(w)
        assert now["Drained"][0] == "True"
        assert now["Drained"][1] > now["InForce"][1]
        status.changed({**manifest, "spec": {**manifest["spec"], "cleared": "repaired"}}, False)
        await status.look(NOW_S + 180)
        assert {k: s for k, (s, _) in conditions(w).items()} == {"InForce": "False", "Drained": "False"}
        again = QuarantineStatus(w.api, w.ledger)  # type: ignore[arg-type]  # of the next controller
        again.changed(
            {**w.api.objects[QUARANTINES.name, "", "q"], "spec": {**manifest["spec"], "cleared": "repaired"}}, False
        )
        count = writes(w)
        await again.look(NOW_S + 240)
        assert writes(w) == count

    in_world(test)


def test_one_that_is_deleted_is_written_no_more_and_an_api_server_that_is_away_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(w: World) -> None:
        status = QuarantineStatus(w.api, w.ledger)  # type: ignore[arg-type]  # a stand-in
        status.changed(w.api.put(QUARANTINES, quarantine()), False)
        w.api.away = True
        with pytest.raises(RetryableError):
            await status.look(NOW_S)
        w.api.away = False
        await status.look(NOW_S)
        assert conditions(w)["InForce"][0] == "True"
        status.changed(quarantine(), True)
        count = writes(w)
        await status.look(NOW_S + 60)
        assert writes(w) == count
        status.changed(quarantine(), False)
        w.api.remove(QUARANTINES, "q", None)
        await status.look(NOW_S + 120)  # it has been deleted meanwhile, which the mirror says in a moment

    with caplog.at_level(logging.WARNING):
        in_world(test)
    assert caplog.messages == []


def test_it_goes_on_until_it_is_cancelled() -> None:
    async def test(w: World) -> None:
        running = asyncio.ensure_future(QuarantineStatus(w.api, w.ledger).run())  # type: ignore[arg-type]  # a stand-in
        await asyncio.sleep(0)
        assert not running.done()
        running.cancel()

    in_world(test)
