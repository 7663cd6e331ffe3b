# ruff: noqa: E501 - the lines are those of the scripts
"""Scripts that look around: at their process, its end, its threads and children, their own source, other modules."""

from __future__ import annotations

SCRIPTS: dict[str, str | bytes] = {
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
