"""As an installed package would be: its metadata lies beside it."""

from tiny_trainer.rounds import Rounds

__all__ = ["Rounds"]
