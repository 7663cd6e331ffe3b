from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchrelay.protocol.errors import UserError
from torchrelay.webhook.settings import WebhookSettings, load, parse


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "webhook.yaml"
    file.write_text("")
    assert load(file) == WebhookSettings()


def test_what_is_given_replaces_the_default_and_nothing_else() -> None:
    settings = parse({"agent": {"image": "x:1", "commandPrefix": ["/py"]}, "sidecar": "classic"}, "file")
    assert (settings.agent.image, settings.agent.commandPrefix, settings.sidecar) == ("x:1", ["/py"], "classic")
    assert settings.agent.resources == WebhookSettings().agent.resources
    assert settings.server == WebhookSettings().server


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "mapping"),
        ({"agnet": {}}, "unknown key agnet; known are agent"),
        ({"agent": {"imgae": "x"}}, "agent: unknown key imgae"),
        ({"agent": {"commandPrefix": "python"}}, "commandPrefix has to be like"),
        ({"agent": {"watchGPUs": 1}}, "watchGPUs"),
        ({"agent": {"image": ""}}, "agent.image is empty"),
        ({"sidecar": "maybe"}, "auto, native, classic"),
        ({"agent": {"logFormat": "xml"}}, "agent.logFormat has to be one of text, json, not 'xml'"),
        ({"agent": {"logLevel": "loud"}}, "agent.logLevel has to be one of debug, info, warning, error"),
        ({"server": {"port": "8443"}}, "port"),
    ],
)
def test_what_does_not_fit_is_named(values: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse(values, "webhook.yaml")


def test_a_file_that_is_no_yaml_or_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "webhook.yaml"
    with pytest.raises(UserError, match="cannot be read"):
        load(file)
    file.write_text("a: [")
    with pytest.raises(UserError, match="cannot be read"):
        load(file)
