"""Rewriting of a module's source, in memory: loops that can be rewound, `next` calls that can be replayed.

    for T in ITER: BODY       ->   for T in __torchrelay__.loop(SITE, __torchrelay__.enter(SITE), ITER):
                                       try: BODY
                                       except:
                                           if not __torchrelay__.rewound(SITE): raise

    while COND: BODY          ->   __torchrelay__.enter(SITE)
                                   while __torchrelay__.again(SITE) or COND:
                                       try: __torchrelay__.tick(SITE); BODY
                                       except: (as above)

Every node of the user's keeps its place, and every node of ours takes the place of one of them, so that tracebacks,
warnings and tracers see the lines of the source. A loop that goes back to a head does not evaluate its condition again,
which may draw the next batch (`while (batch := next(batches, None)) is not None`). `break`, `continue`, `else` and `return`
keep their meaning. A bare `raise` adds no entry to the traceback. No local name is added.
"""

from __future__ import annotations

import ast
import sys
import warnings
from dataclasses import dataclass, replace
from types import CodeType
from typing import TypeVar

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.instrument.candidates import (
    binds_name,
    is_left_alone,
    is_module_class,
    is_replayable_next,
    looks_like_training,
    may_hold_training,
    may_step,
    yields,
)
from torchrelay.shim.script.sites import Site

HOOKS = "__torchrelay__"
"""The name of the hooks among the builtins; a class body does not mangle it."""

Node = TypeVar("Node", ast.stmt, ast.expr)
_SCRIPT_END = "torchrelay.shim.bootstrap.script_end"


@dataclass(frozen=True)
class Instrumented:
    """`sites` and `next_calls` say what was rewritten; with none of both, `code` is `plain` but for its end."""

    code: CodeType
    plain: CodeType
    sites: tuple[Site, ...]
    next_calls: int
    warned: bool
    """The compiler had something to warn of; `instrument` keeps that back."""


@dataclass(frozen=True)
class _Scope:
    qualname: str
    loops: bool
    """Whether loops directly in this scope are rewritten."""
    module_class: bool = False
    parent: str | None = None
    generator: bool = False

    def inner(self, name: str, *, loops: bool, module_class: bool = False, function: bool = False) -> _Scope:
        prefix = "" if self.qualname == "<module>" else f"{self.qualname}."
        return _Scope(f"{prefix}{name}" + (".<locals>" if function else ""), loops, module_class)


