"""Where the shim takes part in torch: process groups, collectives, forward, backward, optimizer step, data loading."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as optimizers

from torchrelay.shim.adapters import device_memory
from torchrelay.shim.adapters.parallel import comm_hooks, ddp, fsdp2, uneven_inputs
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.adapters.tensors import graph_order, own_refs, tensor_copying, tensor_data
from torchrelay.shim.adapters.torchscript import functions as torchscript
from torchrelay.shim.backends import registry
from torchrelay.shim.capture.records import after_draw
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.comm import collectives, group_methods, pipelining, point_to_point
from torchrelay.shim.comm.collective_mode import CollectiveMode
from torchrelay.shim.comm.collectives import Collectives
from torchrelay.shim.comm.functions import replace
from torchrelay.shim.comm.new_groups import NewGroups
from torchrelay.shim.comm.point_to_point import Messages
from torchrelay.shim.data import data_loader
from torchrelay.shim.data.draw_changes import StateBelowData
from torchrelay.shim.observe.data_faults import DataFaults
from torchrelay.shim.observe.device_holds import DeviceHold
from torchrelay.shim.observe.other_processes import OtherProcesses
from torchrelay.shim.observe.other_threads import OtherThreads
from torchrelay.shim.observe.thread_signals import ThreadSignals

if TYPE_CHECKING:
    from torchrelay.shim.capture.scripted_calls import ScriptedCalls
    from torchrelay.shim.runtime.runtime import Runtime
    from torchrelay.shim.runtime.script_groups import ScriptGroups
    from torchrelay.shim.step.engine import Engine


def check_supported() -> None:
    """Raise UnsupportedError where this torch lacks something that the shim leans on."""
    process_group.check_supported()
    ddp.check_supported()
    tensor_data.check_supported()
    tensor_copying.check_supported()


def install(runtime: Runtime, groups: ScriptGroups, scripted: ScriptedCalls) -> None:
    """Put hooks into torch. Each hook asks the runtime for its engine, and does nothing while there is none."""

    replace(runtime.guard, "init_process_group", groups.init_process_group)
    replace(runtime.guard, "new_group", groups.new_group)
    for name in (*collectives.FUNCTIONS, *point_to_point.FUNCTIONS):
        replace(runtime.guard, name, functools.partial(_communicate, runtime, name))
    optimizers.register_optimizer_step_pre_hook(functools.partial(_before_step, runtime))
    optimizers.register_optimizer_step_post_hook(functools.partial(_after_step, runtime))
    torchscript.watch(functools.partial(runtime.guard.tell, scripted.called))
    _wrap_backward(runtime)
    _watch_device(runtime)


def _watch_device(runtime: Runtime) -> None:
    """Watch the device from torch's import on: a script may share memory, and capture graphs, before it has a process group."""
    holds = runtime.device_holds
    device_memory.watch_graphs(
        runtime.guard,
        lambda: holds.capture_begins(registry.called_on_devices()),
        lambda: holds.capture_ends(registry.called_on_devices, sys._getframe(1)),
    )
    device_memory.watch_shared_memory(runtime.guard, lambda: holds.tell(DeviceHold.SHARED, sys._getframe(1)))


