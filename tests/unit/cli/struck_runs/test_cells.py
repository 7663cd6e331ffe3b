from __future__ import annotations

from collections import Counter

import pytest

from torchrelay.cli.relay_score.entries import CorpusEntry
from torchrelay.cli.struck_runs.cells import PHASES, REFILL_APART_STEPS, RUNGS, all_cells, ranks_of, spread
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.faults import parse_fault

ONE = CorpusEntry("one", "loops", "one.py", 18, ranks=3, epoch_step=7, phases=PHASES)
TWO = CorpusEntry("two", "loops", "two.py", 15, phases=PHASES)
DRAWN_WITH_SEED_5 = [
    "one/epoch/planned/rank2/step5",
    "two/backward/kill/rank0/step4",
    "one/optimizer/stop/rank0/step11",
    "two/data/stop/rank1/step8",
    "one/forward/kill/rank0/step15",
    "two/backward/stop/rank0/step12",
]
"""Results that were written down are found by these names."""


def test_every_cell_is_a_fault_that_inject_takes() -> None:
    cells = all_cells([ONE, TWO], 0, (), (), ())
    assert len({c.name for c in cells}) == len(cells) > 80
    for cell in cells:
        entry = ONE if cell.entry == "one" else TWO
        for text in cell.faults:
            assert 1 <= parse_fault(text, entry.ranks).step <= entry.steps


def test_special_steps_are_those_of_the_entry() -> None:
    cells = [c for c in all_cells([ONE], 0, (), ("kill",), ("first",)) if c.phase in ("first", "epoch", "last")]
    assert [c.fault for c in cells] == [
        "kill:rank=0,step=1,phase=backward",
        "kill:rank=0,step=7,phase=data",
        "kill:rank=0,step=18,phase=after-step",
    ]


def test_an_entry_without_epochs_has_no_cells_for_them() -> None:
    assert not [c for c in all_cells([TWO], 0, (), (), ()) if c.phase == "epoch"]


def test_an_entry_says_in_which_phases_it_can_be_struck() -> None:
    entry = CorpusEntry("three", "loops", "three.py", 12, phases=("data", "last"))
    assert {c.phase for c in all_cells([entry], 0, (), ("kill",), ())} == {"data", "last"}


def test_a_program_strikes_itself_in_places_that_only_it_knows() -> None:
    entry = CorpusEntry("three", "side-work", "three.py", 12, places=("saving",))
    (cell,) = all_cells([entry], 0, ("saving",), ("kill",), ("first",))
    assert cell.in_place
    assert cell.fault == "kill:rank=0,phase=saving"
    assert not all_cells([entry], 0, ("saving",), ("planned",), ())


def test_a_second_failure_is_the_joiners_or_that_of_a_rank_that_stays() -> None:
    cells = {(c.kind, c.phase): c for c in all_cells([ONE], 0, (), ("joiner", "second"), ())}
    assert {phase for kind, phase in cells if kind == "joiner"} == {"prepare", "transfer", "rebuild", "verify"}
    assert {phase for kind, phase in cells if kind == "second"} == {"prepare", "rebuild", "verify"}
    assert len(all_cells([ONE], 0, (), ("joiner", "second"), ())) == len(cells)
    assert not all_cells([TWO], 0, (), ("second",), ()), "nobody would be left that holds its state"
    for (kind, phase), cell in cells.items():
        struck = cell.rank if kind == "joiner" else (cell.rank + 1) % 3
        assert cell.faults == (
            f"kill:rank={cell.rank},step={cell.step},phase=backward",
            f"kill:rank={struck},step={cell.step},phase={phase}",
        )


def test_the_controller_ends_in_the_migration_of_a_rank_that_was_killed() -> None:
    cells = all_cells([TWO], 0, (), ("controller",), ())
    assert [c.phase for c in cells] == ["prepare", "transfer", "rebuild", "verify"]
    for cell in cells:
        assert cell.faults == (
            f"kill:rank={cell.rank},step={cell.step},phase=backward",
            f"controller:rank={cell.rank},step={cell.step},phase={cell.phase}",
        )


def test_links_of_one_rank_fail_in_three_phases_where_the_program_has_them() -> None:
    cells = all_cells([ONE], 0, (), ("partition",), ())
    assert [c.phase for c in cells] == ["backward", "gate", "after-step"]
    for cell in cells:
        assert cell.faults == (f"partition:rank={cell.rank},step={cell.step},phase={cell.phase}",)
    drawn = {all_cells([ONE], seed, ("gate",), ("partition",), ())[0].rank for seed in range(20)}
    assert drawn == {0, 1, 2}
    without = CorpusEntry("three", "loops", "three.py", 12, phases=("data", "gate", "last"))
    assert [c.phase for c in all_cells([without], 0, (), ("partition",), ())] == ["gate"]


