"""How long a joiner takes for its tensors from one donor, and from several that hold the same, in turns within one run.

Each donor is a process of its own. With `--rate` its link is narrow: the kernel paces its connections, so that together they have
that rate. Without, the loopback is as wide as it is, and what is shown is what it costs to compare what came from several.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

import torch

from torchrelay.shim.tensors.digest import digests
from torchrelay.shim.transfer import receive

HOST, TOKEN, CONNECTIONS = "127.0.0.1", "bench", 4
DONOR = """
import sys, torch
from torchrelay.shim.transfer import Donor
size = int(sys.argv[1])
torch.manual_seed(0)
tensors = {f"t{i}": torch.rand(size // 16 // 4) for i in range(16)}
for rate in map(int, iter(sys.stdin.readline, "")):
    donor = Donor(tensors, bind_host="127.0.0.1", generation=1, token="bench", peer_host="127.0.0.1",
                  deadline_s=600.0, log=print)
    port = donor.start()
    if rate:
        donor._listener.setsockopt(1, 47, rate)  # SOL_SOCKET, SO_MAX_PACING_RATE, which connections inherit
    print(port, flush=True)
    sys.stdin.readline()
    donor.close()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--donors", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rate", type=int, default=0, help="MB/s of each donor's link; 0: as it is")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    size = options.megabytes << 20
    torch.manual_seed(0)
    expected = digests({f"t{i}": torch.rand(size // 16 // 4) for i in range(16)})
    command = [sys.executable, "-c", DONOR, str(size)]
    donors = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(options.donors)
    ]
    taken_s: dict[int, list[float]] = {count: [] for count in range(1, options.donors + 1)}
    try:
        for _ in range(options.rounds):
            for count in taken_s:
                taken_s[count].append(one_round(donors, count, expected, options.rate * 1_000_000))
    finally:
        for donor in donors:
            donor.kill()
            donor.wait()
    alone_s = statistics.median(taken_s[1])
    for count, found_s in taken_s.items():
        median_s = statistics.median(found_s)
        rate = size / median_s / 1e6
        print(f"{count} donors: {median_s:.3f} s, {rate:.0f} MB/s, {alone_s / median_s:.2f} times as fast as one")


def say(donor: subprocess.Popen[str], text: object) -> None:
    assert donor.stdin is not None
    donor.stdin.write(f"{text}\n")
    donor.stdin.flush()


def one_round(donors: list[subprocess.Popen[str]], count: int, expected: dict[str, str], rate: int) -> float:
    chosen = []
    for donor in donors[:count]:
        say(donor, rate * count // CONNECTIONS)
        assert donor.stdout is not None
        chosen.append((HOST, int(donor.stdout.readline())))
    stats = receive(
        *chosen[0],
        generation=1,
        token=TOKEN,
        place=lambda infos: {info.path: torch.zeros(info.shape, dtype=info.dtype) for info in infos},
        more=chosen[1:],
        connections=CONNECTIONS,
        deadline_s=300.0,
    )
    assert stats.digests() == expected
    for donor in donors[:count]:
        say(donor, "done")
    return stats.elapsed_s


if __name__ == "__main__":
    main()
