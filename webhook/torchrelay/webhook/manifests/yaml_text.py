"""YAML as a cluster's tools read it: the same for YAML 1.1 and 1.2."""

from __future__ import annotations

import re
from typing import Any

import yaml

DOCUMENT_MARK = re.compile(r"^---(?:[ \t].*)?\n", re.MULTILINE)
_SURELY_TEXT = re.compile(r"[A-Za-z/][-A-Za-z0-9_./]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        if "\n" in data:
            return self.represent_scalar("tag:yaml.org,2002:str", data, style="|")
        # Parsers differ about 1e3, 0o7, 1_000, y and others; none does about text in quotes.
        plain = _SURELY_TEXT.fullmatch(data) and data.lower() not in _WORDS
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def dump(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def split(text: str) -> list[str]:
    """Return the documents of a file, each exactly as it is written."""
    return [part for part in DOCUMENT_MARK.split(text if text.endswith("\n") else text + "\n") if part.strip()]
