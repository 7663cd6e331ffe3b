"""The command line. What gRPC's core reads once, when it is loaded, has to be set before anything here loads it."""

from __future__ import annotations

import os

_VERBOSITY = "GRPC_VERBOSITY"
_WAS_SET = _VERBOSITY in os.environ
# gRPC's own lines about connections that end are not for the user's terminal.
os.environ.setdefault(_VERBOSITY, "NONE")


def user_environment() -> dict[str, str]:
    """Return the environment as the user gave it, for the script."""
    environment = dict(os.environ)
    if not _WAS_SET:
        environment.pop(_VERBOSITY, None)
    return environment
