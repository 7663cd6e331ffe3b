from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from unit.shim.adapters.process_groups.test_tcp import LONG_S, End, connect, reading, until

from torchrelay.shim.adapters.process_groups import sockets, tcp
from torchrelay.shim.comm import peer_links
from torchrelay.shim.comm.gate import Gate
from torchrelay.shim.comm.gate_links import Link
from torchrelay.shim.comm.peer_links import PeerLinks


def inode(connection: socket.socket) -> str:
    return os.readlink(f"/proc/self/fd/{connection.fileno()}")


@pytest.fixture
def pairs() -> list[End]:
    return [connect(), connect()]


def close(pairs: list[End]) -> None:
    for one, other in pairs:
        one.close()
        other.close()


def test_an_idle_connection_that_is_dead_is_told_from_one_that_lives(pairs: list[End]) -> None:
    (dead, cut), (alive, _) = pairs
    tcp.drop_all(cut.fileno())
    looked, wanted = PeerLinks(), {inode(dead), inode(alive)}
    assert [link.probed_s for link in looked.look(wanted, carry_all=True)] == [0.0, 0.0]
    looked.probe(wanted)

    def seen(connection: socket.socket) -> float:
        (link,) = (
            link for link in looked.look(wanted, carry_all=True) if link.local == tcp.ends(connection.fileno())[0]
        )
        return link.unanswered_s if link.probed_s > 0 else -1.0

    until(lambda: seen(dead) > 2.0)
    assert seen(alive) == 0.0
    looked.probe(wanted)
    assert seen(dead) > 2.0, "a second look does not begin anew"
    looked.stop()
    assert alive.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    close(pairs)


def test_data_that_nobody_acknowledges_tells_its_age_before_anybody_has_probed(pairs: list[End]) -> None:
    one, cut = pairs[0]
    tcp.drop_all(cut.fileno())
    one.sendall(b"x")
    until(lambda: reading(one).retransmits >= 4)
    (link,) = PeerLinks().look({inode(one)}, carry_all=True)
    assert link.probed_s == 0.0
    assert link.unanswered_s >= 2.5
    close(pairs)


def test_probing_ends_by_itself(pairs: list[End]) -> None:
    one, _ = pairs[0]
    looked = PeerLinks(probing_s=3.0)
    looked.probe({inode(one)})
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    until(lambda: one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0)
    assert [link.probed_s for link in looked.look({inode(one)}, carry_all=True)] == [0.0]
    until(lambda: not [t for t in threading.enumerate() if t.name == "torchrelay-links"])
    close(pairs)


def test_who_was_probed_long_enough_is_not_probed_until_the_kernel_ends_the_connection(
    pairs: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, cut = pairs[0]
    tcp.drop_all(cut.fileno())
    looked = PeerLinks()
    looked.probe({inode(one)})
    until(lambda: reading(one).probes >= 2)
    looked.stop()
    monkeypatch.setattr(peer_links, "MOST_PROBES", 2)
    looked.probe({inode(one)})
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    assert looked.look({inode(one)}, carry_all=True)[0].unanswered_s > 2.0
    looked.stop()
    close(pairs)


def test_a_rank_at_its_gate_comes_loose_though_no_packet_comes(pairs: list[End]) -> None:
    """Neither a message nor the end of a connection reaches it: it has to end its connections itself."""
    (up, cut_above), (down, cut_below) = pairs
    for end in (up, cut_above, down, cut_below):
        tcp.drop_all(end.fileno())
    names = {inode(up), inode(down)}
    gate = Gate([Link(up)], [Link(down)])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gate.wait, 0, 1)
        cut_below.sendall(b"x")
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        assert sockets.shut_down(names) == 2
        with pytest.raises(RuntimeError, match="Connection closed"):
            waiting.result(LONG_S)
    gate.close()
    cut_above.close()
    cut_below.close()


def test_a_question_whether_the_peer_is_there_is_no_data_and_what_is_no_whole_is_not_told(pairs: list[End]) -> None:
    one, other = pairs[0]
    wanted = {inode(one), inode(other)}
    looked = PeerLinks()
    looked.probe(wanted)

    def quiet_s() -> float:
        return min(link.quiet_s for link in looked.look(wanted, carry_all=True))

    until(lambda: quiet_s() > 2.0)  # it was asked twice by now
    assert max(link.silent_s for link in looked.look(wanted, carry_all=True)) < 1.5
    assert {link.quiet_s for link in looked.look(wanted, carry_all=False)} == {0.0}
    one.sendall(b"x")
    assert quiet_s() < 1.0
    looked.stop()
    close(pairs)
