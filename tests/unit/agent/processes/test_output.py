"""--tee, --redirects and --log-dir, against torch's own parser and with real files."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from torchrelay.agent.output_streams import STDERR, STDOUT, parse_streams, streams_of
from torchrelay.agent.processes.output import FileFollower, Output
from torchrelay.protocol.errors import UserError


@pytest.mark.parametrize("text", ["0", "1", "2", "3", "0:3", "0:3,1:1", "1:2,0:0", "", "4", "0:4", "0:3,", "x", "-1"])
def test_values_mean_what_torch_says(text: str) -> None:
    api = pytest.importorskip("torch.distributed.elastic.multiprocessing.api")
    try:
        wanted = api.Std.from_str(text)
    except ValueError:
        with pytest.raises(UserError, match="--tee"):
            parse_streams("tee", text)
        return
    got = parse_streams("tee", text)
    ranks = range(3)
    assert [streams_of(got, r) for r in ranks] == [int(s) for s in api.to_map(wanted, len(ranks)).values()]


def test_a_spare_is_captured_where_any_rank_is() -> None:
    assert streams_of(parse_streams("tee", "0:1,1:2"), None) == STDOUT | STDERR


def test_without_flags_nothing_is_captured_and_no_folder_is_made(tmp_path: Path) -> None:
    output = Output("0", "0", str(tmp_path / "logs"), "run", "default")
    assert output.open("n0.w0", "0", 0) == {}
    output.start()
    output.end()
    assert not (tmp_path / "logs").exists()


def test_teed_lines_carry_their_rank_and_redirected_ones_stay_in_the_file(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    output = Output("0:1", "1:3", str(tmp_path), "run", "default")
    streams = {w: output.open(w, w[-1], int(w[-1])) for w in ("n0.w0", "n0.w1")}
    assert {w: set(s) for w, s in streams.items()} == {"n0.w0": {STDOUT}, "n0.w1": {STDOUT, STDERR}}
    output.start()
    for worker, files in streams.items():
        for stream, file in files.items():
            file.write(f"{worker} on {stream}\nand no end".encode())
            file.close()
    output.end()
    (attempt,) = tmp_path.glob("run_*/attempt_0")
    assert (attempt / "1" / "stderr.log").read_text() == "n0.w1 on 2\nand no end"
    assert (attempt / "0" / "stdout.log").read_text() == "n0.w0 on 1\nand no end"
    out, err = capfdbinary.readouterr()
    assert (out, err) == (b"[default0]:n0.w0 on 1\n[default0]:and no end\n", b"")


def test_output_of_a_process_that_has_ended_is_repeated_to_its_end_and_followed_no_longer(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    output = Output("3", "0", str(tmp_path), "run", "default")
    streams = {w: output.open(w, w[-1], int(w[-1])) for w in ("n0.w0", "n0.w1")}
    output.start()
    streams["n0.w0"][STDOUT].write(b"and no end")
    for files in streams.values():
        for file in files.values():
            file.close()
    output.forget("n0.w0")
    end_s = time.monotonic() + 10.0
    while len(output._followers) > 2 and time.monotonic() < end_s:
        time.sleep(0.01)
    assert {follower.worker for follower in output._followers} == {"n0.w1"}
    assert capfdbinary.readouterr().out == b"[default0]:and no end\n"
    output.end()


@pytest.mark.parametrize(
    ("tee", "redirects", "expected"),
    [
        ("3", "0", "[spare0]:before\n[trainer1]:after\n"),
        ("1:3", "0", "[spare0]:before\n[trainer1]:after\n"),
        ("0:3", "0", "[spare0]:before\nafter\n"),
        ("0:3", "1:3", "[spare0]:before\n"),
    ],
    ids=["all", "its rank", "another rank", "redirected"],
)
def test_a_joiners_lines_are_treated_as_its_ranks_once_it_has_one(
    tmp_path: Path, tee: str, redirects: str, expected: str
) -> None:
    output = Output(tee, redirects, str(tmp_path), "run", "trainer")
    console = io.BytesIO()
    files = output.open("n0.s0", "spare0", None)
    follower = next(f for f in output._followers if f.path.name == "stdout.log")
    follower.console = console
    files[STDOUT].write(b"before\n")
    files[STDOUT].flush()
    follower.advance()
    output.assign("n0.s0", 1)
    files[STDOUT].write(b"after\n")
    for file in files.values():
        file.close()
    follower.advance()
    assert console.getvalue().decode() == expected


def test_lines_are_repeated_whole_and_a_line_without_end_does_not_grow_in_memory(tmp_path: Path) -> None:
    console, path = io.BytesIO(), tmp_path / "log"
    follower = FileFollower(path, console, lambda: b">")
    path.write_bytes(b"half ")
    follower.advance()
    assert console.getvalue() == b""
    with open(path, "ab") as f:
        f.write(b"a line\n" + b"x" * (3 << 20))
    follower.advance()
    assert console.getvalue().startswith(b">half a line\n>xxx")
    assert len(follower.rest) <= 1 << 20
    follower.advance(last=True)
    assert console.getvalue().count(b"x") == 3 << 20
