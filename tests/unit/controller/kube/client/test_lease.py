"""Who leads, over time: replicas at one API in memory, minutes of it in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import Any

import pytest
from support.fake_kube import FakeApi
from support.virtual_time import run_in_virtual_time

from torchrelay.controller.kube.client import lease as module
from torchrelay.controller.kube.client.api import LEASES, Object
from torchrelay.controller.kube.client.lease import Elector
from torchrelay.controller.kube.decide.leadership import LEASE_S, RENEW_S
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.kube.kube_names import CONTROLLER_LEASE

HOME = "torchrelay-system"


class Replica:
    def __init__(self, api: Any, name: str) -> None:
        self.name, self.leads, self.renewals, self.stepped_down = name, False, 0, ""
        self.elector = Elector(api, HOME, name)
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await self.elector.win()
        self.leads = True
        try:
            await self.elector.hold(self._renewed)
        except FatalError as e:
            self.stepped_down = str(e)
        finally:
            self.leads = False

    async def _renewed(self) -> None:
        self.renewals += 1

    async def die(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def two(api: FakeApi) -> tuple[Replica, Replica]:
    """The first leads, the other one has seen it."""
    first = Replica(api, "first")
    await asyncio.sleep(1.0)
    assert first.leads
    second = Replica(api, "second")
    await asyncio.sleep(RENEW_S)
    return first, second


def test_one_leads_and_the_other_one_follows_for_as_long_as_it_renews() -> None:
    async def test() -> None:
        first, second = await two(FakeApi())
        await asyncio.sleep(600.0)
        assert (first.leads, second.leads) == (True, False)
        assert first.renewals == pytest.approx(600 / RENEW_S, abs=3)

    run_in_virtual_time(test())


def test_a_dead_leader_is_followed_by_the_other_one_after_the_lease() -> None:
    async def test() -> None:
        first, second = await two(FakeApi())
        await first.die()
        await asyncio.sleep(LEASE_S - RENEW_S - 1.0)
        assert not second.leads
        await asyncio.sleep(3 * RENEW_S)
        assert second.leads

    run_in_virtual_time(test())


def test_one_that_goes_of_its_own_accord_is_followed_at_the_next_look() -> None:
    async def test() -> None:
        first, second = await two(FakeApi())
        await first.die()
        await first.elector.release()
        await asyncio.sleep(RENEW_S + 0.1)
        assert second.leads

    run_in_virtual_time(test())


@pytest.mark.parametrize(("away_s", "back_first"), [(60.0, "first"), (62.0, "second")])
def test_after_a_minute_without_the_api_server_the_same_one_leads(away_s: float, back_first: str) -> None:
    async def test() -> None:
        api = FakeApi()
        first, second = await two(api)  # looks at 0, 3, ... and at 1, 4, ... s
        await asyncio.sleep(3.5)
        api.away = True
        await asyncio.sleep(away_s)
        assert first.leads
        api.away = False
        now_s = asyncio.get_running_loop().time()
        assert back_first == ("first" if -now_s % RENEW_S < (1.0 - now_s) % RENEW_S else "second")
        await asyncio.sleep(60.0)
        assert (first.leads, first.stepped_down, second.leads) == (True, "", False)

    run_in_virtual_time(test())


def test_whoever_was_away_alone_steps_down_when_it_is_back() -> None:
    async def test() -> None:
        api, cut_off = FakeApi(), FakeApi()
        cut_off.objects = api.objects  # the same cluster by another way
        first = Replica(cut_off, "first")
        await asyncio.sleep(1.0)
        second = Replica(api, "second")
        await asyncio.sleep(RENEW_S)
        cut_off.away = True
        await asyncio.sleep(60.0)
        assert second.leads
        cut_off.away = False
        await asyncio.sleep(2 * RENEW_S)
        assert (first.leads, second.leads) == (False, True)
        assert "second has the lease by now" in first.stepped_down

    run_in_virtual_time(test())


@pytest.mark.parametrize("skew_s", [-30.0, 30.0])
def test_the_clocks_of_others_do_not_matter(skew_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a leader writes down as the time is for people: nobody compares it with a clock of their own."""

    class Skewed(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Skewed:
            return super().now(tz) + dt.timedelta(seconds=skew_s)

    monkeypatch.setattr(module.dt, "datetime", Skewed)

    async def test() -> None:
        api = FakeApi()
        first, second = await two(api)
        await asyncio.sleep(120.0)
        assert (first.leads, second.leads) == (True, False)
        await first.die()
        await asyncio.sleep(LEASE_S - RENEW_S - 1.0)
        assert not second.leads
        await asyncio.sleep(3 * RENEW_S)
        assert second.leads

    run_in_virtual_time(test())


def test_of_two_that_want_it_at_the_same_moment_one_gets_it() -> None:
    class AtOnce(FakeApi):
        """Both read before either writes."""

        async def get(self, kind: Any, name: str, namespace: str | None = None) -> Object | None:
            found = await super().get(kind, name, namespace)
            await asyncio.sleep(0.5)
            return found

    async def test() -> None:
        api = AtOnce()
        api.put(LEASES, {"metadata": {"name": CONTROLLER_LEASE, "namespace": HOME}, "spec": {}})
        both = [Replica(api, "first"), Replica(api, "second")]
        await asyncio.sleep(60.0)
        assert sum(r.leads for r in both) == 1
        assert not any(r.task.done() for r in both)

    run_in_virtual_time(test())


def test_a_replica_is_ready_when_it_could_look_at_the_lease_and_not_before() -> None:
    async def test() -> None:
        api = FakeApi()
        api.away = True
        looks = asyncio.ensure_future(Elector(api, HOME, "me").look())  # type: ignore[arg-type]  # a stand-in
        await asyncio.sleep(30.0)
        assert not looks.done()
        api.away = False
        await asyncio.sleep(RENEW_S + 0.1)
        assert looks.done()

    run_in_virtual_time(test())
