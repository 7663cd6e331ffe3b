"""Scripts that use what the language has around loops: flow of control, closures, generators, patterns."""

from __future__ import annotations

SCRIPTS: dict[str, str | bytes] = {
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
}
