"""The first sentence for whoever is on call, and what is left for them to do."""

from __future__ import annotations

from support import told_runs as t

from torchrelay.dashboard.headline import headline, to_do
from torchrelay.protocol import events as e

NOW_S = t.BEGAN_S + 100
FELL = e.JobFell(1, 75, "rank 1 is lost and no spare is left", 300, False, "/jit/7", 300, "")


def test_a_protected_job_that_trains_is_well() -> None:
    head = headline(t.record_of([*t.begins(), *t.progress(20, 60, 0, 3.0)]), NOW_S)
    assert (head.tone, head.text) == ("well", "All is well")
    assert head.detail == (
        "4 ranks train, 120 steps done. Any rank can be replaced, at any moment of a step. 2 spares ready."
    )


def test_a_device_in_quarantine_is_left_to_do_though_training_is_well() -> None:
    record = t.record_of(t.small_run())
    assert headline(record, NOW_S).text == "Training is well; 1 thing left for you to do"
    assert headline(record, NOW_S).detail.endswith("1 spare ready.")  # as the pool says, which is newer than progress
    (todo,) = to_do(record)
    assert todo.command == f'torchrelay quarantine clear {t.GPU} --reason "repaired" --run 7e70abbe'


def test_many_devices_in_quarantine_do_not_hide_what_else_is_to_do() -> None:
    told = [*t.begins()]
    for n in range(9):
        told += t.bad_gpu(60 + n, 2, gpu=f"GPU-{n}")
    texts = [todo.text for todo in to_do(t.record_of(told))]
    assert len(texts) == 4
    assert texts[-1] == "6 more are in quarantine, and listed below."


def test_a_job_without_protection_says_why_and_what_it_means() -> None:
    record = t.record_of([*t.begins(), (NOW_S, e.Protection("unprotected", "no spare is ready"))])
    head = headline(record, NOW_S)
    assert (head.tone, head.text) == ("notice", "Training runs, but is not protected")
    assert to_do(record)[0].text == "A failure would end this job: no spare is ready."


def test_a_rank_that_is_being_replaced_needs_nobody() -> None:
    head = headline(t.record_of([*t.begins(), *t.kill(99)[:6]]), NOW_S)
    assert (head.tone, head.text) == ("working", "Rank 0 is being replaced")
    assert head.detail.endswith("torchrelay takes care of it.")


def test_before_the_first_step_it_sets_up() -> None:
    assert headline(t.record_of([]), NOW_S).text == "Starting"
    assert headline(t.record_of(t.begins()[:2]), NOW_S).text == "Setting up"


def test_a_job_that_fell_and_starts_anew_says_from_where() -> None:
    told = [*t.begins(), (NOW_S, FELL)]
    assert headline(t.record_of(told), NOW_S).text == "The job cannot go on in its processes"
    told.append((NOW_S + 1, e.JobRestarted(1, "jit-checkpoint", "/jit/7", 300, 0, "no spare is left", ())))
    assert headline(t.record_of(told), NOW_S).text == "All processes start anew, from the checkpoint of step 300"


def test_a_job_that_ended_badly_says_how_to_go_on() -> None:
    told = [*t.begins(), (NOW_S, e.CheckpointSaved("/jit/7", 300, "torchrelay run --resume /jit/7 train.py"))]
    told += [(NOW_S, FELL), (NOW_S, e.JobFinished(75, "no spare could take over"))]
    record = t.record_of(told)
    head = headline(record, NOW_S)
    assert (head.tone, head.text) == ("act", "Ended with exit code 75")
    assert to_do(record)[0].command == "torchrelay run --resume /jit/7 train.py"


def test_a_job_that_is_done_is_over_and_nothing_is_to_do() -> None:
    record = t.record_of([*t.small_run(), (t.BEGAN_S + 145, e.JobFinished(0, ""))])
    head = headline(record, NOW_S)
    assert (head.tone, head.text) == ("over", "Finished")
    assert "2 migrations; training stood still for 2.2 s in all." in head.detail
    assert to_do(record) == ()


def test_a_job_that_nobody_hears_of_is_not_called_well() -> None:
    head = headline(t.record_of(t.small_run()), NOW_S, "it runs without its controller")
    assert (head.tone, head.detail) == ("notice", "It runs without its controller.")


def test_what_the_policy_would_not_do_by_itself_is_left_to_do() -> None:
    record = t.record_of([*t.begins(), *t.bad_gpu(60, 2, outcome="refused")])
    assert any(todo.text.startswith("torchrelay would not act by itself") for todo in to_do(record))


def test_spares_that_are_not_made_any_more_are_left_to_do() -> None:
    record = t.record_of([*t.begins(), (NOW_S, e.SparesChanged(2, 0, 0, "six came to nothing within the hour"))])
    assert to_do(record)[0].text == "Spares are short (0 of 2 spares ready): six came to nothing within the hour."
