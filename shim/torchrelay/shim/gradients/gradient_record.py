"""Describe in a journal the gradients that a rank had at a boundary, and give them to a new process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.dtensor import Spread, around, local, mesh_among, spread_of
from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of, put_gradient
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.tensors import digest


class GradientForm(NamedTuple):
    """The form of this rank's part of a gradient. `spread`: how the gradient is spread over ranks, if it is."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    spread: Spread | None
    sparse_dim: int | None = None
    """None for a dense gradient."""


class Learned(NamedTuple):
    """What steps do with the gradients of which parameters, as `KeptGradients` has learned it.

    `kept_at`: the boundary since which these are kept, under these names. Ranks compare contents there.
    """

    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    zeroed: tuple[str, ...] = ()
    zeroed_by: tuple[tuple[str, int], ...] = ()
    kept_at: int = 0


class GradientRecord(NamedTuple):
    """Paths of the parameters that had gradients; the others had none.

    `kept`: gradients that are part of the state, and come with the tensors. `zero`: gradients that were zero. `shed`: gradients
    that steps zero or drop before they add to them. `pending`: gradients for which that was not known yet.
    """

    kept: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    shed: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    forms: tuple[tuple[str, GradientForm], ...] = ()
    """The forms of gradients that have another form than their parameters."""
    digests: tuple[tuple[str, str], ...] = ()
    """The digests of gradients that no comparison of ranks has covered yet."""
    learned: Learned = Learned()

    def compared_by(self, boundary: int) -> frozenset[str]:
        """Return the paths of gradients that were compared when ranks compared contents at `boundary`."""
        return frozenset(self.kept) if self.learned.kept_at <= boundary else frozenset()


def form_of(tensor: torch.Tensor) -> GradientForm:
    part = local(tensor)
    stride = tuple(part.stride()) if part.layout is torch.strided else ()
    sparse_dim = part.sparse_dim() if part.is_sparse else None
    return GradientForm(tuple(part.shape), stride, part.dtype, spread_of(tensor), sparse_dim)


def zeros(parameter: torch.Tensor, form: GradientForm | None) -> torch.Tensor:
    """Return a gradient of zeros for a parameter, in this form; None: in the parameter's own.

    Raises StateMismatchError where a mesh that it is spread over is not here.
    """
    form = form or form_of(parameter)
    device = local(parameter).device
    if form.sparse_dim is not None:
        made = torch.sparse_coo_tensor(
            torch.empty(form.sparse_dim, 0, dtype=torch.int64),
            torch.empty(0, *form.shape[form.sparse_dim :], dtype=form.dtype),
            form.shape,
            device=device,
            check_invariants=True,
        )
    else:
        made = torch.empty_strided(form.shape, form.stride, dtype=form.dtype, device=device)
        with torch.no_grad():
            made.zero_()
    if form.spread is None:
        return made
    return around(made, form.spread, mesh_among(parameter, form.spread.groups))


def put(
    record: GradientRecord, parameters: Mapping[str, torch.Tensor], received: Mapping[str, torch.Tensor], *, own: bool
) -> set[str]:
    """Give the parameters of a process that joins the gradients of the rank that it takes over.

    `received`: contents by path, from a rank that holds the same tensors, or from what the rank itself has saved (`own`). Returns
    the paths of gradients that may differ from the lost rank's. Raises StateMismatchError where one is missing that is part of the
    state.
    """
    forms = dict(record.forms)
    unproven = {*record.shed}
    is_there = {*record.kept, *record.zero, *record.shed, *record.pending}
    carried = {*record.kept, *record.pending}
    unlike = _unlike(record, received)
    for path, parameter in parameters.items():
        gradient = zeros(parameter, forms.get(path)) if path in is_there else None
        if gradient is not None and path in carried and path in received:
            with torch.no_grad():
                local(gradient).copy_(received[path])
        put_gradient(parameter, gradient)
    lacking = sorted(path for path in record.kept if path not in received or path in unlike)
    if lacking:
        raise StateMismatchError(
            f"the gradient of {lacking[0]}, which the next step adds to, is not held by a rank with the same tensors"
        )
    known = set(received) if own else {path for path, _ in record.digests if path in received} - unlike
    return unproven | {path for path in record.pending if path not in known}


def _unlike(record: GradientRecord, received: Mapping[str, torch.Tensor]) -> set[str]:
    expected = {path: content for path, content in record.digests if path in received}
    found = digest.digests({path: received[path] for path in expected}) if expected else {}
    return {path for path, content in expected.items() if found[path] != content}


def have_gradients(state: HostState) -> bool:
    """Return whether some parameter of a model or an optimizer has a gradient now."""
    of_models = (parameter for root in state.roots for parameter in root.parameters())
    groups = (group for _, optimizer in state.optimizers for group in optimizer.param_groups)
    of_optimizers = (parameter for group in groups for parameter in group["params"])
    return any(gradient is not None for gradient in gradients_of([*of_models, *of_optimizers]))
