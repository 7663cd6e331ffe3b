"""Who may open a connection of the gate, and what is believed on it. Both ends are made to think that they are on two machines."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.comm import gate_links
from torchrelay.shim.comm.gate_links import GateCall, GateListener, Link

SECRET = b"of the generation".ljust(GATE_SECRET_BYTES, b".")
OTHER_SECRET = bytes(GATE_SECRET_BYTES)
GENERATION, CALLER, LISTENER, ROUND = 3, 4, 5, 0
MESSAGE = b"all are here; go on now."
PROOF_BYTES = 16


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_links, "is_local", lambda connection: False)


@pytest.fixture
def listener() -> Iterator[GateListener]:
    listener = GateListener("127.0.0.1", SECRET, GENERATION, LISTENER)
    yield listener
    listener.close()


def call(
    listener: GateListener, secret: bytes = SECRET, generation: int = GENERATION, peer: int = LISTENER
) -> GateCall:
    return GateCall(("127.0.0.1", listener.port), listener.nonce, secret, generation, CALLER, peer, ROUND, 30.0)


def connected(listener: GateListener) -> tuple[Link, Link]:
    calling = call(listener)
    accepted = listener.accept(30)
    assert accepted is not None
    number, down = accepted
    assert number == ROUND
    return calling.answered(30), down


def tcp_pair() -> tuple[Link, Link]:
    """Plain sockets but for their end, which nobody has to mind."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return Link(socket.create_connection(server.getsockname())), Link(server.accept()[0])


def overheard(nonce: bytes) -> bytearray:
    """The hello of a rank of the generation, on its way to the listener with that nonce."""
    with socket.create_server(("127.0.0.1", 0)) as between:
        address = between.getsockname()
        calling = GateCall(address, nonce, SECRET, GENERATION, CALLER, LISTENER, ROUND, 30.0)
        hello = bytearray(Link(between.accept()[0]).recv(1000))
        calling.close()
    return hello


def proven_pair(key: bytes = b"k" * 32) -> tuple[Link, Link, Link, Link]:
    """A link to somebody who listens, and one from somebody who speaks: the wire between them is ours."""
    (up, heard), (down, spoken) = tcp_pair(), tcp_pair()
    heard.settimeout(30)
    spoken.settimeout(30)
    return Link(up, key), Link(down, key), heard, spoken


def test_what_is_said_between_machines_arrives_in_order(machines: None, listener: GateListener) -> None:
    up, down = connected(listener)
    for message in (MESSAGE, MESSAGE, MESSAGE[::-1]):
        up.say(message)
        assert down.hear(len(MESSAGE)) == message


@pytest.mark.parametrize("key", [b"", b"k" * 32], ids=["one machine", "machines"])
def test_on_one_machine_nothing_is_added_and_between_machines_a_proof(key: bytes) -> None:
    up, _, heard, _ = proven_pair(key)
    up.say(MESSAGE)
    up.close()
    assert len(heard.recv(1000, socket.MSG_WAITALL)) == len(MESSAGE) + (PROOF_BYTES if key else 0)


def test_connections_within_one_machine_are_made_without_proofs(listener: GateListener) -> None:
    up, down = connected(listener)
    down.send(MESSAGE)  # as a caller without a key would
    assert up.recv(1000) == MESSAGE
    up.send(MESSAGE)
    assert down.hear(len(MESSAGE)) == MESSAGE


@pytest.mark.parametrize("place", [0, len(MESSAGE) - 1, len(MESSAGE), len(MESSAGE) + PROOF_BYTES - 1])
def test_a_message_that_was_changed_on_its_way_is_none(place: int) -> None:
    up, down, heard, spoken = proven_pair()
    up.say(MESSAGE)
    data = bytearray(heard.recv(1000))
    data[place] ^= 1
    spoken.sendall(data)
    with pytest.raises(ConnectionAbortedError, match="not what the peer has sent"):
        down.hear(len(MESSAGE))


def test_a_message_without_a_proof_is_none() -> None:
    _, down, _, spoken = proven_pair()
    spoken.sendall(MESSAGE + bytes(PROOF_BYTES))
    with pytest.raises(ConnectionAbortedError):
        down.hear(len(MESSAGE))


