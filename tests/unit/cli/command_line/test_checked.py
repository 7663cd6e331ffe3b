from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from torchrelay.cli.command_line import arguments
from torchrelay.cli.command_line.addresses import parse_address
from torchrelay.cli.command_line.checked import check, parse_streams
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.faults import Fault, FaultKind
from torchrelay.protocol.security.transfer_protection import CHOICES

SECRET = {"TORCHRELAY_SECRET": "0123456789abcdef"}


@dataclass
class FakeMachine:
    gpus: int = 0
    taken_ports: set[int] = field(default_factory=set)
    problems: dict[str, str] = field(default_factory=dict)

    def cpu_count(self) -> int:
        return 6

    def gpu_count(self) -> int:
        return self.gpus

    def port_is_free(self, port: int) -> bool:
        return port not in self.taken_ports

    def free_port(self) -> int:
        return 40123

    def script_problem(self, script: str) -> str | None:
        return self.problems.get(script)

    def program_problem(self, program: str) -> str | None:
        return self.problems.get(program)

    def folder_problem(self, folder: Path) -> str | None:
        return self.problems.get(str(folder))


def given(**changes: Any) -> GivenOptions:
    return dataclasses.replace(GivenOptions("train.py"), **changes)


@pytest.mark.parametrize(
    ("changes", "said", "advised"),
    [
        ({"spares": -1}, "--spares -1", "0 or more"),
        ({"nproc_per_node": "0"}, "--nproc-per-node 0", "from 1"),
        ({"nproc_per_node": "many"}, "--nproc-per-node many", "auto, cpu, gpu"),
        ({"nproc_per_node": "gpu"}, "no NVIDIA GPU", "give a number"),
        ({"nnodes": "1:4"}, "--nnodes 1:4", "give one number"),
        ({"nnodes": "0"}, "--nnodes 0", "1 or more"),
        ({"nnodes": "two"}, "--nnodes two", "1 or more"),
        ({"node_rank": 1}, "--node-rank 1", "from 0 to 0"),
        ({"inject": ("node:rank=0,step=3",)}, "--inject node:rank=0", "--nnodes 2 or more"),
        (
            {"nnodes": "2", "master_addr": "n0", "inject": ("controller:rank=2,step=3",)},
            "--inject controller:rank=2",
            "take a rank of that machine",
        ),
        ({"nnodes": "2"}, "needs --master-addr", "node-rank 0"),
        ({"master_port": 0}, "--master-port 0", "1 to 65535"),
        ({"master_port": 29600}, "--master-port 29600 is in use", "give another, or none"),
        ({"controller": "a:1"}, "--controller", "--nnodes"),
        ({"module": True, "no_python": True}, "-m and --no-python", "exclude"),
        ({"inject": ("explode:rank=0,step=1",)}, "unknown fault 'explode'", "use one of"),
        ({"inject": ("kill:rank=2,step=1",)}, "there is no rank 2", "ranks 0 to 1"),
        ({"inject": ("kill:rank=1,step=0",)}, "step", "from 1"),
        ({"inject": ("kill:rank=1",)}, "step=", "as in kill:rank=1,step=30"),
        ({"tee": "4"}, "--tee 4", "3 (both)"),
        ({"redirects": "2:1"}, "no local rank 2", "0 to 1"),
        ({"resume": Path("/no/such/folder")}, "--resume /no/such/folder", "the message of the ended run"),
        ({"script": "missing.py"}, "missing.py: no such file", "give the training script"),
        ({"script": "bin/accelerate"}, "bin/accelerate starts ranks", "torchrelay run --nproc-per-node 4 train.py"),
        (
            {"script": "accelerate.commands.launch", "module": True},
            "starts ranks",
            "that accelerate launch would start",
        ),
    ],
)
def test_bad_options_are_refused_with_what_to_do(changes: dict[str, Any], said: str, advised: str) -> None:
    machine = FakeMachine(taken_ports={29600}, problems={"missing.py": "no such file; give the training script"})
    with pytest.raises(UserError) as caught:
        check(given(**{"nproc_per_node": "2", **changes}), machine, {})
    assert said in str(caught.value)
    assert advised in str(caught.value)


def test_one_machine_gets_free_ports_and_no_secret() -> None:
    run = check(given(nproc_per_node="3", spares=1), FakeMachine(), {})
    assert (run.master_addr, run.master_port, run.controller_port, run.secret) == ("127.0.0.1", 40123, 0, None)
    assert (run.world_size, run.spares, run.controller) == (3, 1, None)