def _iterates_at_statement() -> bool:
    """Return whether a failing `iter()` is reported for the whole `for`, and not for its iterable (from some 3.12 on)."""
    code = compile("for x in 1:\n  pass", "probe", "exec")
    if sys.version_info < (3, 11):
        return True
    try:
        exec(code, {})
    except TypeError as e:
        entry = e.__traceback__.tb_next if e.__traceback__ else None
        if entry is not None:
            return list(code.co_positions())[entry.tb_lasti // 2][1] == 2
    return False


_ITERATES_AT_STATEMENT = _iterates_at_statement()


class _Rewriter:
    def __init__(self, filename: str, with_next: bool, package: bool, generators: frozenset[str]) -> None:
        self._filename = filename
        self._with_next = with_next
        self._package = package
        self._generators = generators
        self.sites: list[Site] = []
        self.next_calls = 0

    def block(self, statements: list[ast.stmt], scope: _Scope) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            result.extend(self._statement(statement, scope))
        return result

    def _statement(self, node: ast.stmt, scope: _Scope) -> list[ast.stmt]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._expressions(node.args, *node.decorator_list)
            if not is_left_alone(node, scope.module_class, self._package):
                inner = scope.inner(node.name, loops=False, function=True)
                inner = replace(inner, loops=may_hold_training(node), generator=yields(node))
                node.body = self.block(node.body, inner)
                if inner.qualname.removesuffix(".<locals>") in self._generators:
                    node.decorator_list.append(_at(_hook("generator"), node))
            return [node]
        if isinstance(node, ast.ClassDef):
            inner = scope.inner(node.name, loops=False, module_class=is_module_class(node))
            node.body = self.block(node.body, inner)
            return [node]
        if isinstance(node, (ast.For, ast.While)) and scope.loops and may_step(node) and not _is_left_by_yields(node):
            return self._loop(node, scope)
        self._children(node, scope)
        return [node]

    def _children(self, node: ast.AST, scope: _Scope) -> None:
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                self._expressions(value)
            elif isinstance(value, list) and value:
                if isinstance(value[0], ast.stmt):
                    setattr(node, name, self.block(value, scope))
                else:
                    for item in value:
                        if isinstance(item, ast.expr):
                            self._expressions(item)
                        elif isinstance(item, ast.AST):
                            self._children(item, scope)

    def _expressions(self, *roots: ast.AST) -> None:
        if not self._with_next:
            return
        for root in roots:
            for node in ast.walk(root):
                if isinstance(node, ast.Call) and is_replayable_next(node):
                    node.func = _at(_hook("next"), node.func)
                    self.next_calls += 1

    def _loop(self, node: ast.For | ast.While, scope: _Scope) -> list[ast.stmt]:
        key = f"{self._filename}:{node.lineno}:{node.col_offset}"
        self.sites.append(
            Site(
                key=key,
                file=self._filename,
                line=node.lineno,
                end_line=node.end_lineno or node.lineno,
                kind="for" if isinstance(node, ast.For) else "while",
                parent=scope.parent,
                function=scope.qualname.removesuffix(".<locals>"),
                trains=looks_like_training(node),
                generator=scope.generator,
            )
        )
        self._children(node, replace(scope, parent=key))
        handler = ast.ExceptHandler(
            type=None,
            name=None,
            body=[ast.If(test=ast.UnaryOp(ast.Not(), _call("rewound", key)), body=[ast.Raise()], orelse=[])],
        )
        if isinstance(node, ast.For):
            node.body = [_at(ast.Try(body=node.body, handlers=[handler], orelse=[], finalbody=[]), node.iter)]
            # "object is not iterable" is raised in this call, and carets show the place.
            place = node if _ITERATES_AT_STATEMENT else node.iter
            node.iter = _at(_call("loop", key, _call("enter", key), node.iter), place)
            return [node]
        if not isinstance(node.test, ast.Constant):
            node.test = _at(ast.BoolOp(ast.Or(), [_call("again", key), node.test]), node.test)
        tick = ast.Expr(_call("tick", key))
        node.body = [_at(ast.Try(body=[tick, *node.body], handlers=[handler], orelse=[], finalbody=[]), node.test)]
        return [_at(ast.Expr(_call("enter", key)), node.test), node]


def _is_left_by_yields(loop: ast.For | ast.While) -> bool:
    """Return whether a generator yields in this `for`.

    What the `for` draws from stays on the generator's stack then, and has to be the script's own there.
    """
    return isinstance(loop, ast.For) and yields(loop)


def _hook(name: str) -> ast.expr:
    return ast.Attribute(ast.Name(HOOKS, ast.Load()), name, ast.Load())


def _call(name: str, site: str, *more: ast.expr) -> ast.Call:
    return ast.Call(_hook(name), [ast.Constant(site), *more], [])


def _at(node: Node, place: ast.AST) -> Node:
    """Give `node`, and everything new below it, the place of `place`. What has a place keeps it, and all below it."""
    to_visit: list[ast.AST] = [node]
    while to_visit:
        new = to_visit.pop()
        if "lineno" in new._attributes:
            if hasattr(new, "lineno"):
                continue
            ast.copy_location(new, place)
            if isinstance(new, ast.Attribute):
                # A method is called from the line where its name ends.
                new.end_col_offset = new.col_offset + 1
                new.end_lineno = new.lineno
        to_visit.extend(ast.iter_child_nodes(new))
    return node


def _must_stay_first(statement: ast.stmt, place: int) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__"
    return place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _with_end(tree: ast.Module) -> None:
    """Let the script's own module tell when it ends, and how. Docstring and `from __future__` stay in front."""
    start = 0
    while start < len(tree.body) and _must_stay_first(tree.body[start], start):
        start += 1
    body = tree.body[start:]
    place = tree.body[-1] if tree.body else ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
    ended: list[ast.stmt] = [ast.Expr(_script_end("finished"))]
    if body:
        handler = ast.ExceptHandler(type=None, name=None, body=[ast.Expr(_script_end("failed")), ast.Raise()])
        ended.insert(0, ast.Try(body=body, handlers=[handler], orelse=[], finalbody=[]))
    tree.body[start:] = [_at(statement, place) for statement in ended]


def _script_end(function: str) -> ast.expr:
    # An import leaves no name behind, and needs none among the builtins.
    imported = ast.Call(
        ast.Name("__import__", ast.Load()),
        [ast.Constant(_SCRIPT_END)],
        [ast.keyword("fromlist", ast.List([ast.Constant(function)], ast.Load()))],
    )
    return ast.Call(ast.Attribute(imported, function, ast.Load()), [], [])


def instrument(
    source: bytes,
    filename: str,
    *,
    loops: bool = True,
    main: bool = False,
    package: bool = False,
    generators: frozenset[str] = frozenset(),
) -> Instrumented:
    """Return the module in `source`, rewritten. `main`: it is the script, and tells `script_end` when it ends.

    `package`: the module is of an installed package; only functions that look like training are rewritten. `generators`: qualified
    names of the generator functions that are replaced by a hook's.

    No warning is issued. Raises what compiling `source` raises (SyntaxError, ValueError, RecursionError, MemoryError), and
    UnsupportedError where only the rewritten module does not compile.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain = compile(source, filename, "exec", dont_inherit=True)
        tree = ast.parse(source, filename)
        with_next = loops and not binds_name(tree, "next")
        rewriter = _Rewriter(filename, with_next, package, generators)
        if loops:
            tree.body = rewriter.block(tree.body, _Scope("<module>", loops=not package))
        if main:
            _with_end(tree)
        changed = main or rewriter.sites or rewriter.next_calls
        try:
            code = compile(tree, filename, "exec", dont_inherit=True) if changed else plain
        except SyntaxError as e:
            # Python takes 20 nested blocks, and a rewritten loop is two.
            raise UnsupportedError(f"{filename} cannot be rewritten: {e}") from e
    return Instrumented(code, plain, tuple(rewriter.sites), rewriter.next_calls, bool(caught))
