"""Files that lie beside a script, for it to import."""

from __future__ import annotations

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
