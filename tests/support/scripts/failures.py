# ruff: noqa: E501 - the lines are those of the scripts
"""Scripts that fail or end on purpose: exceptions and their tracebacks, exit codes, interrupts, what is shown of them."""

from __future__ import annotations

SCRIPTS: dict[str, str | bytes] = {
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
    "usage_error": """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, required=True)
        for x in map(int, "1"):
            parser.parse_args(["--steps", "many"])
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
}
