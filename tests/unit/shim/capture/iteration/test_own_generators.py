"""Generators of the script, on the CPython that runs the tests; seen on 3.10, 3.11, 3.12 and 3.13."""

from __future__ import annotations

import itertools
import os
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from support.failing_guard import FAILING
from support.host_state import carry, take
from torch.utils.data import DataLoader, Dataset, RandomSampler

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode, undo
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values import item_mark
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.comm.collective_records import CollectiveRecords
from torchrelay.shim.data import data_loader
from torchrelay.shim.data.iterator_replay import IteratorReplay
from torchrelay.shim.instrument.loop_tracker import LoopTracker
from torchrelay.shim.instrument.rewrite import instrument
from torchrelay.shim.join import restore_at_boundary
from torchrelay.shim.join.put_state import put_state
from torchrelay.shim.join.recorded import RecordedPlace
from torchrelay.shim.journal import last_draw
from torchrelay.shim.script import sites


class Rows(Dataset[Any]):
    """Items are made with the process's generators, as augmentation does."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(place)]) + torch.rand(1), place


class Epochs(RandomSampler):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(10, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.tolist())


@pytest.fixture(autouse=True)
def _this_file_is_the_scripts() -> Iterator[None]:
    sites.INSTRUMENTED_FILES.add(__file__)
    yield
    sites.INSTRUMENTED_FILES.discard(__file__)


@pytest.fixture
def draws() -> Iterator[IteratorReplay]:
    made = IteratorReplay()
    made.live = made.recording = True
    originals = {
        name: getattr(data_loader.LoaderIter, name) for name in ("__init__", "__next__", "_reset", "_next_index")
    }
    data_loader.install(made, lambda: True, FAILING)
    yield made
    for name, original in originals.items():
        setattr(data_loader.LoaderIter, name, original)


def loader() -> DataLoader[Any]:
    return DataLoader(Rows(), batch_size=3, shuffle=True)


def endless() -> Any:
    def endless(batches: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from batches

    return endless(loader())


def in_a_loop() -> Any:
    def moved(batches: DataLoader[Any], device: str) -> Iterator[Any]:
        while True:
            for x, y in batches:
                yield x.to(device), y.to(device)

    return moved(loader(), "cpu")


def with_epochs() -> Any:
    sampler = Epochs(Rows())
    batches = DataLoader(Rows(), batch_size=3, sampler=sampler)

    def epochs() -> Iterator[Any]:
        epoch = 0
        while True:
            sampler.set_epoch(epoch)
            yield from batches
            epoch += 1

    return epochs()


def some_epochs() -> Any:
    def limited(batches: DataLoader[Any]) -> Iterator[Any]:
        for _ in range(4):
            for batch in batches:  # noqa: UP028 - as people write it
                yield batch

    return limited(loader())


def with_workers() -> Any:
    def endless(batches: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from batches

    return endless(DataLoader(Rows(), batch_size=3, shuffle=True, num_workers=1))


def by_next() -> Any:
    def restarted(batches: DataLoader[Any]) -> Iterator[Any]:
        it = iter(batches)
        while True:
            try:
                batch = next(it)
            except StopIteration:
                it = iter(batches)
                batch = next(it)
            yield batch

    return restarted(loader())


class Meters:
    """As metric loggers have them: `log_every` hands batches on, and keeps numbers."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.delimiter = "  "

    def log_every(self, batches: Any, print_freq: int) -> Iterator[Any]:
        i = 0
        for obj in batches:
            self.times.append(float(i))
            yield obj
            if i % print_freq == 0:
                self.times[:] = [sum(self.times)]
            i += 1  # noqa: SIM113 - as people write it


def with_meters() -> Any:
    meters = Meters()

    def epochs() -> Iterator[Any]:
        while True:
            for x, y in meters.log_every(loader(), 2):
                yield x + sum(meters.times), y

    return epochs()


class Prefetcher:
    """Draws one batch ahead, as loaders that copy to a device do."""

    def __init__(self) -> None:
        self.loader = loader()

    def __iter__(self) -> Iterator[Any]:
        first, x, y = True, None, None
        for next_x, next_y in self.loader:
            with torch.no_grad():
                next_x = next_x * 2
            if not first:
                yield x, y
            else:
                first = False
            x, y = next_x, next_y
        yield x, y


