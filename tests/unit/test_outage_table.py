"""What a pod does when something is down (docs/kubernetes-install.md): tests hold each row, and it has the times that count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from torchrelay.shim.agent_link import ask

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "kubernetes-install.md").read_text("utf-8")
CHART = "unit/deploy/test_chart.py"
HELD_BY = {
    "the webhook is away, or slower than": [
        "e2e/test_webhook.py::test_a_job_starts_while_the_webhook_is_away",
        f"{CHART}::test_a_pod_that_asks_for_nothing_never_waits_for_the_webhook",
    ],
    "the webhook has a fault": [
        "unit/webhook/serving/test_review.py::test_a_fault_of_ours_lets_the_pod_start_and_is_said"
    ],
    "the API server is away": ["e2e/test_api_server.py::test_a_rank_is_lost_while_the_api_server_is_away"],
    "the API server is slow": [
        f"{CHART}::test_a_pod_that_asks_for_nothing_never_waits_for_the_webhook",
        "unit/controller/kube/jobs/test_containment.py"
        "::test_an_api_server_that_does_not_answer_for_one_job_holds_up_no_other",
    ],
    "the controller is away when a pod is made": ["e2e/test_webhook.py::test_a_job_runs_while_the_controller_is_away"],
    "the certificate authority is not published yet": [
        "unit/webhook/injection/test_inject.py::test_without_the_controllers_authority_a_pod_is_left_alone"
    ],
    "the dashboard is stuck, fails, or runs out of memory": [
        "unit/controller/kube/test_event_feed.py::test_a_listener_that_reads_nothing_holds_up_nobody_and_holds_little",
        "unit/controller/kube/test_event_feed.py::test_a_fault_of_the_feed_is_its_own",
    ],
    "the history's volume cannot be mounted": [
        f"{CHART}::test_a_single_replica_gives_the_volume_of_the_history_back_before_the_next_one_wants_it"
    ],
    "the history's volume is full, or fails while it is used": [
        "unit/dashboard/cluster/test_kept.py::test_a_folder_that_cannot_be_written_costs_the_history_alone"
    ],
    "the agent's image cannot be pulled": [f"{CHART}::test_the_agents_image_is_kept_on_nodes_where_that_is_asked_for"],
    "the agent does not come up": ["unit/shim/agent_link/test_ask.py::test_without_an_agent_it_gives_up"],
    "the agent is killed": ["e2e/test_agent.py::test_a_rank_whose_agent_was_killed_is_protected_again"],
    "a rank cannot be got ready": [
        "unit/shim/runtime/test_arming.py::test_a_rank_that_cannot_be_got_ready_trains_and_nobody_counts_on_it",
        "integration/pods/test_pod_users.py"
        "::test_where_the_volume_is_full_training_goes_on_with_one_line_that_says_why",
    ],
    "torchrelay is upgraded": ["e2e/test_upgrade.py::test_a_rank_is_lost_during_an_upgrade"],
    "torchrelay is uninstalled": [
        "unit/controller/kube/reconcilers/test_budget.py::test_a_budget_goes_when_torchrelay_is_uninstalled"
    ],
    "the webhook's Secret is deleted": [
        "unit/deploy/test_rbac.py::test_the_webhook_may_keep_its_certificate_and_tell_of_it_and_that_is_all",
        "unit/webhook/tls/test_stores.py::test_the_empty_secret_of_the_chart_is_filled_and_stays_what_it_is",
    ],
}
"""The beginning of a row -> the tests that fail where it is not so."""


def rows() -> list[tuple[str, str]]:
    """What happens, and what the pod does."""
    section = PAGE.partition("## When something is down\n")[2].partition("\n## ")[0]
    found = [line.strip("|").split(" | ", 1) for line in section.splitlines() if line.startswith("| ")]
    return [(happens.strip(), does.strip()) for happens, does in found[1:]]


def test_each_row_is_held_by_a_test_that_is_there() -> None:
    unknown = [happens for happens, _ in rows() if not happens.startswith(tuple(HELD_BY))]
    assert unknown == []
    assert len(rows()) == len(HELD_BY)
    for named in (name for names in HELD_BY.values() for name in names):
        file, _, test = named.partition("::")
        assert re.search(rf"^(async )?def {test}\(", (TESTS / file).read_text("utf-8"), re.MULTILINE), named


@pytest.mark.parametrize(
    ("begins", "seconds"), [("the agent does not come up", ask.AGENT_S), ("the API server is slow", 0)]
)
def test_the_times_of_a_row_are_those_that_count(begins: str, seconds: float) -> None:
    values = yaml.safe_load((TESTS.parent / "deploy" / "chart" / "values.yaml").read_text())["webhook"]
    (does,) = (does for happens, does in rows() if happens.startswith(begins))
    assert f"waits {seconds or values['timeoutSeconds']:g} s for" in does
    assert f"`failurePolicy: {values['failurePolicy']}`" in rows()[0][1]
