from __future__ import annotations

import contextlib
import ctypes
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.host_state import take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import device
from torchrelay.shim.join.catch_up import CatchUp
from torchrelay.shim.step.updates.late_writes import REBOUND, UNKNOWN

Names = dict[str, Any]
AVERAGE, MEAN = "value.script.average", "value.script.mean"


@pytest.fixture
def names() -> Names:
    return {
        "model": torch.nn.Linear(2, 2),
        "average": torch.full((20_000,), 3.0),
        "constant": torch.ones(20_000),
        "mean": torch.full((20_000,), 3.0),
        "small": torch.zeros(2),
    }


@pytest.fixture(autouse=True)
def array(names: Names) -> None:
    names["array"] = names["average"].numpy()


def go_through(
    names: Names,
    late: dict[str, int],
    act: Callable[[Names], Any],
    *,
    at_head: bool = True,
    replaced: bool = False,
    missing: frozenset[str] = frozenset(),
) -> bool:
    """The rest of a step, by a joiner that has the donor's tensors. Whether it has to fetch them again."""
    state = take(names)
    gradients = device.gradients(state)
    own = device.whole(state, state.roots)
    tail = CatchUp(own, late, gradients, missing, at_head=at_head, replaced=replaced)
    try:
        act(names)
    finally:
        tail.leave()
    return tail.check(take(names))


def uncounted(names: Names) -> None:
    names["average"].data.mul_(0.5).add_(names["constant"].data)


def swapped(names: Names) -> None:
    names["average"].data = names["average"].data * 0.5


def through_numpy(names: Names) -> None:
    names["array"][7] = 0.0


def through_an_alias(names: Names) -> None:
    names["average"].detach().data.view(100, 200)[3].zero_()


def weights(names: Names) -> None:
    for parameter in names["model"].parameters():
        parameter.data.add_(1.0)


@pytest.mark.parametrize("act", [uncounted, swapped, through_numpy, through_an_alias, weights])
@pytest.mark.parametrize("at_head", [True, False])
def test_a_write_that_torch_does_not_count_makes_the_joiner_fetch_the_donors_content(
    names: Names, act: Any, at_head: bool
) -> None:
    before = {name: t._version for name, t in (("average", names["average"]), ("weight", names["model"].weight))}
    assert go_through(names, {}, act, at_head=at_head)
    assert before == {"average": names["average"]._version, "weight": names["model"].weight._version}


def test_a_single_element_of_a_large_tensor_is_enough(names: Names) -> None:
    def act(n: Names) -> None:
        n["average"].data[12_345] = 4.0

    assert go_through(names, {}, act)


def test_counted_writes_are_fetched_again_too(names: Names) -> None:
    assert go_through(names, {AVERAGE: 1}, lambda n: n["average"].mul_(0.5))
    assert go_through(names, UNKNOWN, lambda n: n["average"].mul_(0.5))


def test_what_is_written_but_stays_as_the_donor_has_it_need_not_be_fetched(names: Names) -> None:
    assert not go_through(names, {AVERAGE: 1}, lambda n: n["average"].clamp_(max=3.0))
    assert not go_through(names, {}, lambda n: n["average"].data.clamp_(max=3.0))
    assert not go_through(names, {}, lambda n: None)


def test_a_tensor_in_the_place_of_another_is_the_donors_at_the_next_head_only(names: Names) -> None:
    def act(n: Names) -> None:
        n["average"] = n["average"] + 1

    assert go_through(names, {AVERAGE: REBOUND}, act)
    assert not go_through(names, {}, act, at_head=False)


def append(names: Names) -> None:
    names["average"].mul_(0.5)
    names["seen"] = names["average"][:1].item()


def save(names: Names) -> None:
    names["average"].mul_(0.5)
    names["seen"] = names["average"].sum().numpy()


def keep(names: Names) -> None:
    names["average"].mul_(0.5)
    names["kept"] = names["average"].mean()


def keep_in_place(names: Names) -> None:
    names["average"].mul_(0.5)
    names["constant"].add_(names["average"])


def read_first(names: Names) -> None:
    names["seen"] = names["average"].data.max().item()
    names["average"].data.clamp_(max=1.0)


def read_before_what_stays(names: Names) -> None:
    names["seen"] = names["average"].max().item()
    names["average"].data.clamp_(max=3.0)