def prefetched() -> Any:
    both = Prefetcher()

    def endless() -> Iterator[Any]:
        while True:
            yield from both

    return endless()


def zipped() -> Any:
    def endless(batches: DataLoader[Any]) -> Iterator[Any]:
        while True:
            yield from batches

    return ((a[0] + place, b[1]) for place, (a, b) in enumerate(zip(endless(loader()), endless(loader()))))


def with_a_block() -> Any:
    def stream(batches: DataLoader[Any]) -> Iterator[Any]:
        while True:
            try:
                with torch.no_grad():
                    for batch in itertools.islice(batches, 3):  # noqa: UP028 - as people write it
                        yield batch
            finally:
                torch.rand(1)

    return stream(loader())


def environment() -> Any:
    """Without a loader: with a generator of its own, a window of what it has seen, and numbers that are sent to it."""

    def play(seed: int) -> Iterator[Any]:
        random, seen = numpy.random.default_rng(seed), deque[float](maxlen=3)
        total, wanted = 0.0, 0
        while True:
            seen.append(float(random.random()))
            total += sum(seen) + wanted
            wanted = yield torch.tensor(total), torch.tensor(len(seen))
            wanted = wanted or 0

    return play(3)


class Curriculum:
    """What it yields depends on an array that it writes to as it does."""

    def __init__(self) -> None:
        self.weights, self.random = numpy.ones(10), torch.Generator().manual_seed(5)

    def batches(self) -> Iterator[Any]:
        while True:
            chosen = torch.multinomial(torch.from_numpy(self.weights), 3, generator=self.random)
            self.weights[chosen.numpy()] *= 0.5
            yield chosen, torch.tensor(len(chosen))


def curriculum() -> Any:
    return Curriculum().batches()


def with_cycles() -> Any:
    def signed(batches: DataLoader[Any]) -> Iterator[Any]:
        names = itertools.cycle([0.5, 1.5])
        while True:
            for (x, y), sign in zip(batches, itertools.cycle([1.0, -1.0, 2.0])):
                yield x * sign * next(names), y

    return (both[0] for both in zip(signed(loader()), itertools.cycle("abc")))


KINDS: dict[str, Callable[[], Any]] = {
    "yield from": endless,
    "a loop": in_a_loop,
    "epochs": with_epochs,
    "a number of epochs": some_epochs,
    "next": by_next,
    "meters": with_meters,
    "one ahead": prefetched,
    "zip": zipped,
    "cycles": with_cycles,
    "blocks": with_a_block,
    "no loader": environment,
    "weights": curriculum,
}


Journal = tuple[list[bytes], dict[int, Any]]


def journal(state: HostState, draws: IteratorReplay) -> Journal:
    loaders = {}
    for number in state.drawn_from:
        node = state.nodes[number]
        if node.kind is Kind.LOADER_ITER:
            record = draws.record(node.obj)
            assert record is not None
            loaders[number] = record._replace(loader=state.index[id(draws.tracks[node.obj].loader)])
    return encode.encode(state), loaders


def enter(
    namespace: dict[str, Any], draws: IteratorReplay, recorded: Journal, loop: Any = None, draw: Any = None
) -> Any:
    """What a joiner does that has built `namespace`. Returns the item of its loop."""
    activation = SimpleNamespace(iterator=loop, item=None)
    modules = SimpleNamespace(namespaces=lambda: {"script": namespace})
    engine: Any = SimpleNamespace(
        writer=SimpleNamespace(modules=modules),
        saves=SimpleNamespace(future=None),
        opens=open,
        records=CollectiveRecords(),
        trees=ModuleTrees(),
        draws=draws,
        tracker=SimpleNamespace(stack=[activation]),
    )
    put_state(engine, (), RecordedPlace(recorded[0], recorded[1], draw), None)  # type: ignore[arg-type]  # no frame of a script
    return activation.item


