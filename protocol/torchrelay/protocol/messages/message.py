"""`@message(frozen=True)`: a frozen dataclass that is quick to define.

`dataclasses` compiles six methods for each frozen class. There are some 170 classes of messages and events, each process of a
job imports them before it can begin, and that took a quarter of a second. What all of them can share is written once here, and
only `__init__` is compiled. To a type checker, and to code that uses them, they are dataclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["message"]

if TYPE_CHECKING:
    from dataclasses import dataclass as message
else:
    import dataclasses
    from operator import attrgetter

    def message(*, frozen):
        """Return a decorator. `frozen`: always True; type checkers read it. Raises ValueError if it is not True."""
        if not frozen:
            raise ValueError("a message cannot be changed: write @message(frozen=True)")
        return _defined

    def _defined(cls):
        # For a class without a docstring `dataclass` makes one from the signature, which takes as long as all the rest.
        cls.__doc__ = cls.__doc__ or cls.__name__
        made = dataclasses.dataclass(repr=False, eq=False)(cls)
        for method in (__setattr__, __delattr__, __repr__, __eq__, __hash__):
            if method.__name__ not in cls.__dict__:
                setattr(made, method.__name__, method)
        compared = [f.name for f in dataclasses.fields(made) if f.compare]
        made._compared = attrgetter(*compared) if compared else _nothing
        return made

    def _nothing(_message):
        return ()

    def __setattr__(self, name, value):
        # `__init__` sets each field once.
        if name in self.__dict__ or name not in self.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        self.__dict__[name] = value

    def __delattr__(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self):
        shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        compared = self.__class__._compared
        return compared(self) == compared(other)

    def __hash__(self):
        return hash(self.__class__._compared(self))
