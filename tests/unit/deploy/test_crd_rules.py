"""What the rules of the resources refuse that their schemas cannot say, with CEL's own implementation."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cel_rules import RULES, WrongRuleError, compiled, refusals, rules_of
from support.custom_resources import EXAMPLES

FOLDER = Path(__file__).parents[3] / "deploy" / "crds"
SCHEMAS: dict[str, dict[str, Any]] = {
    d["spec"]["names"]["kind"]: d["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for d in (yaml.safe_load(p.read_text()) for p in sorted(FOLDER.glob("*.yaml")))
}
KINDS = sorted(SCHEMAS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_api_server_takes_the_rules_and_says_in_words_what_is_wrong(kind: str) -> None:
    rules = list(rules_of(SCHEMAS[kind]))
    assert rules
    for rule in rules:
        compiled(rule)
        assert rule.message


@pytest.mark.parametrize(
    "text", ["self.ranks == 1", "self.size()", "self.job ==", "self == 1", "self.spares.trim() == 1u"]
)
def test_a_rule_that_no_api_server_takes_is_found(text: str) -> None:
    schema = copy.deepcopy(SCHEMAS["SparePool"])
    schema["properties"]["spec"][RULES] = [{"rule": text, "message": "no"}]
    (rule,) = [found for found in rules_of(schema) if found.path == ("spec",)]
    with pytest.raises(WrongRuleError):
        compiled(rule)


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_is_taken_and_may_be_told_again(kind: str) -> None:
    assert refusals(SCHEMAS[kind], EXAMPLES[kind]) == []
    assert refusals(SCHEMAS[kind], {**EXAMPLES[kind], "status": {}}, EXAMPLES[kind]) == []


ONE = "name one of rank, pod, node, or save: true"
STAYS = "what was asked for stays as it is, for the history; make another Migration"
SUBJECT = "node and device stay as they are, for the history; make another Quarantine, and delete this one"
POOL = "a pool stays that of its job; make another SparePool"


@pytest.mark.parametrize(
    ("kind", "spec", "before", "message"),
    [
        ("Migration", {"job": "llama"}, None, ONE),
        ("Migration", {"job": "llama", "rank": 0, "pod": "llama-0"}, None, ONE),
        ("Migration", {"job": "llama", "save": True}, None, ""),
        ("Migration", {"job": "llama", "node": "n1"}, None, ""),
        ("Migration", {"job": "llama", "rank": 1}, {"job": "llama", "rank": 0}, STAYS),
        ("Migration", {"job": "llama", "rank": 0, "reason": "x"}, {"job": "llama", "rank": 0}, STAYS),
        ("Quarantine", {"node": "n1", "reason": "   "}, None, "say why, for people"),
        ("Quarantine", {"node": "n2", "reason": "x"}, {"node": "n1", "reason": "x"}, SUBJECT),
        ("Quarantine", {"node": "n1", "device": "g", "reason": "x"}, {"node": "n1", "reason": "x"}, SUBJECT),
        ("Quarantine", {"node": "n1", "reason": "x"}, {"node": "n1", "device": "g", "reason": "x"}, SUBJECT),
        ("Quarantine", {"node": "n1", "reason": "longer", "until": "x"}, {"node": "n1", "reason": "x"}, ""),
        ("SparePool", {"spares": 1, "topologyKeys": ["a", "b", "a"]}, None, "name each label once"),
        ("SparePool", {"job": "llama", "spares": 2}, {"job": "llama", "spares": 1}, ""),
        ("SparePool", {"job": "other", "spares": 1}, {"job": "llama", "spares": 1}, POOL),
        ("SparePool", {"spares": 1}, {"job": "llama", "spares": 1}, POOL),
        ("TrainingJob", {"fallback": ["respawn", "checkpoint", "respawn"]}, None, "name each rung once"),
        ("TrainingJob", {"fallback": ["respawn"], "policy": "auto"}, {"fallback": ["respawn", "checkpoint"]}, ""),
    ],
)
def test_what_a_schema_cannot_say_is_refused_with_what_to_do(
    kind: str, spec: dict[str, Any], before: dict[str, Any] | None, message: str
) -> None:
    found = refusals(SCHEMAS[kind], {"spec": spec}, None if before is None else {"spec": before})
    assert found == ([message] if message else [])
