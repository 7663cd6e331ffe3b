from __future__ import annotations

from collections import Counter

from support.scripts import SCRIPTS, failures, language, source_text, surroundings


def test_no_script_is_hidden_by_another_of_the_same_name() -> None:
    names = Counter(name for part in (failures, language, source_text, surroundings) for name in part.SCRIPTS)
    assert [name for name, times in names.items() if times > 1] == []
    assert SCRIPTS.keys() == names.keys()
