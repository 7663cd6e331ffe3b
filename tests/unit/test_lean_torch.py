"""The stand-in for torch's compiler in tests of many processes: eager training is the same, and the real one is at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LEAN = Path(__file__).parents[1] / "support" / "lean"
TRAINS = """
import hashlib, sys, torch
torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
model = torch.nn.Linear(4, 4)
for make in (torch.optim.Adam, torch.optim.SGD):
    optimizer = make(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        optimizer.step()
print(hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest())
print(*(name in sys.modules for name in ("torch._dynamo.eval_frame", "torch.export.exported_program", "torch._prims")))
"""
ASKS = {
    "an attribute": ("import torch; print(torch._dynamo.eval_frame.__name__)", "torch._dynamo.eval_frame"),
    "a part": ("import torch._dynamo.eval_frame; print(torch._dynamo.eval_frame.__name__)", "torch._dynamo.eval_frame"),
    "the same later": (
        "import torch, torch._dynamo; torch._dynamo.config; print(torch._dynamo.eval_frame.__name__)",
        "torch._dynamo.eval_frame",
    ),
    "export": ("import torch; print(torch.export.ExportedProgram.__module__)", "torch.export.exported_program"),
    "shapes of sharded tensors": (
        "import sys, torch; torch.Generator(); import torch.distributed.tensor; "
        "print(sys.modules['torch._meta_registrations'].aten.__name__)",
        "torch.ops.aten",
    ),
}


def said(code: str, lean: bool) -> list[str]:
    environment = {**os.environ, **({"PYTHONPATH": str(LEAN)} if lean else {})}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_eager_training_is_the_same_and_imports_no_compiler() -> None:
    (digest, *whole), (lean_digest, *lean) = said(TRAINS, lean=False), said(TRAINS, lean=True)
    assert lean_digest == digest
    assert whole == ["True"] * 3
    assert lean == ["False"] * 3


@pytest.mark.parametrize("ask", ASKS)
def test_the_real_one_comes_when_it_is_asked_for(ask: str) -> None:
    code, answer = ASKS[ask]
    assert said(code, lean=True) == [answer]
