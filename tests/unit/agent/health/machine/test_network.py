from __future__ import annotations

import shutil
from pathlib import Path

from torchrelay.agent.health.machine.network import DISABLED, DOWN, Network
from torchrelay.protocol.health import kinds as k


def port_in(sys: Path) -> Path:
    port = sys / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    for folder in ("counters", "hw_counters"):
        (port / folder).mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "phys_state").write_text("5: LinkUp\n")
    (port / "counters" / "symbol_error").write_text("7\n")
    (port / "counters" / "link_downed").write_text("0\n")
    return port


def polled(network: Network) -> list[tuple[str, float]]:
    return [(s.kind, s.value) for s in network.poll()]


def test_what_moved_since_the_last_look_is_told_and_a_counter_that_is_not_there_is_not(tmp_path: Path) -> None:
    port = port_in(tmp_path)
    network = Network(tmp_path, ())
    polled(network)
    assert polled(network) == []
    (port / "counters" / "symbol_error").write_text("10\n")
    (port / "counters" / "link_downed").write_text("1\n")
    (port / "state").write_text("1: DOWN\n")
    assert sorted(polled(network)) == [(k.LINK_DOWN, DOWN), (k.LINK_FLAP, 1.0), (k.PORT + "symbol_error", 3.0)]


def test_a_port_that_is_gone_from_sysfs_is_a_dead_one_once(tmp_path: Path) -> None:
    port = port_in(tmp_path)
    network = Network(tmp_path, ())
    polled(network)
    shutil.rmtree(port)
    assert polled(network) == [(k.LINK_DOWN, DISABLED)]
    assert polled(network) == []
