"""Generates the messages of relay.proto, and its code; `--check` only says whether what is committed is up to date.

What the services are, relay.proto says itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc
from proto_messages import with_messages

ROOT = Path(__file__).resolve().parent.parent / "protocol"
PROTO = Path("torchrelay/protocol/relay.proto")
GENERATED = ("relay.proto", "relay_pb2.py", "relay_pb2.pyi", "relay_pb2_grpc.py")


def generate(target: Path) -> None:
    """Write relay.proto and its code below `target`, in the folders of their package. Raises RuntimeError."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    made = with_messages((ROOT / PROTO).read_text(encoding="utf-8"))
    (target / PROTO).parent.mkdir(parents=True, exist_ok=True)
    (target / PROTO).write_text(made, encoding="utf-8")
    out = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{target}", f"-I{well_known}", *out, str(PROTO)]) != 0:
        raise RuntimeError(f"protoc refused {PROTO}")


def stale() -> list[str]:
    """Return the names of the committed files that differ from what is generated now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        names = []
        for name in GENERATED:
            committed = ROOT / PROTO.parent / name
            if not committed.exists() or committed.read_bytes() != (Path(folder) / PROTO.parent / name).read_bytes():
                names.append(name)
        return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something is stale")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    if names := stale():
        print(f"stale: {', '.join(names)}; run: python scripts/generate_proto.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