def read_afterwards(names: Names) -> None:
    uncounted(names)
    names["seen"] = names["average"].data.max().item()


def read_before_numpy_writes(names: Names) -> None:
    names["seen"] = names["average"].max().item()
    through_numpy(names)


def keep_in_a_row(names: Names) -> None:
    names["small"][0].copy_(names["average"].sum())
    uncounted(names)


def keep_in_an_item(names: Names) -> None:
    uncounted(names)
    names["small"][0] = names["average"].sum()


def keep_past_the_counter(names: Names) -> None:
    uncounted(names)
    names["small"].data.add_(names["average"].sum())


def keep_in_a_buffer(names: Names) -> None:
    uncounted(names)
    names["model"].register_buffer("total", torch.zeros(()))
    names["model"].total.data.add_(names["average"].sum())


def swallow(names: Names) -> None:
    uncounted(names)
    try:
        names["average"].sum().item()
    except StateMismatchError:
        names["seen"] = 1


READS = "reads value.script.average, which it writes to, after its optimizer step"
KEEPS = r"keeps in .* what it computed from value.script.average"


@pytest.mark.parametrize(
    ("act", "late", "reason"),
    [
        pytest.param(append, {AVERAGE: 1}, READS, id="a number"),
        pytest.param(save, {AVERAGE: 1}, READS, id="an array"),
        pytest.param(keep, {AVERAGE: 1}, KEEPS, id="a tensor"),
        pytest.param(keep_in_place, {AVERAGE: 1}, "constant was written 1 times", id="in another tensor"),
        pytest.param(append, {AVERAGE: 2}, READS, id="another number of writes, and a number"),
        pytest.param(append, {}, READS, id="a number of what the donor did not write"),
        pytest.param(lambda n: n["average"].mul_(0.5), {AVERAGE: 2}, "written 1 times", id="another number of writes"),
        pytest.param(lambda n: n["average"].mul_(0.5), {}, "written 1 times", id="a write that the donor did not do"),
        pytest.param(lambda n: None, {AVERAGE: 1}, "written 0 times", id="a write that only the donor did"),
        pytest.param(read_first, {}, READS, id="a number, before a write that is not counted"),
        pytest.param(read_before_what_stays, {}, READS, id="a number, before a write that leaves all as it is"),
        pytest.param(read_afterwards, {}, READS, id="a number, after a write that is not counted"),
        pytest.param(read_before_numpy_writes, {}, READS, id="a number, before a write past torch"),
        pytest.param(keep_in_a_row, {}, KEEPS, id="in a row of a small tensor"),
        pytest.param(keep_in_an_item, {}, KEEPS, id="in an item of a small tensor"),
        pytest.param(keep_past_the_counter, {}, KEEPS, id="in a small tensor, not counted"),
        pytest.param(keep_in_a_buffer, {}, KEEPS, id="in a small buffer"),
        pytest.param(swallow, {}, READS, id="an error that the script swallows"),
        pytest.param(lambda n: n["average"].requires_grad_().sum().backward(), {AVERAGE: 0}, READS, id="a backward"),
    ],
)
def test_whatever_cannot_be_known_is_refused(names: Names, act: Any, late: dict[str, int], reason: str) -> None:
    with pytest.raises(StateMismatchError, match=reason):
        go_through(names, late, act)


def test_reading_what_is_not_late_and_asking_for_shapes_is_free(names: Names) -> None:
    def act(n: Names) -> None:
        uncounted(n)
        n["sum"] = n["constant"].data.sum().item() + n["average"].numel() + n["average"].data.shape[0]
        n["kept"] = n["constant"].data.mean()
        with torch.inference_mode():
            n["output"] = n["model"](torch.ones(1, 2)).sum().item()

    assert go_through(names, {}, act)
    assert names["sum"] == 60_000


def with_gradients(names: Names) -> frozenset[str]:
    names["optimizer"] = torch.optim.SGD(names["model"].parameters(), lr=0.1)
    names["model"](torch.ones(1, 2)).sum().backward()
    return frozenset({"gradient.module0.weight", "gradient.module0.bias"})


def norm(names: Names) -> None:
    names["seen"] = names["model"].weight.grad.norm().item()


