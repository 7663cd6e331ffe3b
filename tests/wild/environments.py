"""Virtual environments for the programs of the wild corpus, made when they are first needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from wild.programs import Environment

PROJECT = Path(__file__).parents[2]


def make(environment: Environment, folder: Path) -> Path:
    """Return the Python of the environment below `folder`; install what it lacks.

    Raises subprocess.CalledProcessError where something cannot be installed.
    """
    place = folder / environment.name
    python, done = place / "bin" / "python", place / ".installed"
    wanted = "\n".join((*environment.torch, *environment.packages))
    if done.is_file() and done.read_text() == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    # torch by itself first, so that nothing else chooses its build
    for packages in (environment.torch, environment.packages, ("-e", str(PROJECT))):
        subprocess.run([str(python), "-m", "pip", "--quiet", "install", *packages], check=True)
    done.write_text(wanted)
    return python
