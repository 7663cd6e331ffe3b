# ruff: noqa: E501 - the lines are those of the scripts
"""Scripts whose output shows what a shim in their process could get wrong. Each runs on Python 3.10 and without torch."""

from __future__ import annotations

from textwrap import dedent

_SCRIPTS: dict[str, str | bytes] = {
    "normal": '''
        """The docstring."""
        from __future__ import annotations
        print(__doc__, __name__, __file__, __spec__, __cached__, type(__loader__).__name__, __loader__.path, __package__)
        print(sorted(globals()), annotations)
        count: int = 0
        print(__annotations__)
        for i in range(3):
            count += len(str(i))
            flag: bool = True
        print(count, __annotations__)
        ''',
    "no_docstring": """
        x: int = 1
        print(__doc__, __annotations__, __builtins__, locals() is globals(), vars() is globals())
        """,
    "empty": "",
    "only_docstring": '"""Nothing else."""',
    "only_future": "from __future__ import division",
    "exception": """
        def inner(values):
            for value in values:
                total = 1 + (value["a"]["b"] / value["c"])
                print(total)

        print("before, buffered")
        while True:
            inner([{"a": {"b": 4}, "c": 2}, {"a": {"b": 1}, "c": 0}])
        """,
    "exception_at_the_last_line": "import sys\nprint(1)\nsys.stdout.write(3)",
    "error_in_an_iterable": """
        def numbers():
            yield 1
            raise KeyError("from the generator")
        for n in numbers():
            print(n)
        """,
    "error_in_an_iterable_expression": "for n in print('x') . nothing:\n    print(n)",
    "not_iterable": "def f():\n    for n in (lambda: 5)():\n        print(n)\nf()",
    "bad_unpacking": "for a, b in dict(x=1, yz=2).items(), [1, 2, 3]:\n    print(a, b)",
    "error_in_a_condition": "n = 2\nwhile 1 / (n := n - 1) > len([]):\n    print(n)",
    "chained_exceptions": """
        def load(name):
            try:
                return {}[name]
            except KeyError as e:
                raise ValueError("no " + name) from e
        for name in list("ab"):
            try:
                load(name)
            except ValueError:
                if name == "b":
                    raise RuntimeError("while handling")
                import traceback
                traceback.print_exc()
        """,
    "exception_group_notes": """
        import sys
        try:
            for n in iter([1]):
                try:
                    1 / (n - 1)
                finally:
                    print("cleaned", sys.exc_info()[0])
        except ZeroDivisionError as e:
            if hasattr(e, "add_note"):
                e.add_note("a note")
            raise
        """,
    "recursion": """
        import sys
        def down(n):
            return down(n + 1)
        depth = 0
        def count():
            global depth
            depth += 1
            count()
        try:
            count()
        except RecursionError:
            print(depth, sys.getrecursionlimit())
        for x in map(int, "1"):
            down(0)
        """,
    "exit_0": "import sys\nprint(1)\nsys.exit()",
    "exit_3": "import sys\nfor x in map(str, [1]):\n    sys.exit(3)",
    "exit_text": "raise SystemExit('the end')",
    "exit_object": "raise SystemExit({'a': 1})",
    "exit_false": "raise SystemExit(False)",
    "exit_300": "raise SystemExit(300)",
    "exit_minus_1": "raise SystemExit(-1)",
    "os_exit": "import os\nprint('lost or not', flush=True)\nos._exit(4)",
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal\nprint('buffered')\nfor x in map(str, [1]):\n    os.kill(os.getpid(), signal.SIGINT)\n    input()",
    "interrupt_raised": "raise KeyboardInterrupt('text')",
    "interrupt_handled": "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    raise SystemExit(130)",
    "interrupt_subclass": "class Stop(KeyboardInterrupt): pass\nraise Stop",
    "generator_exit": "raise GeneratorExit",
    "stop_iteration": "for x in [1]:\n    next(iter([]))",
    "syntax_error": "print(1)\nfor x in [1:\n    print(x",
    "syntax_error_from_the_compiler": "print(1)\nfor x in [1]:\n    print(x)\nreturn 3",
    "indentation_error": "if 1:\nprint(2)",
    "tab_error": "if 1:\n        print(1)\n\tprint(2)",
    "null_byte": b"print(1)\n\0\nprint(2)\n",
    "not_utf8": b"print('\xff')\n",
    "unknown_cookie": b"# -*- coding: no-such-codec -*-\nprint(1)\n",
    "latin_1": "# -*- coding: latin-1 -*-\nprint(ascii('\xe4\xf6'), len('\xe4'))\nfor c in list('\xe4'): 1/len(c[1:])\n".encode(
        "latin-1"
    ),
    "bom": b"\xef\xbb\xbfprint('with a BOM')\nfor x in map(int, '12'): print(x)\n1/0",
    "crlf": b"for x in map(int, '12'):\r\n    print(x, '''a\r\nb''')\r\nraise ValueError\r\n",
    "form_feed": b"print(1)\n\x0c\nfor x in map(int, '12'):\n    print(x)\n\x0c\nraise ValueError",
    "line_continuation": "for x in \\\n    map(int, '12'): \\\n    print(x); y = x\nprint(y \\\n  .z)",
    "invalid_escape": "for x in map(str, [1]):\n    print('\\d' + x)",
    "odd_comparison": "for x in map(str, [1]):\n    print(x is '1', 'a' is x)\nassert (x, 'always')",
    "two_loops_on_a_line": "for x in map(int, '12'): print(x)\nelse: print('else')\nwhile len('a'): break\nelse: print('never')",
    "deep_nesting": "\n".join(f"{' ' * i}for x{i} in map(int, '1'):" for i in range(19))
    + "\n"
    + " " * 19
    + "print(x0, x18)\nraise ValueError",
    "too_deep_to_rewrite_is_still_run": "x = "
    + "+".join(["1"] * 800)
    + "\nprint(x)\nfor y in map(int, '12'): print(y)",
    "atexit": """
        import atexit, sys, threading
        print("main", threading.current_thread().name, threading.active_count() >= 1)
        atexit.register(lambda: print("first registered", "__file__" in globals(), "__cached__" in globals()))
        atexit.register(lambda: print("second registered"))
        class Loud:
            def __del__(self):
                print("deleted")
        loud = Loud()
        def run():
            import time
            threading.main_thread().join()
            print("thread goes on after main", flush=True)
        threading.Thread(target=run).start()
        for x in map(int, "12"):
            print(x)
        """,
    "atexit_after_exception": """
        import atexit, sys
        def show():
            print("file", "__file__" in globals(), repr(sys.last_value), sys.last_traceback.tb_next)
            print(getattr(sys, "last_exc", sys.last_value) is sys.last_value)
        atexit.register(show)
        for x in map(int, "1x"):
            print(x)
        """,
    "atexit_after_exit": """
        import atexit, sys
        atexit.register(lambda: print("__file__" in globals(), hasattr(sys, "last_value")))
        class Loud:
            def __del__(self):
                print("deleted")
        def main():
            loud = Loud()
            sys.exit(3)
        main()
        """,
    "excepthook": """
        import sys, traceback
        def hook(kind, value, tb):
            print(kind.__name__, value, tb is value.__traceback__, [f.name for f in traceback.extract_tb(tb)], __file__)
        sys.excepthook = hook
        def f():
            for x in map(int, "1x"):
                pass
        f()
        """,
    "excepthook_fails": "import sys\ndef hook(*a): 1/0\nsys.excepthook = hook\nfor x in map(int, '1'): raise ValueError(x)",
    "excepthook_missing": "import sys\ndel sys.excepthook\nfor x in map(int, '1'): raise ValueError(x)",
    "excepthook_exits": "import sys\nsys.excepthook = lambda *a: sys.exit(9)\nraise ValueError",
    "tracebacklimit": "import sys\nsys.tracebacklimit = 1\ndef f():\n    for x in map(int, '1'): raise ValueError(x)\nf()",
    "warnings": """
        import warnings
        def old():
            warnings.warn("old() is old", DeprecationWarning, stacklevel=2)
        for x in map(int, "123"):
            old()
            warnings.warn(f"seen once per text and line", UserWarning)
        warnings.warn("of the caller", stacklevel=2)
        old()
        """,
    "stack": """
        import inspect, sys, traceback
        def f():
            for x in map(int, "1"):
                print([(i.function, i.lineno, i.code_context) for i in inspect.stack()])
                traceback.print_stack()
        f()
        try:
            sys._getframe(1)
        except ValueError as e:
            print(e)
        print(sys._getframe().f_code.co_name, sys._getframe().f_locals is globals(), sorted(sys._getframe().f_locals))
        """,
    "getsource": """
        import inspect
        class A:
            def m(self):
                for x in map(int, "12"):
                    yield x
        def f():
            '''doc'''
            for x in map(int, "12"):
                print(x)
            else:
                return [y for y in "ab"]
        print(inspect.getsource(f), inspect.getsource(A), inspect.getsourcelines(A.m), f.__doc__, f.__code__.co_firstlineno)
        print(f.__code__.co_varnames, f.__code__.co_freevars, f.__code__.co_filename, f.__qualname__, f.__module__)
        """,
    "pickle_main": """
        import pickle, sys
        class Point:
            def __init__(self, x): self.x = x
        def scale(p): return p.x * 2
        for data in [pickle.dumps((Point(3), scale, Point))]:
            p, f, c = pickle.loads(data)
            print(f(p), c is Point, sys.modules["__main__"].Point is Point, b"__main__" in data)
        import __main__
        print(__main__.Point, __main__.__dict__ is globals())
        """,
    "fork": """
        import os, sys, atexit
        atexit.register(lambda: print("atexit", flush=True))
        for x in map(int, "1"):
            pid = os.fork()
            if pid == 0:
                print("child", flush=True)
                sys.exit(5)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        pid = os.fork()
        if pid:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    "multiprocessing_fork": """
        import multiprocessing as mp, os, sys
        def work(x):
            for y in map(int, str(x)):
                return y * y, "torchrelay" in "".join(os.environ), os.environ.get("PYTHONPATH")
        if __name__ == "__main__":
            with mp.get_context("fork").Pool(2) as pool:
                print(pool.map(work, range(4)))
            p = mp.get_context("fork").Process(target=work, args=("x",))
            p.start(); p.join(); print(p.exitcode)
        """,
    "multiprocessing_spawn": """
        import multiprocessing as mp, os, sys
        def work(x):
            for y in map(int, str(x)):
                import builtins
                found = [m for m in sys.modules if "torchrelay" in m] + [b for b in dir(builtins) if "torchrelay" in b]
                return y * y, __name__, found, [p for p in sys.path if "torchrelay" in p], os.environ.get("PYTHONPATH")
        print("imported as", __name__, flush=True)
        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, range(3)))
        """,
    "subprocess": """
        import os, subprocess, sys
        code = "import sys, os; print(sys.path[1:], sorted(m for m in sys.modules if 'relay' in m), os.environ.get('PYTHONPATH'))"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True))
        """,
    "threads": """
        import threading
        def work(n):
            for x in map(int, "12"):
                with lock:
                    results.append(x * n)
            if n == 2:
                raise ValueError("in a thread")
        lock, results = threading.Lock(), []
        threads = [threading.Thread(target=work, args=(n,), name=f"t{n}") for n in range(3)]
        for t in threads:
            t.start()
            t.join()
        print(sorted(results), threading.main_thread() is threading.current_thread())
        """,
    "signals": """
        import signal
        print({s.name: str(signal.getsignal(s)) for s in signal.Signals}, signal.pthread_sigmask(signal.SIG_BLOCK, []))
        seen = []
        signal.signal(signal.SIGUSR1, lambda n, f: seen.append((n, f.f_lineno, f.f_code.co_name)))
        for x in map(int, "12"):
            signal.raise_signal(signal.SIGUSR1)
        print(seen, signal.getitimer(signal.ITIMER_REAL), signal.set_wakeup_fd(-1))
        """,
    "sys": """
        import os, sys
        print(sys.argv, sys.orig_argv[1:], sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.executable)
        print({k: v for k, v in os.environ.items() if k.startswith(("PYTHON", "TORCHRELAY"))})
        print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__)
        print(sys.stdout, sys.stderr, sys.stdin, sys.dont_write_bytecode, sys.pycache_prefix, sys.platlibdir)
        print(sorted(e for e in sys.path_importer_cache if "site" in e and "packages" not in e), len(sys.path_hooks))
        """,
    "usage_error": """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, required=True)
        for x in map(int, "1"):
            parser.parse_args(["--steps", "many"])
        """,
    "generators": """
        def numbers(n):
            for i in range(n):
                got = yield i
                while got is not None:
                    got = yield ("got", got)
            return "done"
        def outer():
            result = yield from numbers(2)
            print(result)
        g = outer()
        print(next(g), g.send(5), next(g), next(g), next(g, "default"))
        print([x for x in numbers(3)], {x: y for x, y in enumerate("ab")}, sum(x for x in numbers(4)))
        g = numbers(3); next(g); g.close()
        try:
            next(g)
        except StopIteration as e:
            print(repr(e))
        import contextlib
        @contextlib.contextmanager
        def manager():
            for x in map(int, "1"):
                yield x
        with manager() as x:
            print(x)
        """,
    "asynchronous": """
        import asyncio
        async def ticker(n):
            for i in range(n):
                await asyncio.sleep(0)
                yield i
        async def main():
            async for i in ticker(3):
                print(i)
            while True:
                await asyncio.sleep(0)
                return [j async for j in ticker(2)]
        print(asyncio.run(main()))
        """,
    "control_flow": """
        import collections
        def search(rows, wanted):
            log = []
            for i, row in enumerate(rows):
                for j, cell in enumerate(row):
                    try:
                        if cell is None:
                            continue
                        if cell == wanted:
                            break
                        if cell == "stop":
                            return log, "returned"
                    finally:
                        log.append((i, j))
                else:
                    log.append(f"row {i} without")
                    continue
                log.append(f"row {i} with")
                while row:
                    if row.pop() == wanted:
                        break
                else:
                    log.append("never")
            else:
                return log, "all rows"
        print(search([[1, None, 2], [2, 1], [], ["x", "stop"]], 2))
        print(search([[2, 2, 3]], 2))
        first, *rest = collections.deque("abc"), 1
        for first, *rest, (a, b) in [[1, 2, 3, "xy"], [4, "zw"]]:
            print(first, rest, a, b)
        data = {"k": 0}
        class Holder: pass
        h = Holder()
        for data["k"], h.attribute in zip("ab", "cd"):
            print(data, h.__dict__)
        for n in list("abc"):
            if n == "b":
                del n
                continue
        print(n)
        for n in list("x"):
            del n
        print("n" in globals())
        def finally_wins():
            for x in map(int, "12"):
                try:
                    return x
                finally:
                    break
            return "after"
        print(finally_wins())
        while (line := len(data)) < 3:
            data[line] = line
        print(data)
        """,
    "closures": """
        import functools
        def counter():
            total = 0
            def add(values):
                nonlocal total
                for v in map(int, values):
                    total += v
                    def show(v=v):
                        return v, total
                    yield_free = [w + total for w in (v, total)]
                return show, yield_free, sorted(locals())
            return add
        add = counter()
        print(add("12")[0](), add("3")[1:], add.__code__.co_freevars)
        def decorate(f):
            @functools.wraps(f)
            def inner(*a, **k):
                for _ in map(int, "12"):
                    result = f(*a, **k)
                return result
            return inner
        @decorate
        def g(x, /, y=1, *, z: int = 2) -> int:
            return x + y + z
        print(g(1, z=5), g.__name__, g.__annotations__, g.__wrapped__.__kwdefaults__)
        class Meta(type):
            @classmethod
            def __prepare__(mcs, name, bases):
                return {"prepared": []}
        class A(metaclass=Meta):
            for name in map(str, "xy"):
                prepared.append(name)
                typed: int = 3
            while len(prepared) < 4:
                prepared.append("more")
            __private = [p for p in "ab"]
            def method(self):
                for __x in map(str, "xy"):
                    yield_free = __x
                return self.__private, yield_free, sorted(locals())
        print(A().method(), sorted(k for k in vars(A) if k != "__static_attributes__" and k != "__firstlineno__"))
        """,
    "match": """
        def kind(value):
            out = []
            for item in value:
                match item:
                    case {"k": k, **rest}:
                        out.append((k, rest))
                    case [x, *more] if len(more) > 1:
                        for m in iter(more):
                            out.append(m)
                        continue
                    case int() | str() as plain:
                        out.append(plain)
                    case _:
                        break
            return out
        print(kind([{"k": 1, "z": 2}, [1, 2, 3], 4, "x", None, 5]))
        """,
    "next_calls": """
        it = iter("abc")
        print(next(it), next(it, None), *[next(i) for i in [it]], next(it, "end"))
        print(next(x for x in "q"), next({1: 2}.keys().__iter__()), (lambda i: next(i))(iter([7])))
        class Batches:
            def __iter__(self): return self
            def __next__(self): raise LookupError("inside")
        def draw(b):
            while len("a"):
                return next(
                    b
                )
        try:
            next(5)
        except TypeError as e:
            print(e)
        draw(Batches())
        """,
    "next_rebound": """
        def next(x, default=None): return ("mine", x)
        print(next(3))
        for x in map(next, "ab"):
            print(next(x))
        """,
    "tracing": """
        import sys
        events = []
        def trace(frame, event, arg):
            if frame.f_code.co_filename == __file__ and event != "exception":
                # A Python iterator ends with an exception where one in C does without; that is no difference to a script.
                events.append((frame.f_code.co_name, event, frame.f_lineno))
            return trace
        def f(n):
            total = 0
            for i in map(int, "12"):
                total += i
                if i == n:
                    break
            else:
                total += 100
            while total < 10:
                total += len("abcd")
            return total
        sys.settrace(trace)
        f(2)
        f(3)
        sys.settrace(None)
        print(*events, sep="\\n")
        """,
    "profiling": """
        import cProfile, pstats, sys
        def f():
            return sum(len(x) for x in ["a"] * 3)
        p = cProfile.Profile()
        p.enable(); f(); p.disable()
        print(sorted((k[2], v[0]) for k, v in pstats.Stats(p).stats.items()))
        """,
    "unraisable_and_last_words": """
        class Bad:
            def __del__(self): raise ValueError("in __del__")
        Bad.__del__ = staticmethod(print)
        b = Bad()
        del b
        import sys
        for x in map(int, "1"):
            print("to stderr", file=sys.stderr)
            print("to stdout")
        sys.stdout.flush()
        """,
    "closed_stdout": "import sys\nprint(1)\nsys.stdout.flush()\nsys.stdout.close()\nfor x in map(int, '1'): raise ValueError",
    "input": "for line in iter(input, 'end'):\n    print('read', line)",
    "exec_and_eval": """
        exec("for x in map(int, '12'): print(x, __name__, __file__)")
        print(eval("__name__"), compile("1", "f", "eval").co_filename)
        import runpy
        """,
    "imports": """
        import sys
        sys.dont_write_bytecode = True
        import helper, package.inner
        print(helper.__file__, helper.__name__, helper.__doc__, helper.run(3), package.inner.go(), helper.__spec__.cached)
        import importlib
        importlib.reload(helper)
        try:
            import helper_with_a_syntax_error
        except SyntaxError as e:
            import traceback
            traceback.print_exc()
        try:
            import no_such_module
        except ModuleNotFoundError:
            traceback.print_exc()
        import helper_that_fails
        """,
    "import_of_a_syntax_error": "import helper_with_a_syntax_error",
    "import_of_nothing": "import package.nothing",
}

HELPERS: dict[str, str] = {
    "helper.py": '''
        """A module of the user's."""
        def run(n):
            total = 0
            for i in map(int, "1" * n):
                total += i
            return total, "\\d"
        for x in map(int, "1"):
            print("importing", __name__)
        ''',
    "helper_with_a_syntax_error.py": "for x in [1:\n    pass\n",
    "helper_that_fails.py": "def f(it):\n    for x in it:\n        1 / x\nf(map(int, '10'))\n",
    "package/__init__.py": "print('package', __path__)\n",
    "package/inner.py": "def go():\n    it = iter('ab')\n    while len('a'):\n        return next(it)\n",
    "package/__main__.py": """
        import sys, inspect
        print(sys.argv, __name__, __spec__.name, __package__, __file__, sys._getframe().f_back.f_code.co_name)
        for x in map(int, "12"):
            print(x, inspect.getsource(sys.modules["__main__"])[:20])
        if len(sys.argv) > 1:
            raise SystemExit(sys.argv[1]) if sys.argv[1] != "raise" else ValueError(x)
        """,
    "package/interrupted.py": "for x in map(int, '1'):\n    raise KeyboardInterrupt\n",
    "package/broken.py": "for x in map(int, '1'):\n    print(x\n",
}

SCRIPTS = {name: s if isinstance(s, bytes) else dedent(s).lstrip("\n").encode() for name, s in _SCRIPTS.items()}
"""Name -> source."""
HELPER_FILES = {name: dedent(source).lstrip("\n") for name, source in HELPERS.items()}
"""Files that lie beside a script."""
