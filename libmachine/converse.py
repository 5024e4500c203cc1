"""Conversations: a case of a machine with a counterpart is a whole talk between the two.

The counterpart begins, from the case; then they alternate. Each turn of each side is a run of its
own, stored before the next one begins, under a key of its own: what was cut off goes on from there
and buys each turn once. The machine is shown the turns and nothing else of the case: what the
counterpart was told stays hidden. The machine's last turn, whose messages are the whole
conversation from its side, stands for the case: it is printed, graded and selected.

How a conversation ends:

    `until` holds, or max_turns        the machine's turn is the run
    the machine says nothing           that turn is the run: `limit` if it ran into one
    a side fails                       a failed run
    the counterpart says nothing       a failed run: its limits are no fault of the machine

A reply that was cut at its length is said all the same, and the other side goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from libmachine.canon import Record, hash_of, now
from libmachine.case import as_messages
from libmachine.define import COUNTERPART, MACHINE, Counterpart, Run, steps_of
from libmachine.errors import CutShort, MachineError
from libmachine.folder import Folder
from libmachine.grade import sum_usage
from libmachine.harness.base import Engine, Message
from libmachine.load import Loaded
from libmachine.run import Job, Outcome, Runner, Settings
from libmachine.store.store import Store
from libmachine.tools import sources


@dataclass(frozen=True)
class Facing:
    """Who a machine talks with: the rule, the machine that plays it, the engine that serves that."""

    rule: Counterpart
    machine: Loaded
    engine: Engine


def runner_of(
    machine: Loaded,
    engine: Engine,
    store: Store,
    settings: Settings,
    facing: Facing | None,
    home: Folder | None = None,
    at_revision: Record | None = None,
) -> Runner:
    """What runs a machine's cases: answers, or conversations where it has a counterpart."""
    if facing is None:
        return Runner(machine, engine, store, settings, home, at_revision)
    return Conversations(machine, engine, store, settings, facing, home, at_revision)


@dataclass
class Talk:
    """One conversation as far as it has come: its runs in order. ended: the last is the case's."""

    job: Job
    said: list[Record] = field(default_factory=list)
    ended: bool = False

    @property
    def side(self) -> str:
        """Whose turn it is."""
        return MACHINE if len(self.said) % 2 else COUNTERPART

    @property
    def turn(self) -> int:
        """Number of that turn, of its side."""
        return 1 + len(self.said) // 2

    def key(self) -> str:
        """The key of the next turn. What was said is in it by the last run's id, as that names the others."""
        return hash_of([self.job.key, self.side, self.turn, self.said[-1]["id"] if self.said else None])

    def own(self) -> Record | None:
        """The last run of the side whose turn it is, None before its first."""
        return self.said[-2] if len(self.said) > 1 else None


