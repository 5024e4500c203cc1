"""The table between base and new, on places made of dictionaries; and what a noted verdict has to prove."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from libmachine.canon import Record, plain
from libmachine.case import read_case
from libmachine.errors import MachineError, Untestable
from libmachine.folder import rubric_hash
from libmachine.gate import rule as gate_rule
from libmachine.gate.change import Answer, Around, changed, judge_change
from libmachine.gate.exam import effective_criteria, in_code
from libmachine.gate.proof import Policy, follows
from libmachine.gate.question import holdout_hash
from libmachine.gate.ranges import Pushed, read_lines
from libmachine.git.place import Place
from libmachine.githash import FILE, blob_id

EXAM = "".join(json.dumps({"input": f"exam {n}"}) + "\n" for n in range(12))
SAY = {
    "say/machine.py": "machine = Machine(intent='x')",
    "say/instructions.md": "Say.",
    "say/model.json": "{}",
    "say/rubric.toml": '[good]\ndescription = "Good."\n',
    "say/holdout.jsonl": EXAM,
}
CHILD = {"say/low/machine.py": "x", "say/low/instructions.md": "Low.", "say/low/holdout.jsonl": EXAM}


class Given(Place):
    """A place made of path (below machines/) -> text; links: paths that are symbolic links."""

    def __init__(self, files: Mapping[str, str], links: Iterable[str] = ()) -> None:
        super().__init__("given", "machines")
        self.files = {f"machines/{path}": text.encode() for path, text in files.items()}
        self.links = {f"machines/{path}" for path in links}

    def _list(self, path: str) -> dict[str, str]:
        names = {*self.files, *self.links}
        return {n: "120000" if n in self.links else FILE for n in names if f"{n}/".startswith(f"{path}/")}

    def oid(self, path: str) -> str | None:
        return blob_id(self.files.get(path, b"link")) if path in {*self.files, *self.links} else None

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        return {path: self.files[path] for path in paths if path in self.files}


def verdict(base: Place, new: Place, name: str = "say", was: str | None = None, **changes: Any) -> Record:
    """A verdict by which every case got better, with some of its fields changed."""
    identities = sorted(read_case(json.loads(line))["identity"] for line in EXAM.splitlines())
    exam = new.holdout(name)
    if exam is not None:
        identities = sorted({read_case(json.loads(line))["identity"] for line in exam.splitlines()})
    criteria = effective_criteria(new, name)
    zeros, ones = [[0, 0, 0] for _ in identities], [[1, 1, 1] for _ in identities]
    arms: Record = {"cases": identities, "live": zeros, "candidate": ones}
    guards = {c.id: {"guard": c.guard, "live": zeros, "candidate": ones} for c in criteria if c.guard}
    arms |= {"guards": guards} if guards else {}
    rule = {**gate_rule.RULE, **changes.pop("rule", {})}
    tries = changes.pop("tries", 1)
    arms = changes.pop("arms", lambda arms: arms)(copy.deepcopy(arms))
    record = {
        "type": "verdict",
        "machine": was or name,
        "baseline": base.version(was or name),
        "candidate": new.version(name),
        "rubric": rubric_hash(criteria),
        "holdout": holdout_hash(exam),
        "graders": new.others(name),
        "on": "score",
        "tries": tries,
        "arms": arms,
        "decided_at": "2026-01-01T00:00:00Z",
        **gate_rule.decide(arms, tries, rule),
        "rule": rule,
        **changes,
    }
    return plain(record)


def ask(
    base: Place | None,
    new: Place,
    *records: Record,
    name: str = "say",
    policy: Policy | None = None,
    **around: Any,
) -> Answer:
    def notes(tree: str) -> list[Record]:
        return [record for record in records if record["candidate"] == tree]

    return judge_change(base, new, name, notes, policy or Policy(), Around(**around))


def given(**changes: str | None) -> Given:
    """SAY with files changed: instructions="...", model, rubric, holdout, machine; None takes one away."""
    names = {
        "instructions": "instructions.md",
        "model": "model.json",
        "rubric": "rubric.toml",
        "holdout": "holdout.jsonl",
        "machine": "machine.py",
    }
    files: dict[str, str | None] = dict(SAY)
    files |= {f"say/{names[key]}": text for key, text in changes.items()}
    return Given({path: text for path, text in files.items() if text is not None})


BASE = given()
BETTER = given(instructions="Say it better.")


# rows of the table ----------------------------------------------------------------------


def test_nothing_or_only_cases() -> None:
    assert ask(BASE, BASE) == Answer("say", "same", base=BASE.version("say"), version=BASE.version("say"))
    more = Given({**SAY, "say/cases.jsonl": "{}", "say/holdout.jsonl": "broken", "README": "x"})
    assert ask(BASE, more).decision == "same"


def test_tools() -> None:
    answer = ask(BASE, given(machine="another = 1"))
    assert (answer.decision, answer.code) == ("same", 0)
    assert answer.warnings[0].startswith("tools_changed")


def test_behaviour_in_code_is_in_no_version() -> None:
    new = given(machine="from libmachine import Machine\nmachine = Machine(intent='x', instructions='Evil.')")
    assert ask(BASE, new).code == 125
    assert ask(None, new).warnings == in_code(new, "say")
    assert in_code(given(machine="def broken("), "say") == ()


@pytest.mark.parametrize(
    ("rubric", "decision", "told"),
    [
        ('[good]\ndescription = "Good."\nweight = 1.0\n', "same", "form"),
        ('# words\n[good]\ndescription="Good."', "same", "form"),
        ('[good]\ndescription = "Good."\nweight = 3\n', "rubric_only", "reweighted good 1 -> 3"),
        ('[good]\ndescription = "Great."\n', "rubric_only", "changed good"),
        (SAY["say/rubric.toml"] + '[new]\ndescription = "New."\n', "rubric_only", "added new"),
        ('[new]\ndescription = "New."\n', "rubric_only", "dropped good"),
        (None, "rubric_only", "dropped good"),
    ],
)
def test_rubric_only(rubric: str | None, decision: str, told: str) -> None:
    answer = ask(BASE, given(rubric=rubric))
    assert (answer.decision, answer.code) == (decision, 0)
    assert any(told in reason for reason in answer.reasons)


def test_order_of_criteria_means_nothing() -> None:
    one, two = '[a]\ndescription = "A."\n', '[b]\ndescription = "B."\n'
    assert ask(given(rubric=one + two), given(rubric=two + one)).decision == "same"


def test_a_rubric_that_is_none() -> None:
    assert ask(BASE, given(rubric="[broken")).code == 125
    assert ask(given(rubric="[broken"), BASE).decision == "rubric_only"


@pytest.mark.parametrize(
    "change", [{"instructions": "x"}, {"model": '{"model": "x"}'}, {"instructions": None}]
)
def test_behaviour_needs_a_verdict(change: dict[str, str | None]) -> None:
    new = given(**change)
    answer = ask(BASE, new, staged=True)
    assert (answer.decision, answer.code, answer.remedy) == ("refuse", 1, "machine-gate say")
    assert ask(BASE, new, verdict(BASE, new)).decision == "promote"


def test_the_verdict_is_for_this_base() -> None:
    old = given(instructions="Older.")
    answer = ask(BASE, BETTER, verdict(old, BETTER))
    assert answer.code == 1
    assert answer.reasons[0].startswith("stale")
    assert "--base abc" in ask(BASE, BETTER, base_name="abc").remedy


def test_rubric_too() -> None:
    new = given(instructions="x", rubric='[good]\ndescription = "Good."\nweight = 2\n')
    under_old = verdict(BASE, new, rubric=rubric_hash(effective_criteria(BASE, "say")))
    assert ask(BASE, new, under_old).reasons[0].startswith("other_rubric")
    answer = ask(BASE, new, verdict(BASE, new))
    assert answer.decision == "promote"
    assert answer.warnings[0].startswith("rubric_changed")
    assert ask(BASE, new, verdict(BASE, new), policy=Policy(strict=True)).code == 1


def test_holdout_too() -> None:
    new = given(instructions="x", holdout=EXAM + '{"input": "one more"}\n')
    assert ask(BASE, new, verdict(BASE, new, holdout=holdout_hash(EXAM.encode()))).code == 1
    answer = ask(BASE, new, verdict(BASE, new))
    assert answer.decision == "promote"
    assert answer.warnings[0].startswith("holdout_changed")
    assert ask(BASE, new, verdict(BASE, new), policy=Policy(strict=True)).code == 1


def test_other_graders() -> None:
    new = given(instructions="x", machine="other = 1")
    record = verdict(BASE, new, graders=BASE.others("say"))
    assert ask(BASE, new, record).warnings[0].startswith("graders_changed")
    assert ask(BASE, new, record, policy=Policy(strict=True)).code == 1


def test_first_and_deleted() -> None:
    assert ask(None, BASE).decision == "first"
    assert ask(Given({}), BASE).decision == "first"
    assert ask(BASE, Given({})).decision == "deleted"


def test_renamed() -> None:
    moved = Given({path.replace("say/", "talk/"): text for path, text in SAY.items()})
    assert ask(BASE, moved, name="talk").decision == "renamed"
    both = Given({**SAY, **{path.replace("say/", "talk/"): text for path, text in SAY.items()}})
    assert ask(BASE, both, name="talk").decision == "first"
    worse = Given({p.replace("say/", "talk/"): t + ("" if "holdout" in p else " ") for p, t in SAY.items()})
    answer = ask(BASE, worse, name="talk")
    assert answer.code == 1
    assert "renamed from say" in answer.reasons[0]
    assert ask(BASE, worse, verdict(BASE, worse, "talk", "say"), name="talk").decision == "promote"


def test_moved_to_another_project() -> None:
    gone = [(BASE, "say")]
    assert ask(Given({}), BETTER, gone=gone).code == 1
    assert ask(Given({}), BASE, gone=gone).decision == "renamed"


def test_revert() -> None:
    old = given(instructions="Older.")
    past = [BASE.version("say"), BETTER.version("say"), old.version("say")]
    assert ask(BASE, old, past=lambda name: past) == Answer(
        "say", "revert", reasons=("an earlier version",), base=past[0], version=past[2]
    )
    # one in between that no verdict let in: said, and strict refuses it
    assert ask(BASE, BETTER, past=lambda name: past).warnings[0].startswith("unjudged")
    assert ask(BASE, BETTER, past=lambda name: past, policy=Policy(strict=True)).code == 1
    assert not ask(BASE, BETTER, verdict(old, BETTER), past=lambda name: past).warnings


def test_deleted_and_back() -> None:
    past = [None, BASE.version("say")]
    assert ask(Given({}), BASE, past=lambda name: past).decision == "revert"
    answer = ask(Given({}), BETTER, past=lambda name: past)
    assert answer.code == 1
    assert "it is back" in answer.reasons[0]
    assert ask(Given({}), BETTER, verdict(BASE, BETTER), past=lambda name: past).decision == "promote"


def test_child_of_a_changed_parent() -> None:
    base, new = Given({**SAY, **CHILD}), Given({**SAY, **CHILD, "say/instructions.md": "x"})
    answers = changed(base, new, lambda tree: [], Policy(), Around())
    assert [(answer.machine, answer.code) for answer in answers] == [("say", 1), ("say/low", 1)]
    record = verdict(base, new, "say/low")
    assert ask(base, new, record, name="say/low").decision == "promote"
    reweighted = Given({**SAY, **CHILD, "say/rubric.toml": '[good]\ndescription = "Good."\nweight = 9\n'})
    assert ask(base, reweighted, name="say/low").decision == "rubric_only"


def test_merge() -> None:
    theirs = given(instructions="Theirs.")
    assert ask(BASE, theirs, merged=[theirs]).decision == "merged"
    assert ask(BASE, BETTER, merged=[theirs]).code == 1


def test_forced() -> None:
    record = {
        "type": "verdict",
        "machine": "say",
        "baseline": BASE.version("say"),
        "candidate": BETTER.version("say"),
        "decision": "forced",
        "forced": {"by": "ann", "reason": "demo"},
    }
    assert ask(BASE, BETTER, record, staged=True).reasons == ("forced by ann: demo",)
    assert ask(BASE, BETTER, record).code == 1
    assert ask(BASE, BETTER, record, policy=Policy(allow_forced=True)).decision == "forced"
    assert ask(given(instructions="Other."), BETTER, record, staged=True).code == 1


def test_no_notes() -> None:
    def notes(tree: str) -> list[Record]:
        raise Untestable("no verdicts are here")

    answer = judge_change(BASE, BETTER, "say", notes, Policy(), Around(staged=True))
    assert (answer.code, answer.remedy) == (125, "machine-gate say")
    assert judge_change(BASE, BASE, "say", notes, Policy()).code == 0


def test_shallow() -> None:
    def past(name: str) -> list[str | None]:
        raise Untestable("shallow; git fetch --unshallow")

    assert ask(BASE, BASE, past=past).code == 0
    assert ask(BASE, BETTER, verdict(BASE, BETTER), past=past).decision == "promote"
    assert ask(BASE, BETTER, past=past).code == 125
    assert ask(Given({}), BASE, past=past).code == 125


def test_links() -> None:
    assert ask(BASE, Given(SAY, ["say/instructions.md"])).code == 125
    answers = changed(BASE, Given(SAY, ["other"]), lambda tree: [], Policy(), Around())
    assert [(answer.machine, answer.code) for answer in answers] == [("say", 0), ("machines/other", 125)]
    linked = Given(SAY, ["other"])
    assert [a.code for a in changed(linked, linked, lambda tree: [], Policy(), Around())] == [0]


# what a verdict has to prove ------------------------------------------------------------


def half(arms: Record) -> Record:
    """Three cases of twelve got better: a pass of the bare rule at min_z 1 that is weak."""
    for number in range(3, 12):
        arms["candidate"][number] = [0, 0, 0]
    arms["candidate"][0] = [1, 1, 0]
    return arms


def test_a_decision_that_does_not_follow() -> None:
    def worse(arms: Record) -> Record:
        arms["live"], arms["candidate"] = arms["candidate"], arms["live"]
        return arms

    honest = verdict(BASE, BETTER, arms=worse)
    assert honest["decision"] == "refuse"
    assert ask(BASE, BETTER, honest).reasons == ("not_higher",)
    forged = {**honest, "decision": "promote", "reasons": []}
    answer = ask(BASE, BETTER, forged)
    assert (answer.code, answer.reasons[0].split(":")[0]) == (1, "forged")
    # beside a true one it is passed over, with a warning
    assert ask(BASE, BETTER, verdict(BASE, BETTER), forged).warnings[0].startswith("forged_note")


@pytest.mark.parametrize(
    "damage",
    [
        {"arms": None},
        {"arms": []},
        {"arms": {"cases": []}},
        {"arms": {"cases": [1], "live": [[0]], "candidate": [[1]]}},
        {"arms": {"cases": ["a", "a"], "live": [[0], [0]], "candidate": [[1], [1]]}},
        {"arms": {"cases": ["a"], "live": [0], "candidate": [1]}},
        {"arms": {"cases": ["a"], "live": [["x"]], "candidate": [[{}]]}},
        {"tries": 0},
        {"tries": 2**52},
        {"tries": True},
        {"rule": {"min_z": "x"}},
        {"rule": [1]},
        {"rule": {"min_z": -5, "no_worse": True}},
        {"on": {}},
        {"decided_at": 5},
    ],
)
def test_what_is_no_verdict_is_refused_not_a_crash(damage: Record) -> None:
    record = {**verdict(BASE, BETTER), **damage}
    answer = ask(BASE, BETTER, record)
    assert answer.code == (0 if damage.keys() & {"on", "decided_at"} or damage == {"rule": [1]} else 1)


def test_numbers_of_this_exam() -> None:
    def some(arms: Record) -> Record:
        return {name: values[:8] for name, values in arms.items()}

    def grouped(arms: Record) -> Record:
        return {**arms, "groups": ["one"] * 6 + [None] * 6}

    assert ask(BASE, BETTER, verdict(BASE, BETTER, arms=some)).reasons[0].startswith("other_cases")
    assert ask(BASE, BETTER, verdict(BASE, BETTER, arms=grouped)).code == 1
    guarded = given(instructions="x", rubric='[good]\ndescription = "Good."\nguard = 0.1\n')
    assert ask(BASE, guarded, verdict(BASE, guarded)).decision == "promote"

    def unguarded(arms: Record) -> Record:
        return {name: values for name, values in arms.items() if name != "guards"}

    assert ask(BASE, guarded, verdict(BASE, guarded, arms=unguarded)).reasons[0].startswith("other_guards")


def test_policy() -> None:
    weak = verdict(BASE, BETTER, arms=half, rule={"min_z": 1.0, "confirm": False})
    assert (weak["decision"], weak["weak"]) == ("promote", True)
    assert ask(BASE, BETTER, weak).reasons[0].startswith("policy: within_noise")
    low = Policy(min_z=1.0)
    assert ask(BASE, BETTER, weak, policy=low).reasons[0].startswith("unconfirmed")
    assert ask(BASE, BETTER, weak, policy=Policy(require_confirm=False, min_z=1.0)).decision == "promote"
    asked = verdict(BASE, BETTER, arms=half, rule={"min_z": 1.0})
    assert ask(BASE, BETTER, asked, policy=low).code == 1

    def twice(arms: Record) -> Record:
        return {**half(arms), "confirm": {name: arms[name] for name in ("live", "candidate")}}

    sure = verdict(BASE, BETTER, arms=twice, rule={"min_z": 1.0})
    assert sure["confirmed"] is True
    assert ask(BASE, BETTER, sure, policy=low).decision == "promote"


def test_not_worse_is_no_promotion() -> None:
    record = verdict(BASE, BETTER, rule={"no_worse": True})
    assert record["decision"] == "promote"
    assert ask(BASE, BETTER, record).reasons[0].startswith("no_worse")


def test_the_last_measurement_counts() -> None:
    def none(arms: Record) -> Record:
        return {**arms, "candidate": arms["live"]}

    good, bad = verdict(BASE, BETTER), verdict(BASE, BETTER, arms=none)
    late = {"decided_at": "2026-02-01T00:00:00Z"}
    assert ask(BASE, BETTER, good, {**bad, **late}).code == 1
    again = ask(BASE, BETTER, bad, {**good, **late})
    assert again.decision == "promote"
    assert again.warnings[0].startswith("measured_again")
    # another figure is another question
    assert ask(BASE, BETTER, good, {**bad, **late, "on": "passed"}).decision == "promote"


def test_another_machines_verdict() -> None:
    assert ask(BASE, BETTER, {**verdict(BASE, BETTER), "machine": "other"}).code == 1
    assert follows(verdict(BASE, BETTER))


# lines of hooks -------------------------------------------------------------------------


def test_lines() -> None:
    a, b = "a" * 40, "b" * 40
    assert read_lines(f"refs/heads/x {a} refs/heads/y {b}\n".encode()) == [Pushed("refs/heads/y", b, a)]
    assert read_lines(f"{a} {b} refs/heads/y\n\n".encode()) == [Pushed("refs/heads/y", a, b)]
    assert read_lines(f"(delete) {'0' * 40} refs/heads/y {b}".encode()) == [
        Pushed("refs/heads/y", b, "0" * 40)
    ]
    with pytest.raises(MachineError):
        read_lines(b"what is this\n")