def test_gradients_that_came_from_the_donor_may_be_read_and_others_not(names: Names) -> None:
    missing = with_gradients(names)
    assert not go_through(names, {}, norm)
    with pytest.raises(StateMismatchError, match="the step reads gradients after its optimizer step"):
        go_through(names, {}, norm, missing=missing)


def test_gradients_that_were_read_before_they_were_set_to_zero_cannot_be_known(names: Names) -> None:
    def act(n: Names) -> None:
        norm(n)
        n["model"].weight.grad.data.zero_()

    with_gradients(names)
    with pytest.raises(StateMismatchError, match="the step reads gradients"):
        go_through(names, {}, act)


def test_compiled_code_is_refused_since_it_is_compiled_anew_when_it_is_followed(names: Names) -> None:
    def backend(module: Any, example: Any) -> Any:
        return module.forward

    compiled = torch.compile(lambda x: (x * 2).sum(), backend=backend)
    compiled(names["constant"])
    with pytest.raises(StateMismatchError, match="runs compiled code after its optimizer step"):
        go_through(names, {}, lambda n: compiled(n["constant"]))


def halve(names: Names) -> None:
    names["mean"].mul_(0.5)


def test_what_was_written_as_often_as_by_the_donor_is_the_donors_content_and_may_be_read(names: Names) -> None:
    def act(n: Names) -> None:
        halve(n)
        halve(n)
        n["number"] = n["mean"][7].item()
        n["kept"] = n["mean"].detach().max()
        n["bytes"] = n["mean"].numpy()[:2].tobytes()
        n["list"] = n["mean"].view(100, 200)[3, :2].tolist()
        buffer = io.BytesIO()
        torch.save(n["mean"], buffer)
        n["saved"] = torch.load(io.BytesIO(buffer.getvalue()))

    assert not go_through(names, {MEAN: 2}, act), "it has the donor's content already"
    assert torch.equal(names["mean"], torch.full((20_000,), 3.0))
    assert torch.equal(names["saved"], names["mean"])
    assert (names["number"], names["kept"], names["list"]) == (3.0, torch.tensor(3.0), [3.0, 3.0])
    assert names["bytes"] == torch.tensor([3.0, 3.0]).numpy().tobytes()


def test_what_is_written_through_views_and_shared_with_other_paths_may_be_read(names: Names) -> None:
    names["alias"] = names["mean"]
    names["rows"] = names["mean"].view(100, 200)

    def act(n: Names) -> None:
        n["rows"][3].zero_()
        n["number"] = n["alias"].sum().item()

    state = take(names)
    of_it = ("mean", "alias", "rows")
    written = {path: 1 for path in device.whole(state, state.roots) if path.split(".")[-1] in of_it}
    assert written
    assert not go_through(names, written, act)
    assert names["number"] == 60_000


def computed_too_early(names: Names) -> None:
    twice = names["mean"] * 2
    halve(names)
    names["seen"] = twice.sum().item()


def read_between(names: Names) -> None:
    halve(names)
    names["seen"] = names["mean"].sum().item()
    halve(names)


def write_on(names: Names) -> None:
    halve(names)
    names["seen"] = names["mean"].sum().item()
    names["mean"].data.clamp_(max=3.0)


def swallow_the_refusal(names: Names) -> None:
    with contextlib.suppress(StateMismatchError):
        write_on(names)


def put_another(names: Names) -> None:
    halve(names)
    names["mean"].data = names["mean"].data * 1.0


def keep_an_array(names: Names) -> None:
    halve(names)
    names["array of it"] = names["mean"].numpy()[:3]


def hand_out_memory(names: Names) -> None:
    halve(names)
    names["mean"].__dlpack__()


def write_past_torch(names: Names) -> None:
    halve(names)
    names["memory"][5] = 7.0