def test_several_machines_use_fixed_ports_and_the_shared_secret() -> None:
    run = check(given(nnodes="2", nproc_per_node="2", master_addr="node0"), FakeMachine(), SECRET)
    assert (run.master_port, run.controller_port, run.secret) == (29500, 29476, b"0123456789abcdef")
    assert run.world_size == 4


@pytest.mark.parametrize(
    ("environment", "said"), [({}, "is not set"), ({"TORCHRELAY_SECRET": "short"}, "is too short")]
)
def test_several_machines_without_a_good_secret_are_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check(given(nnodes="2", master_addr="node0"), FakeMachine(), environment)


def test_a_master_port_in_use_matters_only_where_it_is_used() -> None:
    there = given(nnodes="2", node_rank=1, master_addr="node0", controller="node0:29476")
    run = check(there, FakeMachine(taken_ports={29500, 29476}), SECRET)
    assert run.controller == ("node0", 29476)
    with pytest.raises(UserError, match="--master-port 29500 is in use"):
        check(dataclasses.replace(there, node_rank=0), FakeMachine(taken_ports={29500}), SECRET)


def test_every_machine_has_a_port_for_a_controller_that_it_may_start_later() -> None:
    there = given(nnodes="2", node_rank=1, master_addr="node0", controller="node0")
    assert check(there, FakeMachine(), SECRET).controller_port == 29476
    chosen = check(dataclasses.replace(there, controller_port=5000), FakeMachine(), SECRET)
    assert (chosen.controller, chosen.controller_port) == (("node0", 29476), 5000)


def test_the_same_command_on_all_machines_has_the_first_one_lead() -> None:
    same = given(nnodes="2", master_addr="node0")
    assert check(same, FakeMachine(), SECRET).controller is None
    assert check(dataclasses.replace(same, node_rank=1), FakeMachine(), SECRET).controller == ("node0", 29476)
    several = dataclasses.replace(same, controller="node0,node1:5000")
    first = check(several, FakeMachine(), SECRET)
    assert (first.controller, first.controllers) == (None, (("node0", 29476), ("node1", 5000)))
    assert check(dataclasses.replace(several, node_rank=1), FakeMachine(), SECRET).controller == ("node0", 29476)


@pytest.mark.parametrize(
    ("text", "gpus", "count"), [("7", 0, 7), ("cpu", 4, 6), ("auto", 4, 4), ("auto", 0, 6), ("gpu", 2, 2)]
)
def test_the_number_of_ranks_can_follow_the_machine(text: str, gpus: int, count: int) -> None:
    assert check(given(nproc_per_node=text), FakeMachine(gpus=gpus), {}).nproc_per_node == count


def test_an_equal_range_of_nodes_is_a_number() -> None:
    assert check(given(nnodes="1:1"), FakeMachine(), {}).nnodes == 1


def test_faults_are_parsed_against_the_world_of_all_machines() -> None:
    wide = given(nnodes="2", nproc_per_node="2", master_addr="a", inject=("kill:rank=3,step=5,phase=gate",))
    assert check(wide, FakeMachine(), SECRET).faults == (Fault(FaultKind.KILL, 3, 5, "gate"),)


def test_a_module_is_not_looked_for_as_a_file() -> None:
    machine = FakeMachine(problems={"package.train": "no such file"})
    assert check(given(script="package.train", module=True), machine, {}).script == "package.train"


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    machine = FakeMachine(problems={str(tmp_path): "this user cannot write there"})
    with pytest.raises(UserError, match=r"--events .*cannot write"):
        check(given(events=tmp_path / "events.jsonl"), machine, {})
    with pytest.raises(UserError, match=r"--log-dir .*cannot write"):
        check(given(log_dir=tmp_path), machine, {})
    with pytest.raises(UserError, match=r"--events .*is a folder"):
        check(given(events=tmp_path), FakeMachine(), {})


@pytest.mark.parametrize(
    ("text", "address"),
    [("node0:5000", ("node0", 5000)), ("node0", ("node0", 29476)), ("[fd00::1]:77", ("fd00::1", 77))],
)
def test_addresses_are_understood(text: str, address: tuple[str, int]) -> None:
    assert parse_address("--controller", text) == address


@pytest.mark.parametrize("text", ["", ":5000", "a:b", "fd00::1", "a:0", "a:70000"])
def test_addresses_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--controller"):
        parse_address("--controller", text)


def test_streams_are_given_for_all_or_by_local_rank() -> None:
    assert parse_streams("--tee", "3", 3) == (3, 3, 3)
    assert parse_streams("--tee", "0:1,2:3", 3) == (1, 0, 3)


