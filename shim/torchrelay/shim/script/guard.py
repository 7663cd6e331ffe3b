"""Where the script comes into our code: what is wrong with us must not become the script's failure.

Every way in goes through a `Guard`. An exception of ours switches the protection of this rank off, with its reason, and the plain
call is made, unless it was made already. What has to come through: exceptions of the plain call, `Rewind`, errors that an injected
fault stands for, and whatever is raised during a migration or because of one, where going on could end in wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.shim.script.hidden_frames import hide_all, is_ours

INJECTED = "injected by torchrelay: "
"""How the error of an injected fault begins, which is to reach the script."""


class MeantForUs:
    """Marks an exception of ours that code of ours further out waits for: nothing is wrong with us."""


class GuardedEngine(Protocol):
    def fails_closed(self, error: Exception) -> bool:
        """Return whether an exception has to come through, since a migration has raised it or is under way."""
        ...

    def raises(self, error: Exception) -> None:
        """Note that an exception goes to the script."""
        ...

    def give_up(self, error: Exception) -> None: ...


class _Plain:
    """The original of a hooked function, for one call: whether it was called, and what came of it."""

    __slots__ = ("_function", "done", "error", "result")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self.result = self._function(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        self.done = True
        self.error = None
        return self.result


class Guard:
    def __init__(
        self, engine: Callable[[], GuardedEngine | None], disable: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Begin. `disable`: what is done where there is no engine yet."""
        self._engine = engine
        self._disable = disable

    def call(self, ours: Callable[..., Any], original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return `ours(plain, *args, **kwargs)`, which calls `plain` in place of `original`."""
        return self.entry(original, ours)(*args, **kwargs)

    def entry(self, original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that stands for `original`.

        It calls `ours(plain, *args, **kwargs)`, which calls `plain` in the place of `original`.
        """

        def entry(*args: Any, **kwargs: Any) -> Any:
            plain = _Plain(original)
            try:
                return ours(plain, *args, **kwargs)
            except BaseException as error:
                if error is plain.error or not isinstance(error, Exception) or not self.takes(error):
                    hide_all(error)
                    raise
                if plain.error is not None:
                    hide_all(plain.error)
                    raise plain.error from None  # the script's; ours came up while it was looked at
            finally:
                plain.error = None  # it holds this frame
            return plain.result if plain.done else original(*args, **kwargs)

        return entry

    def tell(self, ours: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what `ours` gives, or None where it fails. For code that only looks, and has no plain call."""
        try:
            return ours(*args, **kwargs)
        except Exception as error:
            if not self.takes(error):
                raise
            return None

    def takes(self, error: Exception) -> bool:
        """Return, in an except clause, whether the script goes on without protection after an exception that is not its own.

        If not, the exception has to be raised again.
        """
        if isinstance(error, MeantForUs) or (type(error) is RuntimeError and str(error).startswith(INJECTED)):
            return False
        engine = self._engine()
        if engine is None:
            self._disable(reason_of(error))
            return True
        if engine.fails_closed(error):
            engine.raises(error)
            return False
        engine.give_up(error)
        return True


def reason_of(error: BaseException) -> str:
    """Return the reason in one line; errors of our own are sentences, and need no name.

    What the error says of itself may be the script's code, too.
    """
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - it is only told, and the script must go on
        said = "(it does not say what)"
    name = "" if isinstance(error, TorchrelayError) and said else f"{type(error).__name__}: "
    return " ".join(f"{name}{said}".split())[:500]


def is_called_by(frame: FrameType, *modules: str) -> bool:
    """Return whether the code that has called us is of a module whose name begins so."""
    return str(caller(frame).f_globals.get("__name__", "")).startswith(modules)


def caller(frame: FrameType) -> FrameType:
    """Return the frame that has called us: the first one, from `frame` outwards, that is not of the shim."""
    found: FrameType | None = frame
    while found is not None and is_ours(found):
        found = found.f_back
    return found or frame
