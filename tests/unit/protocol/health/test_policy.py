from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.health.kinds import KINDS
from torchrelay.protocol.health.policy_file import default_policy, read_policy

CATALOGUE = {
    *(
        8,
        11,
        13,
        25,
        31,
        32,
        37,
        38,
        39,
        40,
        41,
        43,
        44,
        45,
        46,
        48,
        54,
        60,
        62,
        63,
        64,
        66,
        67,
        68,
        69,
        70,
        71,
        72,
        74,
    ),
    *(75, 76, 77, 78, 79, 80, 82, 83, 84, 85, 86, 88, 89, *range(92, 108), 109, 110, 119, 120, 121, *range(126, 138)),
    *(139, 140, 141, 142, 143, *range(144, 173)),
}
"""The XIDs of NVIDIA's catalogue for data centre GPUs."""
ROW = "{signal: gpu-lost, verdict: replace, why: w, source: s}"


def written(folder: Path, text: str) -> str:
    path = folder / "policy.yaml"
    path.write_text(text)
    return str(path)


def test_the_default_policy_has_a_row_for_every_xid_of_the_catalogue() -> None:
    rows = {
        code
        for rule in default_policy().rules
        if rule.name == f"xid-{rule.codes[0] if rule.codes else ''}"
        for code in rule.codes
    }
    assert rows == CATALOGUE


def test_the_default_policy_speaks_of_every_kind_of_evidence() -> None:
    assert {kind for kind in KINDS if not default_policy().rules_of(kind)} == set()


def test_every_row_of_the_default_policy_names_its_source_and_a_reason_that_can_be_read() -> None:
    assert [r.name for r in default_policy().rules if len(r.why) < 15 or not r.source] == []


def test_disagreements_between_the_sources_are_written_down() -> None:
    contested = {r.codes[0] for r in default_policy().rules if r.contested}
    assert {63, 109, 136} <= contested


def test_observe_can_be_asked_for_beside_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, f"rules: {{lost: {ROW}}}")
    assert not read_policy(path).observe
    assert read_policy(path, observe=True).observe


def test_a_single_row_can_observe(tmp_path: Path) -> None:
    row = ROW.replace("}", ", observe: true}")
    assert read_policy(written(tmp_path, f"rules: {{lost: {row}}}")).rules[0].observe


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rules: {a: " + ROW.replace("gpu-lost", "gpu-gone") + "}", "rules: a: signal is 'gpu-gone'; give one of xid"),
        (
            "rules: {a: " + ROW.replace("replace", "kill") + "}",
            "rules: a: verdict is 'kill'; give one of ignore, watch",
        ),
        ("rules: {a: " + ROW.replace(", source: s", "") + "}", "rules: a: source is missing"),
        ("rules: {a: " + ROW.replace("}", ", whithin_s: 3}") + "}", "rules: a: unknown key 'whithin_s'"),
        ("rules: {a: " + ROW.replace("}", ", times: 0}") + "}", "rules: a: times is 0; give a whole number from 1"),
        ("rules: {a: " + ROW.replace("}", ", times: 2}") + "}", "rules: a: within_s is missing"),
        ("rules: {a: " + ROW.replace("}", ", sum_over: 2, within_s: 3}") + "}", "gpu-lost is no counter"),
        ("rules: {a: " + ROW.replace("}", ", at_least: 2}") + "}", "gpu-lost is no level"),
        ("rules: {a: " + ROW.replace("gpu-lost", "link-down") + "}", "link-down is a level; say from where on"),
        ("rules: {a: " + ROW.replace("}", ", match: '('}") + "}", "rules: a: match is no regular expression"),
        (
            "rules: {a: " + ROW.replace("}", ", quarantine: rack}") + "}",
            "quarantine is 'rack'; give one of no, device, node",
        ),
        ("rules: {a: " + ROW + ", a: " + ROW + "}", "line 1: a is given twice; remove one of the two"),
        ("xid: {seventy: " + ROW + "}", "xid: 'seventy' is no XID; give its number"),
        ("xid: {79: {verdict: replace, why: w}}", "xid: 79: source is missing"),
        ("xid: {79: {verdict: replace, why: w, source: s, codes: [3]}}", "signal and codes follow from the table"),
        ("limits: {storm_migrations: -1}", "limits: storm_migrations is -1; give a number from 0"),
        ("limits: {storm: 1}", "limits: unknown key 'storm'; known are burst_s"),
        ("observe: 1", "observe is 1; give true or false"),
        ("rule: {}", "unknown key 'rule'; known are observe, limits, xid, rules"),
        ("- a", "is no table"),
        ("rules: {a: [", "is no YAML"),
        (
            "rules: {a: {signal: straggler, at_least: 1.5, clear: 2, verdict: watch, why: w, source: s}}",
            "clear is on the wrong side",
        ),
    ],
)
def test_a_mistake_is_named_with_its_row_and_what_to_do(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        read_policy(written(tmp_path, text))
    assert says in str(caught.value)
    assert "policy.yaml" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the health policy .*missing\.yaml cannot be read"):
        read_policy(str(tmp_path / "missing.yaml"))


def test_a_file_that_extends_the_default_has_only_what_differs(tmp_path: Path) -> None:
    text = (
        f"extends: default\nxid: {{79: {{verdict: watch}}, 8: null}}\nlimits: {{storm_s: 60}}\nrules: {{mine: {ROW}}}"
    )
    policy = read_policy(written(tmp_path, text))
    rows, before = ({r.name: r for r in p.rules} for p in (policy, default_policy()))
    assert rows["xid-79"] == dataclasses.replace(before["xid-79"], verdict="watch")
    assert before["xid-79"].verdict != "watch"
    assert rows.keys() == before.keys() - {"xid-8"} | {"mine"}
    assert policy.limits == dataclasses.replace(default_policy().limits, storm_s=60.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends: mine", "extends is 'mine'; give default"),
        ("extends: default\nxid: {7777: null}", "xid: 7777 is to be removed, and the default policy has no such row"),
        ("extends: default\nrules: {engine-agian: {times: 3}}", "rules: engine-agian: signal is missing"),
        ("extends: default\nxid: {79: {verdict: explode}}", "xid: 79: verdict is 'explode'"),
        ("extends: default\nrules: [1]", "rules is no table"),
    ],
)
def test_a_mistake_in_a_file_that_extends_the_default_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        read_policy(written(tmp_path, text))
