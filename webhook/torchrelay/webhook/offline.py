"""`python -m torchrelay.webhook.offline -f FILE`, which is `torchrelay inject`: prints a manifest as the webhook would have its
pods. Asks no cluster."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.names import EXIT_USAGE
from torchrelay.webhook.injection.inject import injected
from torchrelay.webhook.injection.removal import prepared_by, without_additions
from torchrelay.webhook.manifests.templates import NAMED_LATER, templates, trainjob_pod_annotations
from torchrelay.webhook.manifests.yaml_text import dump, split
from torchrelay.webhook.settings import AUTO, VERSION, WebhookSettings, load

_FOR_THE_WEBHOOK = "its pods are prepared by the webhook when they are made; here they are only annotated"

_READY = "is injected already, and stays as it is"


@dataclass(frozen=True)
class InjectedManifest:
    """A manifest after injection. `text`: the manifest. `notes`: what the user should know."""

    text: str
    notes: list[str]


def inject_text(text: str, settings: WebhookSettings, authority: str) -> InjectedManifest:
    """Inject all pods of a manifest. Documents without pods stay as they are written.

    Raises UserError if the text is no manifest, or if annotations are wrong.
    """
    parts = []
    notes = []
    pods = 0
    for written in split(text):
        try:
            document = yaml.safe_load(written)
        except yaml.YAMLError as e:
            raise UserError(f"this is no YAML: {e}") from e
        new = copy.deepcopy(document)
        for one in _members(new):
            notes += _inject_document(one, settings, authority)
        pods += new != document
        parts.append(written if new == document else dump(new))
    if not pods and not notes:
        raise UserError("there is nothing in it that makes pods, or all of it says torchrelay.dev/inject: false")
    if pods and not authority:
        notes.append(f"{kube.ENV_CA} is empty, so the webhook has to fill it in; --ca-file gives it")
    return InjectedManifest("---\n".join(parts), notes)


def _members(document: Any) -> list[dict[str, Any]]:
    if not isinstance(document, dict):
        return []
    if document.get("kind") == "List":
        return [member for item in document.get("items") or () for member in _members(item)]
    return [document]


def _inject_document(document: dict[str, Any], settings: WebhookSettings, authority: str) -> list[str]:
    kind = document.get("kind", "")
    name = (document.get("metadata") or {}).get("name", "")
    if kind == "TrainJob":
        annotations = trainjob_pod_annotations(document)
        if kube.INJECT in annotations:
            return [f"TrainJob {name}: {_READY}"]
        annotations[kube.INJECT] = "true"
        return [f"TrainJob {name}: {_FOR_THE_WEBHOOK}"]
    found = templates(document)
    chosen = [t for t in found if kube.INJECT in ((t.get("metadata") or {}).get("annotations") or {})]
    notes = []
    for template in chosen or found:
        if version := prepared_by(template):
            if version == VERSION:
                notes.append(f"{kind} {name}: {_READY}")
                continue
            notes.append(f"{kind} {name}: what version {version} had added is replaced")
            template.update(without_additions(template))
        _annotations(template).setdefault(kube.INJECT, "true")
        grouped = kube.JOB in (template["metadata"].get("labels") or {})
        if kind in NAMED_LATER or not (name or grouped):
            notes.append(f"{kind} {name}: {_FOR_THE_WEBHOOK}")
        else:
            notes += [f"{kind} {name}: {note}" for note in _inject_template(template, kind, name, settings, authority)]
    return list(dict.fromkeys(notes))


def _annotations(template: dict[str, Any]) -> dict[str, Any]:
    metadata = template["metadata"] = template.get("metadata") or {}
    metadata["annotations"] = metadata.get("annotations") or {}
    return metadata["annotations"]  # type: ignore[no-any-return]  # of a document without a schema


def _inject_template(
    template: dict[str, Any], kind: str, name: str, settings: WebhookSettings, authority: str
) -> tuple[str, ...]:
    pod = copy.deepcopy(template)
    if kind != "Pod":
        pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    new, decision = injected(pod, settings, authority or None)
    if decision.denied:
        raise UserError(f"{kind} {name}: {decision.denied}")
    if kind != "Pod":
        del new["metadata"]["ownerReferences"]
    template.update(new)
    return decision.notes


class _CommandLine(argparse.ArgumentParser):
    """Says what is wrong as all commands do."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}\nhint: {self.prog} --help", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def command_line() -> argparse.ArgumentParser:
    what = "Print a Kubernetes manifest with its pods prepared, as the webhook would. Asks no cluster."
    example = "Example: torchrelay inject -f job.yaml > injected.yaml"
    parser = _CommandLine(prog="torchrelay inject", description=what, epilog=example)
    parser.add_argument("-f", "--filename", metavar="FILE", required=True, help="The manifest; - for stdin.")
    parser.add_argument("--config", metavar="FILE", type=Path, help="The webhook's configuration.")
    parser.add_argument("--ca-file", metavar="FILE", type=Path, help="The controller's certificate authority.")
    sidecar = "How the agent is put into pods: native where every kubelet is of 1.29 or newer. Default: classic."
    parser.add_argument("--sidecar", choices=(kube.CLASSIC, kube.NATIVE), help=sidecar)
    parser.add_argument("--image", help="The agent's image.")
    return parser


def main(arguments: list[str] | None = None) -> int:
    given = command_line().parse_args(arguments)
    try:
        settings = load(given.config) if given.config else WebhookSettings()
        # Operators with an older idea of a pod lose `restartPolicy` of an init container on the way: classic works with all.
        sidecar = given.sidecar or (kube.CLASSIC if settings.sidecar == AUTO else settings.sidecar)
        agent = dataclasses.replace(settings.agent, image=given.image) if given.image else settings.agent
        authority = _read(given.ca_file) if given.ca_file else ""
        text = sys.stdin.read() if given.filename == "-" else _read(Path(given.filename))
        done = inject_text(text, dataclasses.replace(settings, sidecar=sidecar, agent=agent), authority)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return EXIT_USAGE
    except TorchrelayError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    for note in done.notes:
        print(f"warning: {note}", file=sys.stderr)
    sys.stdout.write(done.text)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise UserError(f"{path} cannot be read: {e}") from e


if __name__ == "__main__":
    sys.exit(main())
