"""Where this machine meets the others of its job, and what it would tell them of itself."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torchrelay.cli.command_line import program
from torchrelay.cli.command_line.addresses import LOOPBACK, parse_address
from torchrelay.cli.command_line.configs import program_fields
from torchrelay.cli.command_line.given import flags_to_go_on
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.controller_client.control import Control, target
from torchrelay.cli.leading.known_machines import mark, read_machines, read_mark, run_id_of, secret_of_checks
from torchrelay.cli.preflight.facts import Compared
from torchrelay.protocol.errors import ChannelClosedError, StrangerError, TorchrelayError
from torchrelay.protocol.messages import Program
from torchrelay.protocol.transport.wire import from_plain

ANSWER_S = 3.0
_CHECK_BYTES = 8
_OF_THE_SCRIPT = ("script", "sha256", "sources", "imported", "sources_cut", "resume_command", "nproc_per_node")
"""A check without a script says nothing of these."""


@dataclass(frozen=True)
class MeetingPlace:
    """`addresses`: HOST:PORT, wherever a controller of the job may listen. `there`: the same check on another machine."""

    addresses: tuple[str, ...]
    secret: bytes = field(repr=False)
    program: Program
    there: str
    options: RunOptions = field(repr=False)

    @property
    def others(self) -> tuple[str, ...]:
        """Return the other machines, as they are called."""
        return tuple(f"n{rank}" for rank in range(self.options.nnodes) if rank != self.options.node_rank)


@dataclass(frozen=True)
class Party:
    """Whom a machine asks, who know the `secret`, and what it says of itself: the job, or the meeting of its checks."""

    secret: bytes = field(repr=False)
    program: Program


def meeting_place(options: RunOptions) -> MeetingPlace | None:
    """Return where the machines meet; None for a job on one machine. Writes nothing."""
    if options.nnodes == 1 or options.secret is None:
        return None
    run_id = run_id_of(options.secret)
    known = read_machines(options.jit_dirs[0], run_id)
    addresses = [*(known.addresses if known is not None else ()), *(target(*each) for each in options.controllers)]
    if options.controller is None:  # its own command may be there already
        addresses.append(target(LOOPBACK, options.controller_port))
    marks = tuple(read_mark(each, run_id) for each in options.jit_dirs)
    fields = program_fields(replace(options, jit_marks=marks))
    if not options.script:
        fields = {name: value for name, value in fields.items() if name not in _OF_THE_SCRIPT}
    return MeetingPlace(
        tuple(dict.fromkeys(addresses)),
        options.secret,
        from_plain(Program, fields),
        _on_another_machine(options),
        options,
    )


def _on_another_machine(options: RunOptions) -> str:
    given = replace(options.given, node_rank=options.node_rank or 1)
    words = [*program.own_command(), "doctor", *flags_to_go_on(given)]
    words += [word for text in program.faults_of_all(options) for word in ("--inject", text)]
    return shlex.join([*words, *((given.script, *given.script_args) if given.script else ())])


def of_job(place: MeetingPlace) -> Party:
    """Return what the machine says to the job, if it is there."""
    return Party(place.secret, place.program)


def of_checks(place: MeetingPlace) -> Party:
    """Return what the machine says to other checks. Marks its folders for checkpoints, for machines that see the same ones."""
    secret = secret_of_checks(place.secret)
    marks = tuple(mark(each, run_id_of(secret)) for each in place.options.jit_dirs)
    check = secrets.token_hex(_CHECK_BYTES)
    return Party(secret, replace(place.program, jit_marks=marks, node=place.options.node, check=check))


def compare(place: MeetingPlace) -> Compared:
    """Ask the job's controllers, all at once."""
    return asyncio.run(ask(place.addresses, of_job(place)))


async def ask(addresses: Iterable[str], party: Party) -> Compared:
    """Ask at all the addresses at once. Return the answer that says most."""
    answers = await asyncio.gather(*(_ask(address, party) for address in addresses))
    found = next((each for each in answers if each.nodes), None) or next(
        (each for each in answers if each.address), None
    )
    if found is not None:
        return found
    return Compared(strangers=tuple(where for each in answers for where in each.strangers))


async def _ask(address: str, party: Party) -> Compared:
    async with Control(*parse_address("controller", address), party.secret) as control:
        try:
            reply = await control.compare(party.program, ANSWER_S)
        except StrangerError:
            return Compared(strangers=(address,))
        except ChannelClosedError:  # nobody is there
            return Compared()
        except TorchrelayError as e:
            return Compared(address, problem=str(e))
    return Compared(address, reply.nodes, reply.refused, reply.told)
