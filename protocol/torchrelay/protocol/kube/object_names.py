"""Names of objects in Kubernetes that are made of other names. Pure."""

from __future__ import annotations


def beginning(name: str, most: int) -> str:
    """Cut a legal name to at most `most` characters, so that more can follow after a hyphen or a dot, or nothing at all.

    No part between dots may be empty, or begin or end with a hyphen: Kubernetes would refuse such a name.
    """
    return name[:most].rstrip("-.")