def come_to_the_gate(namespace: dict[str, Any], draws: IteratorReplay, nodes: list[bytes]) -> None:
    """What a joiner does at the gate of the step that it has gone through in the lost rank's place."""
    engine: Any = SimpleNamespace(
        writer=SimpleNamespace(modules=SimpleNamespace(namespaces=lambda: {"script": namespace})),
        saves=SimpleNamespace(future=None),
        opens=open,
        records=CollectiveRecords(),
        trees=ModuleTrees(),
        draws=draws,
        tracker=SimpleNamespace(stack=[]),
    )
    put_state(engine, (), RecordedPlace(nodes), None, at_gate=True)  # type: ignore[arg-type]  # the same


def stamped() -> Any:
    def stamped(batches: DataLoader[Any]) -> Iterator[Any]:
        spent, end = 0, time.perf_counter_ns()
        for batch in batches:
            yield batch
            spent += time.perf_counter_ns() - end
            end = time.perf_counter_ns()
        yield spent

    return stamped(loader())


def drawn(generator: Any, count: int) -> list[Any]:
    return [[part.tolist() for part in next(generator)] for _ in range(count)]


RUNS = """
import queue
SOURCE = queue.Queue()
def train(inside):
    while inside:
        inside.pop()()
        SOURCE.put(1)
        yield
"""


def test_a_generator_that_runs_the_training_loop_is_state_by_itself_and_has_to_run_in_a_joiner_too(
    draws: IteratorReplay,
) -> None:
    made = instrument(RUNS.encode(), "/tmp/runs.py")
    sites.register("/tmp/runs.py", made.sites, made.code, made.plain)
    names: dict[str, Any] = {"__name__": "runs", "__torchrelay__": LoopTracker()}
    exec(made.code, names)

    def running(act: Callable[[Any], None]) -> None:
        generator = names["train"]([lambda: act(generator)])
        next(generator)

    taken: list[Any] = []
    running(lambda generator: taken.append((take({"own": generator}), journal(take({"own": generator}), draws))))
    state, recorded = taken[0]
    assert not state.unknown
    running(lambda generator: enter({"own": generator}, draws, recorded))
    with pytest.raises(StateMismatchError, match="does not run where it trains"):
        enter({"own": names["train"]([])}, draws, recorded)


def test_what_is_drawn_behind_a_boundary_inside_of_a_draw_comes_again(draws: IteratorReplay) -> None:
    draws.at_boundary()
    batches = map(str, [1, 2])  # no state that goes back by itself

    class Engine:
        """Trains in its draw."""

        def __init__(self) -> None:
            self.batches = batches

        def __next__(self) -> str:
            draws.at_boundary()
            return str(draws.next(next, self.batches))

    assert draws.next(next, Engine()) == "1"
    draws.rewind()
    assert draws.next(next, batches) == "1"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9])
def test_a_joiners_yields_what_the_lost_ranks_would_have(draws: IteratorReplay, kind: str, count: int) -> None:
    torch.manual_seed(1)
    lost = KINDS[kind]()
    for _ in range(count):
        torch.rand(2)  # as dropout does
        next(lost)
    state = take({"stream": lost})
    assert not state.unknown
    recorded, at_boundary = journal(state, draws), torch.get_rng_state()
    expected = drawn(lost, 6)
    torch.manual_seed(2)
    joiner = {"stream": KINDS[kind]()}
    enter(joiner, draws, recorded)
    torch.set_rng_state(at_boundary)
    assert drawn(joiner["stream"], 6) == expected
    assert not draws.expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "within"), [(0, 1), (1, 3), (4, 1), (3, 9), (9, 2)])
def test_a_rank_that_goes_back_draws_the_same_again(draws: IteratorReplay, kind: str, before: int, within: int) -> None:
    torch.manual_seed(1)
    stream = KINDS[kind]()
    drawn(stream, before)
    state, at_boundary = take({"stream": stream}), torch.get_rng_state()
    draws.is_state = lambda obj: id(obj) in state.index
    draws.at_boundary()
    expected = [[part.tolist() for part in draws.draw(stream, next)] for _ in range(within)]
    for _ in range(2):
        undo.undo(state)
        torch.set_rng_state(at_boundary)
        draws.rewind()
        again = [[part.tolist() for part in draws.draw(stream, next)] for _ in range(within)]
        assert again == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3, 4, 5, 9])