def test_a_message_that_is_played_again_is_none() -> None:
    up, down, heard, spoken = proven_pair()
    up.say(MESSAGE)
    data = heard.recv(1000)
    spoken.sendall(data)
    assert down.hear(len(MESSAGE)) == MESSAGE
    spoken.sendall(data)
    with pytest.raises(ConnectionAbortedError):
        down.hear(len(MESSAGE))


def test_a_message_that_was_left_out_is_noticed_by_the_next_one() -> None:
    up, down, heard, spoken = proven_pair()
    up.say(MESSAGE)
    heard.recv(1000)
    up.say(MESSAGE)
    spoken.sendall(heard.recv(1000))
    with pytest.raises(ConnectionAbortedError):
        down.hear(len(MESSAGE))


def test_each_connection_has_a_key_of_its_own(machines: None, listener: GateListener) -> None:
    """So nobody can send a rank its own words back, or a word of one connection on another one."""
    (up, _), (_, other_down) = connected(listener), connected(listener)
    assert up._key != other_down._key
    other_way = GateListener("127.0.0.1", SECRET, GENERATION, CALLER)
    answering = GateCall(
        ("127.0.0.1", other_way.port), other_way.nonce, SECRET, GENERATION, LISTENER, CALLER, ROUND, 30.0
    )
    accepted = other_way.accept(30)
    assert accepted is not None
    theirs = answering.answered(30)
    assert len({up._key, other_down._key, accepted[1]._key}) == 3
    assert theirs._key == accepted[1]._key
    other_way.close()


@pytest.mark.parametrize(
    "wrong",
    [{"secret": OTHER_SECRET}, {"generation": GENERATION - 1}, {"peer": LISTENER + 1}],
    ids=["secret", "generation", "rank"],
)
def test_a_caller_that_means_another_secret_generation_or_rank_is_turned_away(
    wrong: dict[str, object], machines: None, listener: GateListener
) -> None:
    calling = call(listener, **wrong)  # type: ignore[arg-type]
    assert listener.accept(30) is None
    with pytest.raises(ConnectionResetError):
        calling.answered(30)
    calling.close()


def test_a_hello_that_was_heard_elsewhere_is_worth_nothing_to_another_listener(
    machines: None, listener: GateListener
) -> None:
    """Of the same rank and generation, in a job of the same secret."""
    hello = overheard(b"n" * 16)
    with socket.create_connection(("127.0.0.1", listener.port)) as stranger:
        stranger.sendall(hello)
        assert listener.accept(30) is None


def test_a_listener_that_does_not_hold_the_secret_is_no_peer(machines: None) -> None:
    impostor = GateListener("127.0.0.1", OTHER_SECRET, GENERATION, LISTENER)
    impostor._is_of_ours = lambda terms, proof: True  # type: ignore[method-assign]
    calling = call(impostor)
    assert impostor.accept(30) is not None, "it takes everybody"
    with pytest.raises(ConnectionRefusedError, match="what answers there is not rank 5 of this generation"):
        calling.answered(30)
    calling.close()
    impostor.close()


def test_a_caller_from_another_machine_that_offers_no_proofs_is_turned_away(
    monkeypatch: pytest.MonkeyPatch, listener: GateListener
) -> None:
    calling = call(listener)  # to it, both are on one machine
    monkeypatch.setattr(gate_links, "is_local", lambda connection: False)
    assert listener.accept(30) is None
    calling.close()


def test_nobody_talks_a_listener_out_of_proofs_on_the_way(
    monkeypatch: pytest.MonkeyPatch, listener: GateListener
) -> None:
    """Also where the listener would do without: the hello is one piece."""
    with monkeypatch.context() as patch:
        patch.setattr(gate_links, "is_local", lambda connection: False)
        hello = overheard(listener.nonce)
    assert hello[24] == 1, "the mark for messages with proofs"
    hello[24] = 0
    with socket.create_connection(("127.0.0.1", listener.port)) as meddler:
        meddler.sendall(hello)
        assert listener.accept(30) is None
