"""A machine of the job as a line of a configuration: what the next controller is told of those that it may never hear."""

from __future__ import annotations

from torchrelay.protocol.messages import Member


def member_line(member: Member) -> str:
    """Return the machine as a line: its fields in their order, with one space between."""
    return f"{member.node} {member.node_rank} {member.address} {member.imports} {member.resume_command}"


def member_of(line: str) -> Member:
    """Return the machine that `member_line` has written. Raises ValueError if the line is none."""
    node, node_rank, address, imports, resume_command = line.split(" ", 4)
    return Member(node, int(node_rank), address, imports, resume_command)