class Conversations(Runner):
    """Runs the cases of a machine with a counterpart. Job keys name conversations.

    watch: called with each turn as it comes, stored already or just bought.
    """

    def __init__(
        self,
        machine: Loaded,
        engine: Engine,
        store: Store,
        settings: Settings,
        facing: Facing,
        home: Folder | None = None,
        at_revision: Record | None = None,
        watch: Callable[[Record], None] = lambda run: None,
    ) -> None:
        self.rule, self.watch = facing.rule, watch
        self._asking = threading.Lock()  # an author's function need not bear two threads
        # what the command line says of the model is about the machine; the other side is as its files say
        theirs = Settings(sampling=facing.machine.sampling(), seed=settings.seed)
        self.other = Runner(facing.machine, facing.engine, store, theirs)
        super().__init__(machine, engine, store, settings, home, at_revision)

    def _conditions(self) -> Record:
        rule = {
            "until": self.rule.until and hash_of(sources(self.rule.until)),
            "max_turns": self.rule.max_turns,
        }
        return {**super()._conditions(), "counterpart": {"conditions": self.other.conditions, **rule}}

    def job(self, case: Record, trial: int, base: str | None = None) -> Job:
        """The conversation of one trial of a case. Raises MachineError for a case with files."""
        if case.get("files"):
            raise MachineError(
                f"case '{case['id']}' has files, for which a conversation has no place; drop them"
            )
        return super().job(case, trial, base)

    def is_stored(self, job: Job) -> bool:
        """Is the whole conversation there?"""
        return self.settings.resume and self._walked(job).ended

    def is_taken(self, job: Job) -> bool:
        """Has somebody begun this conversation?"""
        return self.store.stored_answer(Talk(job).key()) is not None

    def _replay(self, job: Job) -> Outcome | None:
        talk = self._walked(job) if self.settings.resume else Talk(job)
        if not talk.ended:
            return None
        self._show(job, *talk.said)
        return Outcome(self.todays(talk.said[-1], job.case), False)

    def _walked(self, job: Job) -> Talk:
        """A conversation as far as it is stored."""
        talk = Talk(job)
        while not talk.ended and (run := self.stored(talk.key())) is not None and self._may_follow(talk, run):
            self._take(talk, run)
        return talk

    def _may_follow(self, talk: Talk, run: Record) -> bool:
        return talk.side == MACHINE or speaks(run)

    def _take(self, talk: Talk, run: Record) -> None:
        talk.ended = talk.side == MACHINE and bool(run["conversation"]["last"])
        talk.said.append(run)

    def _buy(self, job: Job) -> Outcome:
        talk = self._walked(job)
        self._show(job, *talk.said)
        while not talk.ended:
            if self.stop.is_set():
                raise CutShort("interrupted in a conversation; the same command goes on from there")
            run = self.stored(talk.key()) or self._say(talk)
            self._show(job, run)
            if talk.side == COUNTERPART and not speaks(run):
                talk.said.append(run)
                run = self._unanswered(talk, run)
                self._show(job, run)
            self._take(talk, run)
        return Outcome(self.todays(talk.said[-1], job.case), True)

    def _show(self, job: Job, *runs: Record) -> None:
        for run in runs:
            who = self if run["conversation"]["side"] == MACHINE else self.other
            self.watch(who.todays(run, job.case))

    def _say(self, talk: Talk) -> Record:
        """Buy the next turn."""
        who = self if talk.side == MACHINE else self.other
        history, start = self._history(talk)
        job = Job(talk.job.case, talk.job.trial, self._base(talk), talk.key())
        return who.buy(
            job, history, (talk.side, talk.turn), lambda finished: self._tagged(talk, finished, start)
        )

    def _base(self, talk: Talk) -> str:
        return talk.job.base if talk.side == MACHINE else hash_of([talk.job.base, COUNTERPART])

    def _history(self, talk: Talk) -> tuple[list[Message], int]:
        """What the side whose turn it is has before it, and where in a run's messages the turns begin.

        Its own turns whole, calls of tools included; of the other side what it said. The counterpart's
        begins with the case; the machine's with the counterpart's first words.
        """
        mine = talk.side == MACHINE
        instructions = 1 if (self if mine else self.other).machine.instructions else 0
        opening = [] if mine else as_messages(talk.job.case["input"])
        own = talk.own()
        before: list[Message] = opening if own is None else own["messages"][instructions:]
        heard = [{"role": "user", "content": talk.said[-1]["output"]}] if talk.said else []
        return [*before, *heard], instructions + len(opening)

    def _tagged(self, talk: Talk, finished: Record, start: int) -> Record:
        """The loop's fields of a turn with its place in the conversation."""
        own = talk.own()
        tag: Record = {
            "id": talk.job.key,
            "side": talk.side,
            "turn": talk.turn,
            "with": (self.other if talk.side == MACHINE else self).machine.name,
            "start": start,
            "runs": [run["id"] for run in talk.said],
            "steps": steps_of(own) if own else [],
            "usage": self._usage(talk, finished),
        }
        if talk.side == MACHINE:
            finished, tag["last"] = self._is_last(talk, {**finished, "conversation": tag})
        return {**finished, "conversation": tag}

    def _usage(self, talk: Talk, finished: Record) -> Record:
        """What each side spent so far, this turn included."""
        so_far = talk.said[-1]["conversation"]["usage"] if talk.said else {}
        parts = {side: [so_far[side]] if so_far else [] for side in (MACHINE, COUNTERPART)}
        parts[talk.side].append(finished["usage"])
        return {side: sum_usage(spent) for side, spent in parts.items()}

    def _is_last(self, talk: Talk, finished: Record) -> tuple[Record, bool]:
        """The machine's turn, failed if `until` fails on it, and whether the conversation ends with it."""
        if finished["status"] == "failed" or not speaks(finished) or talk.turn >= self.rule.max_turns:
            return finished, True
        if self.rule.until is None:
            return finished, False
        record = {**finished, "machine": self.machine.name, "case": talk.job.case, "trial": talk.job.trial}
        try:
            with self._asking:
                return finished, bool(self.rule.until(Run(record)))
        except Exception as error:
            return failed(finished, "until", type(error).__name__, str(error)), True

    def _unanswered(self, talk: Talk, run: Record) -> Record:
        """The machine's run where the counterpart did not go on: failed, without a call."""
        why = (
            run["error"]["message"]
            if run["status"] == "failed"
            else f"it says nothing ({run['stop_reason']})"
        )
        own, instructions = talk.own(), self.machine.instructions
        system: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        unasked: Record = {
            "messages": own["messages"] if own else system,
            "tools": [tool.schema for tool in self.tools.values()],
            "output": "",
            "usage": sum_usage([]),
            "steps": [],
            "answered": None,
            "started_at": now(),
            "duration_s": 0,
        }
        finished = failed(unasked, COUNTERPART, "MachineError", f"counterpart '{run['machine']}': {why}")
        job = Job(talk.job.case, talk.job.trial, talk.job.base, talk.key())
        return self.buy(job, tag=lambda done: self._tagged(talk, done, len(system)), finished=finished)


def speaks(run: Mapping[str, Any]) -> bool:
    """Is there something in a turn for the other side to answer? A reply cut at its length is."""
    return (run["status"] == "ok" or run["stop_reason"] == "length") and bool(run["output"].strip())


def failed(finished: Record, where: str, kind: str, message: str) -> Record:
    """A run's fields as those of a failed one."""
    error = {"where": where, "type": kind, "message": message}
    return {**finished, "status": "failed", "stop_reason": "error", "error": error}
