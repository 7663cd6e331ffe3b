"""The reckoned cost of a migration, from numbers that are simple enough to check by hand."""

from __future__ import annotations

import pytest
from support.played_gates import play_gates

from torchrelay.cli.scaling import model
from torchrelay.cli.scaling.model import Basis, Installation, LinearFit, Measured

MEASURED = Measured(LinearFit(0.1, 0.001), 20e-6, 300e-6, 10_000.0, 100.0, 256)


def _terms(ranks: int) -> dict[str, model.Term]:
    return {term.name: term for term in model.migration(ranks, Installation(), MEASURED)}


def test_a_line_goes_through_its_points() -> None:
    line = model.fit_line([(10, 1.2), (20, 1.4), (30, 1.6)])
    assert (line.fixed_s, line.per_rank_s) == (pytest.approx(1.0), pytest.approx(0.02))


def test_a_line_is_never_below_nothing() -> None:
    assert model.fit_line([(10, 2.0), (20, 1.0)]) == LinearFit(1.5, 0.0)
    assert model.fit_line([(10, 0.0), (20, 1.0)]).fixed_s == 0.0


def test_one_size_makes_no_line() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        model.fit_line([(8, 1.0), (8, 2.0)])


@pytest.mark.parametrize(("ranks", "rounds"), [(1, 0), (2, 1), (3, 2), (64, 6), (16_384, 14), (100_000, 17)])
def test_a_gate_has_as_many_rounds_as_doublings(ranks: int, rounds: int) -> None:
    assert model.rounds(ranks) == rounds


def test_published_figures_are_met_where_they_are_and_grow_between_and_beyond() -> None:
    for ranks, seconds in model.PUBLISHED_GROUPS:
        assert model.published_groups_s(ranks) == pytest.approx(seconds)
    sizes = [64, 1_024, 4_096, 16_384, 96_000, 200_000]
    found = [model.published_groups_s(ranks) for ranks in sizes]
    assert found == sorted(found)


def test_what_is_larger_than_the_largest_walk_is_extrapolated() -> None:
    assert _terms(256)["controller"].basis is Basis.MEASURED
    assert _terms(257)["controller"].basis is Basis.EXTRAPOLATED
    assert _terms(257)["communicators"].basis is Basis.PUBLISHED


def test_the_store_answers_an_address_a_round() -> None:
    assert model.store_s(1_024, MEASURED) == pytest.approx(1_024 * 11 / 10_000)


def test_the_term_that_leads_changes_with_the_size() -> None:
    assert model.leading(model.migration(64, Installation(), MEASURED)).name == "set-up of the script"
    assert model.leading(model.migration(100_000, Installation(), MEASURED)).name == "communicators"


def test_a_played_gate_in_which_nothing_is_late_takes_its_rounds() -> None:
    (took_s,) = play_gates(1_000, 1, 30e-6, 20e-6, 0.0, 0.2, 0)
    assert took_s == pytest.approx(10 * 50e-6)


def test_one_late_message_makes_all_ranks_late() -> None:
    always = play_gates(64, 3, 30e-6, 20e-6, 0.05, 0.2, 1)
    assert min(always) > 0.2


def test_about_as_many_messages_are_late_as_were_said_to_be() -> None:
    took_s = play_gates(256, 400, 0.0, 1e-6, 1e-4, 1.0, 2)
    late = sum(s >= 1.0 for s in took_s) / len(took_s)
    assert late == pytest.approx(model.late_gates_share(256, 1e-4), abs=0.05)


def test_the_same_seed_plays_the_same_gates() -> None:
    assert play_gates(64, 5, 1e-5, 1e-5, 0.01, 0.1, 3) == play_gates(64, 5, 1e-5, 1e-5, 0.01, 0.1, 3)


def test_a_played_gate_of_16384_ranks_is_what_the_model_says() -> None:
    site = Installation()
    (took_s,) = play_gates(16_384, 1, MEASURED.round_s, site.latency_s, 0.0, 0.2, 0)
    assert took_s == pytest.approx(model.gate_s(16_384, site, MEASURED))