NO_COMPILER = {"cc": "none", "gcc": "none", "clang": "none"}


@pytest.mark.parametrize(
    ("changes", "problems", "said"),
    [
        ({"inject": ("xid:rank=0,step=1",)}, NO_COMPILER, "--inject xid:rank=0.*install a C compiler"),
        ({"health_policy": Path("/no/such/policy.yaml")}, {}, "the health policy /no/such/policy.yaml cannot be read"),
        ({"watch_folders": (Path("/no/such"),)}, {}, "--watch-folder /no/such: no such folder"),
        ({"replay": Path("/no/such")}, {}, "--replay /no/such: no such file"),
    ],
)
def test_what_could_not_be_watched_or_faked_is_refused_before_anything_starts(
    changes: dict[str, Any], problems: dict[str, str], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        check(given(**changes), FakeMachine(problems=problems), {})


def test_a_policy_with_a_mistake_is_refused_with_its_row(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: {lost: {signal: gpu-lost, verdict: explode, why: w, source: s}}")
    with pytest.raises(UserError, match="rules: lost: verdict is 'explode'"):
        check(given(health_policy=policy), FakeMachine(), {})


def test_one_compiler_is_enough_and_only_faults_of_devices_need_it() -> None:
    some = {"cc": "none", "gcc": "none"}
    assert check(given(inject=("xid:rank=0,step=1",)), FakeMachine(problems=some), {}).needs_fake_machine
    killed = check(given(inject=("kill:rank=0,step=1",)), FakeMachine(problems=NO_COMPILER), {})
    assert not killed.needs_fake_machine


def test_copies_and_watches_are_checked_before_anything_starts() -> None:
    options = check(given(buddy_every=5, watch=("loss:action=stop", "replicas")), FakeMachine(), {})
    assert check(given(buddy_every=5, buddy_sync=True), FakeMachine(), {}).given.buddy_sync, "it is taken"
    assert [(w.what, w.action) for w in options.watches] == [("loss", "stop"), ("replicas", "alert")]
    for wrong, said in (
        ({"buddy_every": -2}, "--buddy-every -2"),
        ({"buddy_sync": True}, "--buddy-sync: nothing is copied"),
        ({"watch": ("loss", "loss:action=stop")}, "loss is watched already"),
        ({"watch": ("weights",)}, "unknown number 'weights'"),
        ({"inject": ("kill:rank=0,step=3,phase=copy",)}, "nothing is copied; give --buddy-every"),
    ):
        with pytest.raises(UserError) as caught:
            check(given(**wrong), FakeMachine(), {})
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("port", "where"),
    [
        (None, None),
        ("29480", ("127.0.0.1", 29480)),
        ("0.0.0.0:29480", ("0.0.0.0", 29480)),
        ("[::1]:29480", ("::1", 29480)),
    ],
)
def test_prometheus_is_answered_on_loopback_unless_an_address_is_named(port: str | None, where: object) -> None:
    assert check(given(metrics_port=port), FakeMachine(), {}).metrics == where


@pytest.mark.parametrize("port", ["0", "65535", "x", "host:", "node0", "::1:29480"])
def test_what_is_no_port_for_prometheus_is_refused(port: str) -> None:
    with pytest.raises(UserError, match="--metrics-port"):
        check(given(metrics_port=port), FakeMachine(), {})


def test_the_help_names_every_way_to_protect_tensors_between_machines() -> None:
    (option,) = arguments.TransferEncryption.__metadata__  # type: ignore[attr-defined]  # of an Annotated
    for choice in CHOICES:
        assert f"`{choice}`" in option.help


def test_where_messages_go_is_said_by_an_option_or_by_a_variable_that_nobody_else_can_list() -> None:
    of_variable = {"TORCHRELAY_NOTIFY": "https://hooks/of-mine"}
    assert check(given(), FakeMachine(), {}).notify is None
    said = check(given(), FakeMachine(), of_variable).notify
    assert said is not None
    assert said.url == "https://hooks/of-mine"
    option = check(given(notify="https://hooks/other"), FakeMachine(), of_variable).notify
    assert option is not None
    assert option.url == "https://hooks/other"
    with pytest.raises(UserError, match=r"^TORCHRELAY_NOTIFY: give the URL"):
        check(given(), FakeMachine(), {"TORCHRELAY_NOTIFY": "hooks/of-mine"})
    with pytest.raises(UserError, match=r"^--notify: give the URL"):
        check(given(notify="hooks/of-mine"), FakeMachine(), {})
