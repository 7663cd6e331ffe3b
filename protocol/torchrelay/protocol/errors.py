"""One tree of errors. The type says what the caller does: try again, give up, or tell the user."""

from __future__ import annotations


class TorchrelayError(Exception):
    """Root of everything that torchrelay raises on purpose."""


class UserError(TorchrelayError):
    """The user can put it right; the text says how. Ends a command with exit code 2 before anything starts."""


class RetryableError(TorchrelayError):
    """Transient; the same call may go through later."""


class FatalError(TorchrelayError):
    """Cannot succeed by trying again; the next rung of the fallback ladder is due."""


class FrameError(FatalError):
    """A peer sent bytes that are no message: garbage, an oversize frame, an unknown kind."""


class RefusedError(FatalError):
    """A peer was turned away: wrong token, wrong generation, wrong user."""


class ChannelClosedError(RetryableError):
    """The other side of a socket is gone."""


class StrangerError(ChannelClosedError):
    """Somebody else answers at a peer's address: a program that does not know the job's secret."""


class MovedOnError(RetryableError):
    """The others have gone on to another place than the one that this process was on its way to."""


class JournalError(FatalError):
    """A journal is missing, torn or of another version."""


class StateMismatchError(FatalError):
    """State that arrived is not the state that was sent, or does not fit this process."""


class DeviceLostError(FatalError):
    """The device of this process cannot be used any more, by this process: another one has to take over."""


class UnsupportedError(FatalError):
    """This version of torch or Python lacks something that torchrelay leans on, or the script does what it cannot carry."""


class CheckpointError(UserError):
    """A folder given with --resume is no whole just-in-time checkpoint."""