def test_a_joiners_loop_has_the_item_that_the_lost_ranks_had(draws: IteratorReplay, kind: str, count: int) -> None:
    torch.manual_seed(1)
    lost, trees = KINDS[kind](), ModuleTrees()
    drawn(lost, count - 1)
    torch.rand(2)
    before = last_draw.before_draw(lost, draws.track_of)
    yielded = next(lost)
    item = [part.tolist() for part in yielded]
    trees.loops = [lost]
    state = take({}, trees)
    assert before is not None
    written = last_draw.write(before, yielded, state, draws.is_over)
    assert written is not None
    recorded, at_boundary = journal(state, draws), torch.get_rng_state()
    expected = drawn(lost, 6)
    torch.manual_seed(2)
    joiner = KINDS[kind]()
    again = enter({}, draws, recorded, joiner, written.plain())
    torch.set_rng_state(at_boundary)
    assert [part.tolist() for part in again] == item
    assert drawn(joiner, 6) == expected


def test_what_cannot_be_put_back_is_named_and_its_items_come_from_the_record(draws: IteratorReplay) -> None:
    def taken(source: Any) -> Iterator[Any]:
        while True:
            yield source.get()

    waiting: queue.Queue[int] = queue.Queue()
    of_set = ((torch.tensor(len(word)), word) for word in {"a"})  # a set's iterator is not one that is put anywhere
    for generator in (of_set, taken(waiting), (x for x in of_set), (x for x in {1, 2})):
        state = take({"stream": generator})
        assert [name for name, _ in state.iterators] == ["script.stream (generator)"]
        assert id(generator) not in state.index
    state = take({"stream": of_set})
    draws.is_state = lambda obj: id(obj) in state.index
    draws.at_boundary()
    first = draws.draw(of_set, next)
    undo.undo(state)
    draws.rewind()
    assert draws.draw(of_set, next)[1] == first[1] == "a"


def test_a_generator_that_reads_a_file_is_entered_where_it_stood(draws: IteratorReplay, tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n * n}\n" for n in range(3000)))

    def numbers(file: Any = None) -> Iterator[int]:
        with open(path) as file:
            for place, line in enumerate(file):
                yield place + int(line)

    lost = numbers()
    before = [next(lost) for _ in range(700)]
    state = take({"stream": lost})
    assert [name for name, _ in state.iterators] == []
    expected = [next(lost) for _ in range(900)]
    undo.undo(state)
    assert [next(lost) for _ in range(900)] == expected
    undo.undo(state)
    joiner = numbers()
    assert next(joiner) == before[0]
    carried = carry({"stream": lost}, {"stream": joiner})
    assert carried.missing == []
    assert [next(joiner) for _ in range(900)] == expected


def test_a_walk_that_goes_on_sees_it_move(draws: IteratorReplay) -> None:
    stream = in_a_loop()
    namespace, trees = {"stream": stream}, ModuleTrees()
    state = take(namespace, trees)
    next(stream)
    later = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    then, now = (s.nodes[s.index[id(stream)]].content.stand for s in (state, later))
    assert then.at < now.at
    assert {Kind.LOADER_ITER, Kind.LOADER} <= {node.kind for node in later.nodes}
    assert not Rewalk(trees, later, at_gate=False).run([], {"script": namespace}).renewed


def test_one_that_was_over_and_one_that_ends_within_the_step(draws: IteratorReplay) -> None:
    lost, joiner = some_epochs(), some_epochs()
    assert len(list(lost)) == 16
    enter({"stream": joiner}, draws, journal(take({"stream": lost}), draws))
    assert list(joiner) == []


def test_one_that_training_has_made_is_made_again() -> None:
    """By its code; what it shares with the function around it must not be bound anew."""

    def numbers() -> Iterator[Any]:
        for place in range(5):
            yield place, place

    lost = numbers()
    next(lost)
    target: dict[str, Any] = {"other": numbers}
    carry({"stream": lost, "other": numbers}, target)
    assert list(target["stream"]) == list(lost) == [(n, n) for n in range(1, 5)]


def by_key(items: list[int], key: Any) -> Iterator[int]:
    for _ in range(3):
        yield min(items, key=key)
        items.remove(min(items, key=key))


