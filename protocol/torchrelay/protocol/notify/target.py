"""Where notices of a job go, and in which form."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.notify.notices import NoticeKind


class BodyForm(str, Enum):
    """What is posted: every field, or the one that Slack, Mattermost and their like take."""

    JSON = "json"
    SLACK = "slack"


@dataclass(frozen=True)
class NotifyTarget:
    """Where notices go. `template`: the body, with $text, $hint, $kind, $job, $name, $host as JSON would write them."""

    url: str
    kinds: Collection[NoticeKind] = field(default_factory=lambda: tuple(NoticeKind))
    form: BodyForm = BodyForm.JSON
    template: str = ""


@dataclass(frozen=True)
class TargetNames:
    """The names of the user's options, for messages about them. A URL may be a secret, so messages do not show it."""

    url: str
    kinds: str
    form: str


def read_target(names: TargetNames, url: str, kinds: str, form: str, template: str) -> NotifyTarget:
    """Make a target of these words. `kinds`: with commas, empty for all of them. Raises UserError for a wrong word."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"{names.url}: give the URL that messages are posted to, as in https://host/path")
    wanted = [word.strip() for word in (kinds or ",".join(k.value for k in NoticeKind)).split(",")]
    if unknown := [word for word in wanted if word not in {k.value for k in NoticeKind}]:
        known = ", ".join(k.value for k in NoticeKind)
        raise UserError(f"{names.kinds} {unknown[0]}: there is no such kind; give some of {known}, with commas")
    if form not in {each.value for each in BodyForm}:
        raise UserError(f"{names.form} {form}: give json or slack")
    return NotifyTarget(url, tuple(map(NoticeKind, wanted)), BodyForm(form), template)
