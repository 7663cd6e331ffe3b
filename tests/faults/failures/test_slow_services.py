"""A rank that waits for a program beside the job is left alone, however little it does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.relay_run import relay
from support.training import steps_done

SLOW_STEP, TAKES_S = 15, 10.0
"""Much longer than a rank may stand still that only it could wake."""


@contextmanager
def service(asked: list[str]) -> Iterator[str]:
    """Answer each request with 0.5, that of SLOW_STEP late. Yield the address."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == f"/{SLOW_STEP}":
                over.wait(TAKES_S)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"0.5")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


def test_a_rank_that_waits_for_a_service_on_its_machine_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    asked: list[str] = []
    with service(asked) as address:
        run = relay(tmp_path, "asks_service.py", ranks=2, environment={"SERVICE": address})
    assert run.status == 0, run.told()
    assert run.named("suspected") == run.named("migration_started") == [], run.told()
    assert asked.count(f"/{SLOW_STEP}") == 1
    assert steps_done(run.out) == 24