def _communicate(runtime: Runtime, name: str, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    runtime.device_holds.communicates()
    ours = runtime.engine.communications.get(name) if runtime.engine is not None else None
    return plain(*args, **kwargs) if ours is None else ours(plain, *args, **kwargs)


def install_for(engine: Engine) -> None:
    """Install the hooks that need an engine from the start."""
    guard = engine.guard
    calls = Collectives(engine)
    calls.wrap_wait()
    engine.communications = calls.handlers() | Messages(engine, calls).handlers()
    engine.new_groups = NewGroups(calls, engine.comms, lambda error: engine.unprotected.fails_closed(error))
    group_methods.install(calls)
    comm_hooks.install(calls.left_alone)
    ddp.install(functools.partial(guard.tell, engine.ddp_built), functools.partial(_forward, engine, calls))
    data_loader.install(engine.draws, engine.on_training_thread, guard)

    def loader_created(iterator: Any) -> None:
        engine.tracker.loader_created(iterator)
        engine.writer.loader_created(iterator)

    engine.draws.on_create = loader_created
    _tell_of_draws(engine)
    engine.draws.in_loop = lambda: engine.tracker.drawing is not None and engine.tracker.drawing.heads > 0
    engine.tracker.is_over = engine.draws.is_over
    engine.draws.on_draw = engine.alive
    OtherProcesses(engine).install()
    OtherThreads(engine).install()
    ThreadSignals(engine).install()
    own_refs.install()
    tensor_copying.watch(engine.updates.overwritten.about_to_overwrite)
    uneven_inputs.watch(functools.partial(guard.tell, engine.unprotected.joins_unevenly))
    if engine.faults is not None:
        DataFaults(engine).install()


def _tell_of_draws(engine: Engine) -> None:
    """Tell draws what they have to know of the step that they are in."""

    def state() -> HostState:
        return HostState() if engine.commit is None else engine.commit.state

    engine.draws.in_body = lambda: engine.commit is not None and engine.step.is_before_update

    def changed() -> Callable[[], None]:
        boundary = state()
        frames = [node.obj for node in boundary.nodes if node.kind is Kind.FRAME]
        return after_draw.as_walked(engine.writer.walk(frames, boundary, aside=True), boundary)

    engine.draws.leaves_changed = changed
    engine.draws.leaves_behind = lambda loaders: after_draw.left_behind(state(), loaders)
    engine.draws.state_ids = lambda: state().index
    engine.draws.about_to_draw = lambda loader, iterator: StateBelowData(state(), loader, iterator).done
    engine.draws.other_generators = lambda: after_draw.generator_states(state())


def _closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs.get("closure") or next((a for a in args[1:] if callable(a)), None)


def _before_step(runtime: Runtime, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass the gate. Where a closure computes the gradients inside of the step, the gate comes at the closure's end.

    See `closure_steps` for optimizers whose gate comes behind the step.
    """
    engine = runtime.engine
    if engine is None:
        return None
    frame = sys._getframe(1)
    closure = _closure_of(args, kwargs)
    whole = engine.updates.whole
    begun = engine.guard.tell(whole.begins, frame, optimizer, closure=closure is not None)
    if closure is None:
        if not begun:
            engine.updates.before_step(frame, optimizer)
        return None

    @functools.wraps(closure)
    def gated(*given: Any, **named: Any) -> Any:
        result = closure(*given, **named)
        if engine.takes_part():
            told = engine.guard.tell(whole.told, result)
            result = result if told is None else told
        if whole.open:
            return result  # the gate comes behind the step
        if not passed:
            passed.append(True)
            engine.updates.before_step(frame, optimizer)
        elif engine.takes_part():
            engine.guard.tell(engine.reporter.evaluated_again, frame)
        return result

    passed: list[bool] = []
    new_args = tuple(gated if a is closure else a for a in args)
    new_kwargs = {k: gated if v is closure else v for k, v in kwargs.items()}
    return new_args, new_kwargs


def _after_step(runtime: Runtime, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    engine = runtime.engine
    if engine is not None:
        if engine.guard.tell(engine.updates.whole.ended):
            engine.updates.before_step(sys._getframe(1), optimizer, whole=True)
        engine.updates.after_step()


def _forward(engine: Engine, calls: Collectives, wrapped: Any, plain: Callable[[], Any]) -> Any:
    """Call the part of a data parallel forward that communicates."""

    def alone() -> Any:
        with calls.left_alone():
            return plain()

    return engine.guard.call(functools.partial(_guarded_forward, engine, wrapped), alone)


def _guarded_forward(engine: Engine, wrapped: Any, call: Callable[[], Any]) -> Any:
    taking_part = engine.takes_part()
    if taking_part and engine.shadow is not None:
        engine.shadow.before_forward(wrapped)
    elif taking_part and engine.way_in is not None:
        ddp.without_peers(wrapped)  # a step of a loop that is over
    engine.layouts.forward_begins(wrapped)
    if not taking_part:
        return call()
    if torch.is_grad_enabled():
        engine.inject("forward")
    while True:
        engine.may_wait(True)  # for buffers from rank 0, and for the layout of rebuilt buckets
        try:
            result = call()
            is_late = engine.mode() == "repeat" and wrapped.will_sync_module_buffers()
            if is_late or engine.wrapped.takes_indices(wrapped):
                engine.confirm()
            return result
        except RuntimeError as error:
            engine.interrupted(error)
        finally:
            engine.may_wait(False)


def pipeline_step(runtime: Runtime) -> pipelining.Around:
    """Return what is put around a step of a pipeline schedule.

    Such a step is forward and backward of all micro-batches, with messages between neighbours.
    """

    def around(call: Callable[[], Any], alone: Callable[[], None]) -> Any:
        engine = runtime.engine
        if engine is None or not engine.takes_part():
            return call()
        return engine.guard.call(functools.partial(guarded, engine, alone), call)

    def guarded(engine: Engine, alone: Callable[[], None], call: Callable[[], Any]) -> Any:
        if engine.records.answers is not None:
            engine.sharded_alone()
            return alone()
        engine.communication_begins()
        if engine.mode() is CollectiveMode.REPEAT:
            engine.sharded_after_step()
        engine.may_wait(True)
        try:
            return call()
        except RuntimeError as error:
            engine.interrupted_for_good(error)
        finally:
            engine.may_wait(False)
        return None

    return around


@contextmanager
def _backward_fault(engine: Engine) -> Iterator[None]:
    """Let a fault in `backward` strike between gradient buckets: when the middle parameter's gradient is there.

    It strikes at the end where that parameter gets none. Under fully_shard: when the second group of parameters has its gradients,
    or the only one.
    """
    if engine.faults is None or not engine.faults.armed or engine.commit is None:
        yield
        return
    roots = engine.wrapped or engine.commit.state.roots
    parameters = [p for root in roots for p in root.parameters() if p.requires_grad]
    groups = 0

    def reduced() -> None:
        nonlocal groups
        groups += 1
        if groups > 1:
            engine.inject("backward")

    if fsdp2.in_use():
        with fsdp2.after_each_group(reduced):
            yield
        engine.inject("backward")
    elif parameters:
        hook = parameters[len(parameters) // 2].register_hook(lambda gradient: engine.inject("backward"))
        try:
            yield
        finally:
            hook.remove()
        engine.inject("backward")  # the first FSDP computes with other parameters than it shows
    else:
        yield


def _wrap_backward(runtime: Runtime) -> None:
    original = torch.autograd.backward

    def backward(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        engine = runtime.engine
        if engine is None or not engine.takes_part():
            return plain(*args, **kwargs)
        tensors = args[0] if args else kwargs.get("tensors", ())
        if engine.numbers is not None:
            engine.numbers.backward(tensors)
        waits = engine.may_wait if engine.wrapped else lambda _: engine.alive()
        looks = engine.capturing and engine.shadow is None
        if looks:
            engine.guard.tell(engine.gradients.fates.before_backward)
        engine.step.computed_gradients()
        engine.tracker.computing(graph_order.oldest(tensors))
        engine.updates.gradients_begin()
        waits(True)  # until the outer one is over, where one backward calls another
        try:
            with _backward_fault(engine):
                plain(*args, **kwargs)
        except RuntimeError as error:
            engine.interrupted_for_good(error)
        finally:
            waits(False)
        if looks:
            engine.guard.tell(engine.gradients.fates.after_backward)
        return None

    torch.autograd.backward = functools.wraps(original)(runtime.guard.entry(original, backward))
