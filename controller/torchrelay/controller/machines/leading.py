"""Decides, on several machines, whether this controller leads the job, and may go on without machines that it does not hear."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.decide.restart.same_program import imports_key
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.node import Node
from torchrelay.protocol.messages import AgentHello, Follow, LeadReply, LeadRequest, Member
from torchrelay.protocol.options.members import member_of
from torchrelay.protocol.quorum import QuorumAnswer, QuorumVerdict, may_go_on, next_epoch

CANDIDATE_S = 12.0
"""Time for enough machines to come to a controller that takes over. It is less than admission.MISSING_S: until then this controller

judges no machine.
"""
OTHERS_COME_S = 2.0
"""Before half of the machines claim to be enough, the others may still come for so long."""


def no_claim(after: int, epoch: int) -> bool:
    """Return False: machines share no folder."""
    return False


class Leading:
    """Leads the job, or does not. `claim(after, epoch)` writes into the shared folder that `epoch` follows `after`.

    It returns whether this controller is the first to do so.
    """

    def __init__(self, config: ControllerConfig, job: Job, outbox: Outbox, claim: Callable[[int, int], bool]) -> None:
        self._config = config
        self._job = job
        self._outbox = outbox
        self._claim = claim
        self.epoch = config.epoch
        self.is_led = not config.takes_over or not config.epoch
        """Whether enough machines have come to it. Before that it decides nothing."""
        self.stood_down = ""
        """Why it leads no more, or never did; nothing that it knows counts from then on."""
        self._members = {m.node: m for m in map(member_of, config.members)}
        self._names = set(config.nodes)
        self._sharers: set[str] = set()
        self._has_said_shared = config.shared
        self._since_s: float | None = None
        self._follow: dict[str, int] = {}
        """Machine -> the newest epoch that its command has said to follow."""
        self._leaving: dict[str, int] = {}
        """Machines that are to be given up, once enough of the others follow this epoch."""
        self._agreed = config.epoch if self.is_led else config.follows
        """The newest epoch that enough machines follow, or have followed before this controller."""
        self._half_since_s: float | None = None
        """Since when only half of the machines are there."""
        self._claimed_with: frozenset[str] = frozenset()
        """The half of the machines with which it goes on, being the first to have said so."""
        self._said: dict[str, str] = {}

    @property
    def is_on(self) -> bool:
        """Whether there could be another controller."""
        return self._config.epoch > 0

    def attached(self, hello: AgentHello, now_s: float) -> None:
        """Take in an agent.

        This controller stands down if the agent follows a newer controller, or is of a job that has begun already.
        """
        if not self.is_on:
            return
        self._compare(hello.node, f"the agent of {hello.node}", hello.job, hello.epoch, now_s)
        if self.stood_down:
            return
        self._is_heard_by(hello.node)
        self._leaving.pop(hello.node, None)
        program = hello.program
        self._members[hello.node] = Member(
            hello.node, hello.node_rank, hello.candidate, imports_key(program), program.resume_command
        )
        self._names.add(hello.node)
        if self.is_led:
            self._outbox.to_agent(hello.node, Follow(self._config.job_name, self._epoch_for(hello.node)))

    def tick(self, now_s: float) -> None:
        """Look whether to lead or to stand down. To be called until it leads."""
        if self.is_led or self.stood_down:
            return
        self._since_s = now_s if self._since_s is None else self._since_s
        waited_s = now_s - self._since_s
        verdict = may_go_on(self.members, self._there(now_s), False, self._shared)
        if verdict.answer is QuorumAnswer.GO_ON:
            self._lead(verdict)
        elif verdict.answer is QuorumAnswer.CLAIM and waited_s >= OTHERS_COME_S:
            if self._claim(self._config.follows, self.epoch):
                self._claimed_with = self._there(now_s)
                self._lead(verdict)
            else:
                self._stand_down("the shared folder says that another one leads, or cannot be written")
        elif waited_s >= CANDIDATE_S:
            self._stand_down(verdict.reason)

    def keep(self, now_s: float) -> None:
        """Look whether it may lead on. To be called while it leads a job that has begun.

        With half of the machines it leads on only if it is the first to say so. It has to say so before the lease of its own
        machine is over.
        """
        if not self.is_on or self.stood_down:
            return
        there = self._there(now_s)
        if may_go_on(self.members, there, True, self._shared).answer is not QuorumAnswer.CLAIM or self._has_claimed(
            there
        ):
            self._half_since_s = None
            return
        self._half_since_s = now_s if self._half_since_s is None else self._half_since_s
        if now_s - self._half_since_s >= self._config.lease_s / 2:
            self._claim_on(there)

    def _is_heard_by(self, node: str) -> None:
        """Drop the claim, if it was made without `node`.

        A machine that knows the present epoch could claim what follows it, so what was claimed without it has to be claimed anew.
        A command that is yet to join (its node has no name) follows nobody, and claims nothing.
        """
        if node and node not in self._claimed_with:
            self._claimed_with = frozenset()

    def _has_claimed(self, there: Set[str]) -> bool:
        return bool(self._claimed_with) and self._claimed_with <= there

    def _claim_on(self, there: Set[str]) -> bool:
        """Claim to go on with these machines. Return whether this controller is the first to do so."""
        epoch = next_epoch(self.epoch, self._own_rank, self._config.nnodes)
        if not self._claim(self.epoch, epoch):
            self._stand_down("the shared folder says that another one leads, or cannot be written")
            return False
        self.epoch = self._agreed = epoch
        self._claimed_with = frozenset(there)
        self._outbox.to_all_agents(Follow(self._config.job_name, epoch))
        return True

    def may_give_up(self, node: str, now_s: float) -> bool:
        """Return whether the job may go on without the node, which is not heard. It may have been asked before."""
        if not self.is_on:
            return True
        there = self._there(now_s) - {node}
        verdict = may_go_on(self.members, there, True, self._shared)
        if verdict.answer is QuorumAnswer.CLAIM:
            return self._has_claimed(there) or self._claim_on(there)
        if verdict.answer is QuorumAnswer.GO_ON and 2 * len(there) > len(self.members):
            return self._have_agreed(node, there)
        if verdict.answer is QuorumAnswer.WAIT and self._said.get(node) != verdict.reason:
            self._said[node] = verdict.reason
            self._outbox.log("warning", f"{node} is not heard, and the job does not go on without it: {verdict.reason}")
        return verdict.answer is QuorumAnswer.GO_ON

    def _have_agreed(self, node: str, there: Set[str]) -> bool:
        """Return whether more than half of the machines follow an epoch that the node, which is to be given up, cannot know of.

        That they were heard a moment ago is not enough: they may be cut off as well, and go on without this machine. None of them
        follows an older epoch from then on, so that the node cannot become more than half together with some of them.
        """
        if node not in self._leaving:
            self._advance()
            self._leaving[node] = self.epoch
        epoch = self._leaving[node]
        agreed = {n for n in there if n == self._config.node or self._follow.get(n, 0) >= epoch}
        if 2 * len(agreed) <= len(self.members):
            return False
        if epoch > self._agreed:
            self._agreed = epoch
            if self._config.node in self._job.nodes:
                self._outbox.to_agent(self._config.node, Follow(self._config.job_name, epoch))
        return True

    def _advance(self) -> None:
        self.epoch = next_epoch(self.epoch, self._own_rank, self._config.nnodes)
        for node in self._job.nodes:
            if node != self._config.node:
                self._outbox.to_agent(node, Follow(self._config.job_name, self.epoch))

    def _epoch_for(self, node: str) -> int:
        """Return the epoch that a machine is told to follow.

        The controller's own machine hears of an epoch once enough others follow it. If it was told before, was
        cut off and came back, it would make the leading controller stand down for an epoch that no machine has ever followed.
        """
        return self._agreed if node == self._config.node else self.epoch

    @property
    def _own_rank(self) -> int:
        known = self._members.get(self._config.node)
        return known.node_rank if known is not None else self._config.epoch % self._config.nnodes

    def is_followed(self, now_s: float) -> bool:
        """Return whether no other controller can lead any more.

        Enough machines know of this controller then, and follow no older one.
        """
        there = self._there(now_s)
        agreed = {n for n in there if n == self._config.node or self._follow.get(n, 0) >= self.epoch}
        return not self.is_on or 2 * len(agreed) > len(self.members) or self._has_claimed(there)

    def leave_out(self, node: str) -> None:
        """Leave out a node that is no machine of this job any more."""
        self._members.pop(node, None)

    def answer(self, request: LeadRequest, begun: bool, migrations_begun: int, now_s: float) -> LeadReply:
        """Answer a command that asks who leads, and take in what it says."""
        if not self.is_on:
            return LeadReply(0)
        if request.node in self._leaving:
            if request.node not in self._there(now_s):
                return LeadReply(0)
            del self._leaving[request.node]
        self._is_heard_by(request.node)
        self._compare(request.node, f"machine {request.node_rank}", request.job, request.epoch, now_s)
        if request.node and request.job == self._config.job_name:
            self._follow[request.node] = max(request.epoch, self._follow.get(request.node, 0))
        if request.node and request.shares:
            self._sharers.add(request.node)
        members = self.members
        there = self._there(now_s)
        self._has_said_shared = self._shared
        verdict = may_go_on(members, there, self.is_led, self._shared)
        config = self._config
        holders = self._job.holders
        reply = LeadReply(
            self._epoch_for(request.node),
            config.job_name,
            config.node,
            tuple(sorted((self._members[n] for n in members), key=lambda m: (m.node_rank, m.node))),
            begun,
            # Before all machines have come for the first time nobody else could lead.
            self.is_led
            and not self.stood_down
            and (verdict.answer is QuorumAnswer.GO_ON or self._has_claimed(there) or not begun),
            self._shared,
            nodes=tuple(sorted(self._names)),
            holders=tuple(holders[rank] for rank in sorted(holders)) if len(holders) == self._job.world_size else (),
            migrations_begun=migrations_begun,
            restarts_done=config.restarts_done,
            scripts_begun=config.scripts_begun,
            resume_dir=config.resume_dir,
            lease_s=config.lease_s,
            follows=self._agreed,
        )
        return reply if request.node else self._with_place(reply, request.node_rank, begun, there)

    def _with_place(self, reply: LeadReply, node_rank: int, begun: bool, there: Set[str]) -> LeadReply:
        first = f"n{node_rank}"
        if any(m.node_rank == node_rank and m.node in there for m in self._members.values()):
            return replace(reply, refused=f"machine {node_rank} is there already")
        if not begun:
            return replace(reply, place=first)
        lives = sum(name == first or name.startswith(f"{first}-") for name in self._names)
        return replace(reply, place=f"{first}-{lives + 1}" if lives else first)

    @property
    def members(self) -> frozenset[str]:
        return frozenset(
            node for node in self._members if (known := self._job.nodes.get(node)) is None or _takes_part(known)
        )

    @property
    def all_others_are_there(self) -> bool:
        """Whether all members but one have come to a controller that takes over: it need not wait for more."""
        return len(self.members - set(self._job.nodes)) <= 1

    @property
    def _shared(self) -> bool:
        """Whether all machines share the folder. Once the others have been told so, they rely on it."""
        return self._has_said_shared or (len(self.members) > 1 and self.members <= self._sharers)

    def _there(self, now_s: float) -> frozenset[str]:
        return frozenset(node for node in self.members if node in self._job.nodes and self._is_heard(node, now_s))

    def _is_heard(self, node: str, now_s: float) -> bool:
        known = self._job.nodes[node]
        return known.away_since_s is None and now_s - known.heard_s < self._config.policy.node_silent_s

    def _compare(self, node: str, who: str, job: str, epoch: int, now_s: float) -> None:
        if job and job != self._config.job_name:
            self._stand_down(f"{who} is of a job of the same secret that has begun already")
        elif epoch > self.epoch or (epoch > self._agreed and epoch % self._config.nnodes != self._own_rank):
            if self._is_followed_by_most(node, now_s):
                self._rise_above(epoch)
            else:
                self._stand_down(f"{who} follows a controller that began later")

    def _is_followed_by_most(self, without: str, now_s: float) -> bool:
        """Return whether no controller can lead by the epoch that the machine `without` knows of.

        Too few machines are left then that could follow it. What the others have said may be some seconds old. That does no harm:
        no node is given up before they follow a new epoch.
        """
        there = self._there(now_s) - {without}
        following = {n for n in there if n == self._config.node or self._follow.get(n, 0) >= self._agreed}
        return self.is_led and not self.stood_down and 2 * len(following) > len(self.members)

    def _rise_above(self, epoch: int) -> None:
        """Go on with a newer epoch than `epoch`, by which no controller leads.

        A machine that has heard of `epoch` follows none of an older one.
        """
        self.epoch = max(self.epoch, epoch)
        self._advance()
        text = (
            f"a machine was told of epoch {epoch}, by which nobody leads: this controller goes on as epoch {self.epoch}"
        )
        self._outbox.log("info", text)

    def _lead(self, verdict: QuorumVerdict) -> None:
        self.is_led = True
        self._agreed = self.epoch
        self._outbox.to_all_agents(Follow(self._config.job_name, self.epoch))
        self._outbox.log("info", f"the controller of {self._config.node} leads the job: {verdict.reason}")

    def _stand_down(self, reason: str) -> None:
        self.stood_down = self.stood_down or f"the controller of {self._config.node} stands down: {reason}"


def _takes_part(node: Node) -> bool:
    return not (node.lost or node.released)
