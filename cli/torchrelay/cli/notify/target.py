"""Where notices of a job go, and in which form."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from torchrelay.cli.notify.notices import NoticeKind


class BodyForm(str, Enum):
    """What is posted: every field, or the one that Slack, Mattermost and their like take."""

    JSON, SLACK = "json", "slack"


@dataclass(frozen=True)
class NotifyTarget:
    """Where notices go. `template`: the body, with $text, $hint, $kind, $job, $name, $host as JSON would write them."""

    url: str
    kinds: Collection[NoticeKind] = field(default_factory=lambda: tuple(NoticeKind))
    form: BodyForm = BodyForm.JSON
    template: str = ""
