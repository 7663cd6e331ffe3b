"""`kubectl torchrelay`, with an API server over HTTP in this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from support.http_api import HttpApi
from support.repository_script import script

from torchrelay.cli.cluster import commands, view
from torchrelay.cli.cluster.__main__ import main
from torchrelay.cli.cluster.api import JOBS, Cluster
from torchrelay.protocol.errors import FatalError, UserError
from torchrelay.protocol.kube.holders import pack_holders

Object = dict[str, Any]
SCHEMAS = script("generate_schemas").schemas()


def job(name: str = "llama", **status: Any) -> Object:
    ranks = [{"rank": r, "pod": f"{name}-{r}", "node": f"gpu-{r}", "state": "running"} for r in range(2)]
    known = {"phase": "Running", "worldSize": 2, "step": 7, "spares": 1, "sparesWarm": 1, "ranks": ranks}
    meta = {"name": name, "namespace": "team"}
    return {"metadata": meta, "spec": {}, "status": {**known, "protection": "protected", **status}}


def put_status(api: HttpApi, resource: str, name: str, **status: Any) -> None:
    found = api.of(resource).objects["team", name]
    api.put(resource, {**found, "status": {**found.get("status", {}), **status}})


async def controller(api: HttpApi, *statuses: Object) -> Object:
    """Does with the first Migration what a controller would, one look after the other; returns its spec."""
    await api.wait_until(lambda: bool(api.of("migrations").objects))
    await api.wait_for_watch("migrations")
    ((_, name), found) = next(iter(api.of("migrations").objects.items()))
    for status in statuses:
        put_status(api, "migrations", name, **status)
    return dict(found["spec"])


def asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, ask: Callable[[Cluster], Awaitable[Any]]
) -> Any:
    async def run() -> Any:
        async with api.served(tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            async with Cluster("team") as cluster:
                return await asyncio.wait_for(ask(cluster), 20)

    return asyncio.run(run())


@pytest.fixture
def api() -> HttpApi:
    api = HttpApi()
    api.put("trainingjobs", job())
    for number in (0, 1, 9):
        api.put("nodes", {"metadata": {"name": f"gpu-{number}"}})
    return api


def test_kubectl_finds_the_program_by_its_name() -> None:
    project = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    assert 'kubectl-torchrelay = "torchrelay.cli.cluster.__main__:main"' in project


def test_usage_is_as_a_user_of_kubectl_types_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["migrate", "llama"])
    assert "hint: kubectl torchrelay migrate --help" in capsys.readouterr().err


def test_who_moves_has_to_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--rank", "1", "--pod", "llama-1"]):
        with pytest.raises(SystemExit, match="2"):
            main(["migrate", "llama", "--reason", "fan", *more])
        assert "hint: kubectl torchrelay status llama" in capsys.readouterr().err


def test_status_shows_all_jobs_or_all_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(tmp_path, monkeypatch, api, lambda c: commands.status(c, None, False, as_json=False, watch=False))
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split()[:8] == ["llama", "Running", "2", "7", "1", "of", "1", "ready"]
    asked(tmp_path, monkeypatch, api, lambda c: commands.status(c, "llama", False, as_json=False, watch=False))
    assert "llama-1  gpu-1  running" in capsys.readouterr().out
    asked(tmp_path, monkeypatch, api, lambda c: commands.status(c, "llama", False, as_json=True, watch=False))
    assert json.loads(capsys.readouterr().out)["status"]["step"] == 7


def test_a_job_that_is_not_there_is_said_with_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi
) -> None:
    spec: Object = {"rank": 0, "reason": "fan"}
    with pytest.raises(
        UserError, match=r"no job lama in namespace team\nhint: kubectl get trainingjobs.torchrelay.dev"
    ):
        asked(tmp_path, monkeypatch, api, lambda c: commands.move(c, "lama", spec, wait=True))
    assert api.of("migrations").objects == {}


def test_a_wrong_name_is_no_job_to_which_nothing_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    for ask in (commands.history, commands.spares):
        with pytest.raises(UserError, match="no job lama in namespace team\nhint: kubectl get trainingjobs"):
            asked(tmp_path, monkeypatch, api, lambda c, ask=ask: ask(c, "lama", as_json=False))
    assert asked(tmp_path, monkeypatch, api, lambda c: commands.history(c, "llama", as_json=False)) == 0
    assert capsys.readouterr().out == "nothing was moved, and nothing was lost\n"


def test_a_node_that_is_not_there_is_not_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi
) -> None:
    for ask in (
        lambda c: commands.drain(c, "gpu-77", "new switch", 0.05),
        lambda c: commands.quarantine_add(c, "gpu-77", "", "fan"),
    ):
        with pytest.raises(UserError, match="there is no node gpu-77\nhint: kubectl get nodes"):
            asked(tmp_path, monkeypatch, api, ask)
    assert api.of("quarantines").objects == {}


def test_a_migration_that_no_controller_takes_up_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "NOBODY_S", 0.01)
    say = commands._say_that_nobody_acts

    async def both(cluster: Cluster) -> Any:
        said = asyncio.Event()

        def said_so(console: Any, name: str) -> None:
            say(console, name)
            said.set()

        async def later() -> None:
            await said.wait()
            await controller(api, {"outcome": "committed"})

        monkeypatch.setattr(commands, "_say_that_nobody_acts", said_so)
        return await asyncio.gather(commands.move(cluster, "llama", {"rank": 1, "reason": "fan"}, wait=True), later())

    assert asked(tmp_path, monkeypatch, api, both)[0] == 0
    told = capsys.readouterr().err
    assert "no controller has taken up migration llama-" in told
    assert told.index("hint: kubectl get pods -n torchrelay-system") < told.index("committed")


def test_without_a_name_the_latest_migration_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="namespace team has no migration: nothing was lost"):
        asked(tmp_path, monkeypatch, api, lambda c: commands.explain(c, None, as_json=True))
    for name, at in (("llama-b", "2026-01-02T00:00:00Z"), ("llama-a", "2026-01-03T00:00:00Z")):
        meta = {"name": name, "namespace": "team", "creationTimestamp": at}
        api.put("migrations", {"metadata": meta, "spec": {"job": "llama", "rank": 1}, "status": {}})
    asked(tmp_path, monkeypatch, api, lambda c: commands.explain(c, None, as_json=True))
    assert json.loads(capsys.readouterr().out)["metadata"]["name"] == "llama-a"


def test_a_cluster_that_cannot_be_reached_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with HttpApi().served(tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
        async with Cluster("team") as cluster:  # nobody listens there any more
            await commands.history(cluster, None, as_json=False)

    with pytest.raises(FatalError, match=r"cannot be reached.*\nhint: kubectl cluster-info"):
        asyncio.run(ask())


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ({"outcome": "committed", "reason": "every rank has done a step since"}, 0),
        ({"outcome": "abandoned", "reason": "the spare was lost"}, 1),
        ({"outcome": "refused", "phase": "refused", "reason": "there is no spare"}, 2),
    ],
)
def test_a_move_is_a_migration_that_is_followed_to_its_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: HttpApi,
    capsys: pytest.CaptureFixture[str],
    last: Object,
    code: int,
) -> None:
    async def both(cluster: Cluster) -> Any:
        spec: Object = {"rank": 1, "reason": "the fan is loud"}
        move = commands.move(cluster, "llama", spec, wait=True)
        return await asyncio.gather(move, controller(api, {"phase": "prepare"}, {"phase": "transfer"}, last))

    ended, spec = asked(tmp_path, monkeypatch, api, both)
    assert (ended, spec) == (code, {"job": "llama", "rank": 1, "reason": "the fan is loud"})
    told = capsys.readouterr().err
    assert f": {last['outcome']}: {last['reason']}\n" in told
    assert told.index("prepare") < told.index("transfer") < told.index("hint: kubectl torchrelay explain llama-")


def test_a_drain_waits_until_no_rank_of_any_job_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    async def moves() -> None:
        await api.wait_for_watch("trainingjobs")
        ranks = [{"rank": 0, "node": "gpu-0"}, {"rank": 1, "node": "gpu-9"}]
        put_status(api, "trainingjobs", "llama", ranks=ranks)

    async def both(cluster: Cluster) -> Any:
        return await asyncio.gather(commands.drain(cluster, "gpu-1", "new switch", None), moves())

    assert asked(tmp_path, monkeypatch, api, both)[0] == 0
    assert api.of("quarantines").objects["", "gpu-1"]["spec"] == {"node": "gpu-1", "reason": "new switch"}
    told = capsys.readouterr().err
    assert told.index("team/llama: 1 rank (1) to move") < told.index("gpu-1 is free")


def test_jobs_of_one_name_in_two_namespaces_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi
) -> None:
    other = job(ranks=[{"rank": 0, "node": "gpu-7"}])
    api.put("trainingjobs", {**other, "metadata": {"name": "llama", "namespace": "zeta"}})

    async def places(_: Cluster) -> set[str]:
        async with Cluster(everywhere=True) as cluster, contextlib.aclosing(cluster.states(JOBS)) as states:
            return {one["metadata"]["namespace"] for one in await anext(states)}

    assert asked(tmp_path, monkeypatch, api, places) == {"team", "zeta"}


def test_a_drain_that_takes_too_long_says_who_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path, monkeypatch, api, lambda c: commands.drain(c, "gpu-1", "new switch", 0.05)) == 1
    assert "gpu-1 is not free: team/llama: 1 rank (1) still there" in capsys.readouterr().err


def test_of_a_large_job_every_rank_counts_for_a_drain() -> None:
    packed = pack_holders({r: f"team/pod-{r}" for r in range(500)}, lambda pod: f"gpu-{int(pod[9:]) // 8}")
    large = job(worldSize=500, ranks=[], holders=packed)
    assert view.ranks_on([large], "gpu-3") == {"team/llama": [24, 25, 26, 27, 28, 29, 30, 31]}
    assert view.ranks_on([job(finishedAt="2026-01-01T00:00:00Z")], "gpu-1") == {}


def test_quarantine_is_added_once_and_cleared_by_node_device_or_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_add(c, "gpu-1", "GPU-5d0a", "XID 79"))
    assert len(api.of("quarantines").objects) == 1
    asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_list(c, as_json=False))
    assert "XID 79" in capsys.readouterr().out
    with pytest.raises(UserError, match="gpu-1 is not in quarantine"):  # one of its devices is
        asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_clear(c, "gpu-1", "a new fan"))
    asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_clear(c, "GPU-5d0a", "reset"))
    assert api.of("quarantines").objects == {}


@pytest.mark.parametrize("over", [{"cleared": "a new fan"}, {"until": "2020-01-01T00:00:00Z"}])
def test_a_quarantine_that_is_over_and_still_there_is_put_in_force_again(
    over: Object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: HttpApi,
    capsys: pytest.CaptureFixture[str],
) -> None:
    api.put("quarantines", {"metadata": {"name": "gpu-1"}, "spec": {"node": "gpu-1", "reason": "fan", **over}})
    asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_list(c, as_json=False))
    assert ("a new fan" in capsys.readouterr().out) is ("cleared" in over)
    asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_add(c, "gpu-1", "", "fan again"))
    (held,) = api.of("quarantines").objects.values()
    assert {key: value for key, value in held["spec"].items() if value is not None} == {
        "node": "gpu-1",
        "reason": "fan again",
    }


@pytest.mark.parametrize("until", ["2999-01-01T00:00:00Z", "no time"])
def test_a_quarantine_that_holds_stays_as_it_is(
    until: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi
) -> None:
    spec = {"node": "gpu-1", "reason": "fan", "until": until}
    for name, more in (("before", {"cleared": "a new fan"}), ("gpu-1", {})):
        api.put("quarantines", {"metadata": {"name": name}, "spec": {**spec, **more}})
    asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_add(c, "gpu-1", "", "fan again"))
    assert [q["spec"]["reason"] for q in api.of("quarantines").objects.values()] == ["fan", "fan"]


def test_who_may_not_write_down_why_clears_a_quarantine_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(*_: object) -> Object:
        raise UserError("the cluster refuses: you cannot patch")

    asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_add(c, "gpu-1", "", "fan"))
    monkeypatch.setattr(Cluster, "patch", refused)
    assert asked(tmp_path, monkeypatch, api, lambda c: commands.quarantine_clear(c, "gpu-1", "a new fan")) == 0
    assert api.of("quarantines").objects == {}
    assert "jobs are not told who clears gpu-1, and why: the cluster refuses: you cannot patch" in " ".join(
        capsys.readouterr().err.split()
    )


def test_spares_are_added_to_the_jobs_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="no pool of spares llama"):
        asked(tmp_path, monkeypatch, api, lambda c: commands.spares_add(c, 2, "llama"))
    pool = {"metadata": {"name": "llama", "namespace": "team"}, "spec": {"job": "llama", "spares": 1}}
    api.put("sparepools", pool)
    asked(tmp_path, monkeypatch, api, lambda c: commands.spares_add(c, 2, "llama"))
    assert api.of("sparepools").objects["team", "llama"]["spec"]["spares"] == 3
    assert "there are to be 3 from now on" in capsys.readouterr().err


def test_history_and_explain_say_who_asked_and_what_it_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    phases = [{"phase": "first_step", "at": "2026-01-01T00:00:01Z", "seconds": 0.25}]
    status = {"kind": "planned", "outcome": "committed", "rank": 1, "requestedBy": "alice", "downtimeSeconds": 0.6}
    more = {"fromPod": "llama-1", "toPod": "llama-spare-0", "phases": phases, "decisions": ["all stand after step 7"]}
    spec = {"job": "llama", "rank": 1, "reason": "the fan is loud"}
    migration = {"metadata": {"name": "llama-3f9a1c", "namespace": "team"}, "spec": spec, "status": status | more}
    api.put("migrations", migration)
    monkeypatch.setenv("COLUMNS", "200")
    asked(tmp_path, monkeypatch, api, lambda c: commands.history(c, "llama", as_json=False))
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[:9] == [
        "llama-3f9a1c",
        "1",
        "planned",
        "committed",
        "0.60",
        "s",
        "llama-1",
        "llama-spare-0",
        "alice",
    ]
    asked(tmp_path, monkeypatch, api, lambda c: commands.explain(c, "llama-3f9a1c", as_json=False))
    told = capsys.readouterr().out
    for text in ("the fan is loud", "alice", "first step", "all stand after step 7"):
        assert text in told


def printed(capsys: pytest.CaptureFixture[str]) -> list[Object]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("wait", "outcome"), [(True, "committed"), (False, None)])
def test_a_move_is_answered_with_its_migration(
    wait: bool,
    outcome: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: HttpApi,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def both(cluster: Cluster) -> Any:
        moving = commands.move(cluster, "llama", {"save": True, "reason": "so"}, wait, as_json=True)
        return await asyncio.gather(moving, controller(api, {"outcome": "committed"}) if wait else asyncio.sleep(0))

    asked(tmp_path, monkeypatch, api, both)
    (found,) = printed(capsys)
    assert (found["kind"], found["spec"]["job"]) == ("Migration", "llama")
    assert found.get("status", {}).get("outcome") == outcome


def test_what_is_changed_is_answered_with_the_resource(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = {"metadata": {"name": "llama", "namespace": "team"}, "spec": {"job": "llama", "spares": 1}}
    api.put("sparepools", pool)
    asks: list[Callable[[Cluster], Awaitable[int]]] = [
        lambda c: commands.quarantine_add(c, "gpu-1", "", "fan", as_json=True),
        lambda c: commands.quarantine_clear(c, "gpu-1", "a new fan", as_json=True),
        lambda c: commands.spares_add(c, 2, "llama", as_json=True),
    ]
    for ask in asks:
        asked(tmp_path, monkeypatch, api, ask)
    added, cleared, larger = printed(capsys)
    assert added["spec"] == {"node": "gpu-1", "reason": "fan"}
    assert cleared["spec"] == {
        **added["spec"],
        "cleared": "a new fan",
    }  # and who says so, by the webhook, before it is gone
    assert larger["spec"]["spares"] == 3


@pytest.mark.parametrize(
    ("node", "code", "outcome", "left"),
    [("gpu-9", 0, "free", []), ("gpu-1", 1, "not-free", [{"job": "team/llama", "ranks": [1]}])],
)
def test_a_drain_is_answered_as_on_a_machine(
    node: str,
    code: int,
    outcome: str,
    left: list[Object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    api: HttpApi,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask: Callable[[Cluster], Awaitable[int]] = lambda c: commands.drain(c, node, "switch", 0.05, as_json=True)  # noqa: E731 - typed
    assert asked(tmp_path, monkeypatch, api, ask) == code
    (told,) = printed(capsys)
    validate(told, SCHEMAS["drain.schema.json"])
    assert (told["node"], told["outcome"], told["left"]) == (node, outcome, left)


def test_a_stop_names_the_command_to_programs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.put("trainingjobs", {**job("over", finishedAt="2026-01-01T00:00:00Z")})
    with pytest.raises(UserError, match="is not ended by this command"):
        asked(tmp_path, monkeypatch, api, lambda c: commands.stop(c, "llama", as_json=True))
    assert asked(tmp_path, monkeypatch, api, lambda c: commands.stop(c, "over", as_json=True)) == 0
    runs, over = printed(capsys)
    for told in (runs, over):
        validate(told, SCHEMAS["stop.schema.json"])
    assert (runs["outcome"], over["outcome"]) == ("running", "ended")
    assert runs["command"].startswith("kubectl delete pods -l ")


def test_spares_without_a_command_are_listed_and_options_before_one_are_not_dropped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places: list[tuple[str, ...]] = []
    monkeypatch.setattr("torchrelay.cli.cluster.app._ask", lambda ask, *place: places.append(place) or 0)
    with pytest.raises(SystemExit, match="0"):
        main(["spares", "-n", "training"])
    assert places == [("training", "")]
    with pytest.raises(SystemExit, match="2"):
        main(["spares", "-n", "training", "add", "1", "llama"])
    assert "give options behind the command: kubectl torchrelay spares add" in capsys.readouterr().err
    assert len(places) == 1
