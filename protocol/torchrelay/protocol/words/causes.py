"""Why a migration began, and why a job is protected as far as it is: a few words for programs, beside the reason for people."""

from __future__ import annotations

from enum import Enum


class MigrationCause(str, Enum):
    """What the first event of a migration was."""

    ASKED = "asked"
    """By a person, or a Migration object."""
    TOLD_TO_END = "told-to-end"
    """The rank's process, or its pod."""
    EVIDENCE = "evidence"
    """Of a device or a node, by the fault policy."""
    SPREAD = "spread"
    """To another machine, for the job's protection."""
    PROCESS = "process"
    """It died."""
    HANG = "hang"
    NODE = "node"
    """The machine, or pod, was given up as a whole."""
    NUMBERS = "numbers"
    """A watch on numbers, or replicas that differ."""
    RESUME = "resume"
    """All enter from a checkpoint."""


class ProtectionCause(str, Enum):
    """What a level of protection depends on."""

    COVERED = "covered"
    """Nothing is missing."""
    SET_UP = "set-up"
    """Ranks have not come to their training loop yet."""
    OFF = "off"
    """Somebody's choice, or a rank could not be armed."""
    GAPS = "gaps"
    """What a rank's report or a rehearsal has shown."""
    PLANNED_ONLY = "planned-only"
    """A lost rank is not replaced, by somebody's choice."""
    NO_REPLICA = "no-replica"
    """No rank's tensors are held by another one as well."""
    NO_SPARE = "no-spare"
    NO_ROOM = "no-room"
    """In shared memory, or where checkpoints go."""
    MACHINE = "machine"
    """The loss of a whole machine would end the job."""
    FAULT = "fault"
    """Something of torchrelay's has failed in this job."""