def test_one_that_is_made_again_has_the_functions_that_it_was_given() -> None:
    source: dict[str, Any] = {"smallest": by_key([3, -5, 4], lambda item: item * item)}
    assert next(source["smallest"]) == 3
    target: dict[str, Any] = {}
    carry(source, target)
    assert next(target["smallest"]) == next(source["smallest"]) == 4


def test_an_item_that_comes_out_otherwise_is_refused(draws: IteratorReplay) -> None:
    """What decides it is where nobody looks: in another module's variables."""
    hidden = {"sent": 0}

    def counted() -> Iterator[Any]:
        while True:
            yield torch.tensor([step(hidden)]), torch.tensor(0)

    def step(count: dict[str, int]) -> int:
        count["sent"] += 1
        return count["sent"]

    lost, trees = counted(), ModuleTrees()
    drawn(lost, 2)
    before = last_draw.before_draw(lost, draws.track_of)
    item = next(lost)
    trees.loops = [lost]
    state = take({}, trees)
    assert before is not None
    written = last_draw.write(before, item, state, draws.is_over)
    assert written is not None
    recorded, joiner = journal(state, draws), counted()
    assert enter({}, draws, recorded, joiner, written.plain())[0].tolist() == [3]
    with pytest.raises(StateMismatchError, match="another item"):
        enter({}, draws, recorded, joiner, written._replace(mark=item_mark.mark_of((torch.tensor([4]), 0))).plain())


def test_a_stream_that_a_generator_writes_to_takes_no_part_in_its_draws(draws: IteratorReplay) -> None:
    def shown(stream: Any) -> Iterator[int]:
        for number in range(9):
            stream.write("")
            yield number

    ends = os.pipe()
    with open(os.devnull, "w") as written, open(ends[0]) as read, open(ends[1], "w"):
        lost = shown(written)
        next(lost)
        assert last_draw.before_draw(lost, draws.track_of) is not None
        reading = shown(read)
        assert last_draw.before_draw(reading, draws.track_of) is None


def test_a_process_that_was_led_to_another_item_is_refused() -> None:
    mark = item_mark.mark_of((torch.tensor([4]), 0))
    restore_at_boundary._check_item((torch.tensor([4]), 0), mark)
    restore_at_boundary._check_item((torch.tensor([3]), 0), b"")
    with pytest.raises(StateMismatchError, match="another item there than in the lost rank"):
        restore_at_boundary._check_item((torch.tensor([3]), 0), mark)


def test_a_mark_tells_items_apart_by_form_and_content_and_leaves_out_times() -> None:
    batch = {"x": torch.arange(1000.0), "names": ["a", "b"], "took": 0.1}
    mark = item_mark.mark_of(batch)
    assert mark == item_mark.mark_of({**batch, "x": batch["x"].clone(), "took": 0.2})
    for other in (
        {**batch, "x": batch["x"] + 1},
        {**batch, "x": batch["x"].view(10, 100)},
        {**batch, "names": ["a", "c"]},
    ):
        assert mark != item_mark.mark_of(other)


def at_its_gate(draws: IteratorReplay, draws_here: int) -> tuple[int, Any]:
    """Return the time that the lost rank's generator had at its gate, and that of a process that has drawn so often itself."""
    torch.manual_seed(1)
    lost = stamped()
    next(lost)
    recorded, at_boundary = journal(take({"stream": lost}), draws), torch.get_rng_state()
    next(lost)
    nodes, then = encode.encode(take({"stream": lost})), lost.gi_frame.f_locals["end"]
    joiner = {"stream": stamped()}
    enter(joiner, draws, recorded)
    torch.set_rng_state(at_boundary)
    for _ in range(draws_here):
        next(joiner["stream"], None)
    come_to_the_gate(joiner, draws, nodes)
    frame = joiner["stream"].gi_frame
    return then, None if frame is None else frame.f_locals["end"]


def test_at_the_gate_a_generator_has_the_variables_that_the_lost_rank_had(draws: IteratorReplay) -> None:
    then, now = at_its_gate(draws, 1)
    assert now == then > 0


def test_a_generator_that_is_over_at_the_gate_is_left_alone(draws: IteratorReplay) -> None:
    assert at_its_gate(draws, 10)[1] is None