@pytest.mark.parametrize("kind", ["respawn", "restart"])
def test_a_loss_without_a_spare_is_a_kill_of_one_rank_in_three_phases(kind: str) -> None:
    cells = all_cells([TWO], 0, (), (kind,), ())
    assert [c.phase for c in cells] == ["backward", "gate", "after-step"]
    for cell in cells:
        assert cell.faults == (f"kill:rank={cell.rank},step={cell.step},phase={cell.phase}",)
        assert cell.fault == f"{kind}: {cell.faults[0]}"
        assert parse_fault(cell.faults[0], TWO.ranks).step == cell.step
    without = CorpusEntry("three", "loops", "three.py", 12, phases=("data", "gate", "last"))
    assert [c.phase for c in all_cells([without], 0, (), (kind,), ())] == ["gate"]


def test_where_all_go_back_to_copies_nothing_is_started_anew() -> None:
    copied = CorpusEntry("three", "sharded", "three.py", 12, phases=PHASES, buddy_every=1)
    assert not all_cells([copied], 0, (), ("restart",), ())
    assert len(all_cells([copied], 0, (), ("respawn", "refill"), ())) == 6


def test_two_losses_that_one_spare_survives_are_some_steps_apart_also_in_the_shortest_program() -> None:
    shortest = CorpusEntry("three", "loops", "three.py", 8, phases=PHASES)
    second = set()
    for seed in range(20):
        for cell in all_cells([shortest, ONE], seed, (), ("refill",), ()):
            entry = shortest if cell.entry == "three" else ONE
            first, again = (parse_fault(text, entry.ranks) for text in cell.faults)
            assert 2 <= first.step <= again.step - REFILL_APART_STEPS
            assert again.step <= entry.steps - 2
            second.add(again.rank)
    assert second == {0, 1, 2}


def test_cells_that_were_drawn_before_there_were_these_kinds_are_drawn_in_the_same_order() -> None:
    cells = all_cells([ONE, TWO], 5, (), (), ())
    older = [c for c in cells if c.kind not in RUNGS]
    assert [c.name for c in spread(older, 6, 5)] == DRAWN_WITH_SEED_5
    for entry in ("one", "two"):
        names = [c.name for c in spread(cells, len(cells), 5) if c.entry == entry]
        was = [name for name in DRAWN_WITH_SEED_5 if name.startswith(entry)]
        assert [name for name in names if name in was] == was


def test_two_ranks_have_no_middle() -> None:
    assert ranks_of(TWO) == {"first": 0, "last": 1}
    assert ranks_of(ONE) == {"first": 0, "middle": 1, "last": 2}


def test_ranks_are_chosen_by_name_and_by_number() -> None:
    chosen = all_cells([ONE, TWO], 0, ("gate",), ("kill",), ("last", "1", "7"))
    assert [(c.entry, c.rank) for c in chosen] == [("one", 1), ("one", 2), ("two", 1)]


@pytest.mark.parametrize(
    ("phases", "kinds", "ranks", "said"),
    [
        (("lunch",), (), (), "--phase lunch: use one of data, forward"),
        ((), ("burn",), (), "--kind burn: use one of kill, planned, stop, joiner, second, partition, controller, resp"),
        ((), (), ("best",), "--rank best: give a number"),
    ],
)
def test_what_there_is_not_is_refused(
    phases: tuple[str, ...], kinds: tuple[str, ...], ranks: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        all_cells([ONE], 0, phases, kinds, ranks)


def test_a_seed_gives_the_same_cells_and_another_one_others() -> None:
    assert all_cells([ONE], 5, (), (), ()) == all_cells([ONE], 5, (), (), ())
    assert all_cells([ONE], 5, (), (), ()) != all_cells([ONE], 6, (), (), ())


def test_a_spread_serves_every_entry_before_it_comes_back_to_one() -> None:
    cells = all_cells([ONE, TWO], 0, (), (), ())
    chosen = spread(cells, 5, 0)
    assert len(chosen) == 5
    assert sorted(Counter(c.entry for c in chosen).values()) == [2, 3]
    assert chosen == spread(cells, 5, 0)
    assert {tuple(spread(cells, 5, seed)) for seed in range(4)} != {tuple(chosen)}


def test_a_spread_of_more_than_there_is_has_each_cell_once() -> None:
    cells = all_cells([TWO], 0, (), (), ())
    assert sorted(c.name for c in spread(cells, 1000, 0)) == sorted(c.name for c in cells)


def test_a_kind_that_is_new_leaves_the_order_in_which_the_others_are_drawn() -> None:
    cells = all_cells([ONE, TWO], 0, (), (), ())
    newer = ("partition", "controller", "respawn", "refill", "restart")
    older = [c for c in cells if c.kind not in newer]
    chosen = spread(cells, len(cells), 3)
    for entry in ("one", "two"):
        before = [c for c in spread(older, len(older), 3) if c.entry == entry]
        assert [c for c in chosen if c.entry == entry and c.kind not in newer] == before
    drawn = {c.phase for seed in range(30) for c in spread(cells, 10, seed) if c.kind == "partition"}
    assert drawn == {"backward", "gate", "after-step"}