@pytest.mark.parametrize(
    ("act", "times", "reason"),
    [
        pytest.param(computed_too_early, 1, "reads value.script.mean", id="computed before the last write"),
        pytest.param(read_between, 2, "reads value.script.mean", id="read between two writes"),
        pytest.param(write_on, 1, r"was written to \(clamp_\)", id="written to behind the reading"),
        pytest.param(swallow_the_refusal, 1, r"was written to \(clamp_\)", id="an error that the script swallows"),
        pytest.param(put_another, 1, r"was written to \(data\)", id="other memory behind the last write"),
        pytest.param(keep_an_array, 1, "keeps an array", id="an array that is kept"),
        pytest.param(hand_out_memory, 1, "hands out the memory", id="its memory"),
        pytest.param(write_past_torch, 1, "written to past torch", id="a write past torch"),
    ],
)
def test_what_was_read_at_the_wrong_moment_is_refused(names: Names, act: Any, times: int, reason: str) -> None:
    names["memory"] = (ctypes.c_float * 20_000).from_address(names["mean"].data_ptr())
    with pytest.raises(StateMismatchError, match=reason):
        go_through(names, {MEAN: times}, act)


def test_an_array_of_what_was_settled_cannot_be_written_to(names: Names) -> None:
    def act(n: Names) -> None:
        halve(n)
        n["mean"].numpy().fill(3.0)

    with pytest.raises(ValueError, match="read-only"):
        go_through(names, {MEAN: 1}, act)


def test_what_an_array_shared_the_memory_of_before_is_not_settled(names: Names) -> None:
    def act(n: Names) -> None:
        halve(n)
        n["mean"].sum().item()

    names["mean"].numpy()
    with pytest.raises(StateMismatchError, match="the step reads"):
        go_through(names, {MEAN: 1}, act)


def test_the_next_loops_model_in_the_place_of_this_ones_is_no_write_to_it(names: Names) -> None:
    def made_anew(names: Names) -> None:
        names["sum"] = sum(p.sum().item() for p in names["model"].parameters())
        names["model"] = torch.nn.Linear(2, 2)

    with pytest.raises(StateMismatchError, match="the step reads module0"):
        go_through(dict(names), {}, made_anew)
    assert not go_through(names, {}, made_anew, replaced=True)


OWN = "module0.weight"


def carried_through(names: Names, act: Callable[[Names], Any]) -> bool:
    """Go through the rest of a step whose own weights are carried, and not the donor's."""
    state = take(names)
    whole = device.whole(state, state.roots)
    tail = CatchUp(whole, {AVERAGE: 1}, carried={OWN: whole.pop(OWN)})
    try:
        with torch.no_grad():
            names["average"].mul_(0.5)
            act(names)
    finally:
        tail.leave()
    return tail.check(take(names))


def writes_to_its_own(names: Names) -> None:
    names["model"].weight.add_(1)


def binds_its_own_anew(names: Names) -> None:
    names["model"].weight = torch.nn.Parameter(names["model"].weight.detach() + 1)


@pytest.mark.parametrize("act", [writes_to_its_own, binds_its_own_anew])
def test_what_is_carried_may_be_written_to_or_bound_anew_from_what_is_known(
    names: Names, act: Callable[[Names], Any]
) -> None:
    assert carried_through(names, act)


def keeps_in_its_own(names: Names) -> None:
    names["model"].weight.add_(names["average"][0])


def binds_what_it_read_as_its_own(names: Names) -> None:
    names["model"].weight = torch.nn.Parameter(names["model"].weight.detach() + names["average"][0])


def keeps_it_in_what_it_has_replaced(names: Names) -> None:
    before = names["model"].weight
    before.add_(names["average"][0])
    names["model"].weight = torch.nn.Parameter(torch.ones(2, 2))


@pytest.mark.parametrize("act", [keeps_in_its_own, binds_what_it_read_as_its_own, keeps_it_in_what_it_has_replaced])
def test_what_is_carried_may_not_keep_what_is_not_known_to_be_the_lost_ranks(
    names: Names, act: Callable[[Names], Any]
) -> None:
    with pytest.raises(StateMismatchError, match=f"keeps in {OWN}"):
        carried_through(names, act)


def test_models_that_are_numbered_otherwise_at_the_next_head_are_not_fetched_by_their_numbers(names: Names) -> None:
    """A variable that this rank alone has bound leads to the second model first."""
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def bind(names: Names) -> None:
        last = {**names}
        names.clear()
        names.update({"a_best": second, **last})

    both = {**names, "b": first, "c": second}
    with pytest.raises(StateMismatchError, match=r"module\d.* is called module\d.* by now"):
        go_through(both, {}, bind)
    assert not go_through({**names, "b": first, "c": second}, {}, lambda _: None)
