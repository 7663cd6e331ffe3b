"""Scripts with torch, with and without the shim."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.run_script import run_plain, run_with_shim

pytest.importorskip("torch", reason="the running interpreter has no torch: nothing of a user's torch can be disturbed")

MODULES = """
import builtins, sys
import torch
standard = sys.stdlib_module_names
found = sorted(m for m in sys.modules if m.partition(".")[0] not in standard and m.partition(".")[0] != "torchrelay")
print(*found, sep="\\n")
print([b for b in dir(builtins) if "relay" in b], type(torch.__loader__), type(torch.__spec__.loader))
"""
EXTRA = """
import sys
before = set(sys.modules)
import torch
print(sorted(m for m in before - set(PLAIN) if m.partition(".")[0] != "torchrelay"))
"""
COMPILED = """
import torch

def layers_in_turn(x, layers):
    for layer in layers:
        x = layer(x)
    steps = iter(layers)
    while len(layers) > 5 or x is None:
        x = next(steps)(x)
    return x

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))
    def forward(self, x):
        return layers_in_turn(x, self.layers)

torch.manual_seed(0)
net = Net()
explained = torch._dynamo.explain(net)(torch.ones(2, 4))
print(explained.graph_count, explained.graph_break_count)
compiled = torch.compile(net, backend="eager", fullgraph=True)
print(compiled(torch.ones(2, 4)).tolist() == net(torch.ones(2, 4)).tolist())

@torch.compile(backend="eager")
def breaks(x, layers):
    for layer in layers:
        x = layer(x)
        torch._dynamo.graph_break()
    return x
print(breaks(torch.ones(2, 4), net.layers).tolist() == net(torch.ones(2, 4)).tolist())
print("__torchrelay__" in layers_in_turn.__code__.co_names)
"""


@pytest.mark.parametrize("inert", [True, False])
def test_nothing_but_ourselves_and_the_standard_library_is_imported(tmp_path: Path, inert: bool) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text(MODULES)
    command = [sys.executable, "script.py"]
    plain = run_plain(command, folder)
    shimmed = run_with_shim(command, folder, inert=inert)
    assert shimmed == plain
    assert "torch.optim" in shimmed.stdout.splitlines()


def test_what_we_import_from_the_standard_library_torch_imports_too(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text("import sys\nimport torch\nprint(sorted(sys.modules))\n")
    with_torch = run_plain([sys.executable, "script.py"], folder).stdout
    (folder / "script.py").write_text(EXTRA.replace("PLAIN", with_torch))
    assert run_with_shim([sys.executable, "script.py"], folder, inert=False).stdout == "[]\n"


def test_compiled_functions_have_no_new_graph_break(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text(COMPILED)
    plain = run_plain([sys.executable, "script.py"], folder)
    shimmed = run_with_shim([sys.executable, "script.py"], folder)
    assert plain.stdout.startswith("1 0\nTrue\n")
    assert plain.stdout.endswith("True\nFalse\n")
    assert shimmed.stdout == plain.stdout.removesuffix("False\n") + "True\n"
    assert (shimmed.stderr, shimmed.status) == (plain.stderr, plain.status)


def test_the_runtime_is_told_when_torch_has_been_imported(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text("import torch.nn.functional\n")
    shimmed = run_with_shim([sys.executable, "script.py"], folder)
    assert shimmed.calls[0] == "torch imported: True"
    assert len(shimmed.calls) == 2
