"""Stands for an attribute's value that is not state: the attribute stays as it is where its object is put back or filled."""

from __future__ import annotations


class KeptValue:
    pass


KEPT = KeptValue()
