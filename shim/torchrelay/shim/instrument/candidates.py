"""Which functions, loops and `next` calls are rewritten, judged by their syntax alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_COMPILERS = {"compile", "jit", "njit", "script", "script_method", "trace", "optimize", "autotune", "vectorize"}
"""Last names of decorators that compile the function from its bytecode or source (torch, triton, numba, jax)."""

_TRAINING_MODULES = {"LightningModule", "LightningDataModule", "DataModule"}
"""Modules by name that hold training loops rather than model code."""

_TRAINING_NAME = re.compile(r"train|fit|step|epoch|learn|optimi|loop|run", re.IGNORECASE)
_NAME_IN_PACKAGE = re.compile(r"train|fit|step|epoch|learn|optimi|loop|run|batch", re.IGNORECASE)
"""Of functions of an installed package that trains."""
_STEP_CALLS = {"step", "backward", "zero_grad"}
_GRADIENT_CALLS = {"backward", "zero_grad"}
"""Those that no code of a model has; a recurrent one may well have a `step`."""

_CANNOT_STEP = {
    "abs", "bool", "chr", "divmod", "float", "hash", "id", "int", "isinstance", "len", "ord", "print", "range", "repr",
    "round", "str", "type",
}  # fmt: skip
"""Builtins whose call never runs an optimizer step."""

_FRESH_ITERATORS = {
    "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children",
    "named_children", "keys", "values", "items",
}  # fmt: skip
"""Methods whose result is made on the spot: nobody else draws from it, and a repeated body makes it again."""


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function's own scope, without those of functions, classes and lambdas inside it."""
    to_visit = list(ast.iter_child_nodes(function))
    while to_visit:
        node = to_visit.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            to_visit.extend(ast.iter_child_nodes(node))


def yields(part: ast.AST) -> bool:
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in own_nodes(part))


def may_hold_training(function: FunctionNode) -> bool:
    """Whether loops in its body are rewritten. Most generators make data; one whose name or calls look like it may train."""
    if isinstance(function, ast.AsyncFunctionDef):
        return False
    return (
        not yields(function) or _trains(function, _TRAINING_NAME) or any(map(_hands_on_training, own_nodes(function)))
    )


def _hands_on_training(node: ast.AST) -> bool:
    """Whether it is like `yield from self.train_epoch()`."""
    if not (isinstance(node, ast.YieldFrom) and isinstance(node.value, ast.Call)):
        return False
    return _TRAINING_NAME.search(_last_name(node.value.func)) is not None


def _last_name(node: ast.expr) -> str:
    while isinstance(node, (ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _compiles(decorator: ast.expr) -> bool:
    if _last_name(decorator) in _COMPILERS:
        return True
    # @partial(torch.compile, dynamic=True)
    return isinstance(decorator, ast.Call) and any(_last_name(a) in _COMPILERS for a in decorator.args)


def _trains(method: FunctionNode, names: re.Pattern[str]) -> bool:
    return names.search(method.name) is not None or _calls(method, _STEP_CALLS)


def _calls(method: FunctionNode, names: set[str]) -> bool:
    return any(isinstance(n, ast.Call) and _last_name(n.func) in names for n in ast.walk(method))


def is_module_class(node: ast.ClassDef) -> bool:
    """Whether the class is model code: a base whose name ends in `Module`, other than lightning's."""
    bases = [_last_name(base) for base in node.bases]
    return any(b.endswith("Module") and b not in _TRAINING_MODULES for b in bases)


def is_left_alone(function: FunctionNode, in_module_class: bool, in_package: bool) -> bool:
    """Whether the function is model code or compiled: a compiler that traces it must see the user's program.

    A module's methods other than `forward` are often called from it; only those that look like training are rewritten.
    The same holds for all functions of an installed package. A `forward` that computes gradients is that of a trainer.
    """
    if any(_compiles(d) for d in function.decorator_list):
        return True
    if function.name == "forward":
        return not _calls(function, _GRADIENT_CALLS)
    if in_module_class:
        return not _trains(function, _TRAINING_NAME)
    return in_package and not _trains(function, _NAME_IN_PACKAGE)


def may_step(loop: ast.For | ast.While) -> bool:
    """Whether an optimizer step can happen in an iteration; arithmetic alone cannot make one.

    A bare name to iterate over can be a generator that trains.
    """
    if isinstance(loop, ast.For) and not isinstance(loop.iter, (ast.Call, ast.Constant, ast.Tuple, ast.List)):
        return True
    to_visit: list[ast.AST] = [loop.iter if isinstance(loop, ast.For) else loop.test, *loop.body]
    while to_visit:
        node = to_visit.pop()
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _CANNOT_STEP):
            return True
        if isinstance(node, (ast.Attribute, ast.Subscript, ast.Await, ast.With, ast.AsyncWith)):
            return True
        to_visit.extend(ast.iter_child_nodes(node))
    return False


def looks_like_training(loop: ast.For | ast.While) -> bool:
    """Whether its body calls something that is named as what trains: `loss.backward()`, `self.step(batch)`, `train_step(...)`."""
    names = (_last_name(n.func) for part in loop.body for n in ast.walk(part) if isinstance(n, ast.Call))
    return any(name in _STEP_CALLS or name.endswith("_step") for name in names)


def binds_name(tree: ast.Module, name: str) -> bool:
    """Whether `name` is bound anywhere in the module: then it is not the builtin for sure."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            bound = node.id if not isinstance(node.ctx, ast.Load) else None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound = node.name
        elif isinstance(node, ast.arg):
            bound = node.arg
        elif isinstance(node, ast.alias):
            # A star import can bind anything, but no library exports a `next` of its own.
            bound = node.asname or node.name.partition(".")[0]
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            bound = node.name
        elif isinstance(node, ast.MatchMapping):
            bound = node.rest
        else:
            bound = None
        if bound == name:
            return True
    return False


def is_replayable_next(call: ast.Call) -> bool:
    """Whether it is `next(iterator)` or `next(iterator, default)`, and the iterator can outlive the statement."""
    if not (isinstance(call.func, ast.Name) and call.func.id == "next") or call.keywords:
        return False
    if len(call.args) not in (1, 2) or any(isinstance(a, ast.Starred) for a in call.args):
        return False
    iterator = call.args[0]
    if isinstance(iterator, ast.GeneratorExp):
        return False
    return not (
        isinstance(iterator, ast.Call)
        and isinstance(iterator.func, ast.Attribute)
        and iterator.func.attr in _FRESH_ITERATORS
    )
