"""Names of objects in Kubernetes that are made of other names. Pure."""

from __future__ import annotations


def beginning(name: str, most: int) -> str:
    """At most so many characters of a legal name, such that more can be added behind a hyphen or a dot, or nothing at all.

    No part between dots may be empty, or begin or end with a hyphen: what was cut behind one of them would be refused.
    """
    return name[:most].rstrip("-.")
