"""These tests run in the virtual environment of the imitated GPU alone: `make test-imitated-gpu`."""

from __future__ import annotations

import imitated_gpu

collect_ignore_glob = [] if imitated_gpu.is_built() else ["test_*.py"]
