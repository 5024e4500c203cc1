"""Conversations from inside: keys, what a turn is shown, where one stops; the pair support and customer."""

from __future__ import annotations

import json
import os
import re
import threading
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine.case import read_case
from libmachine.converse import Conversations, Facing, speaks
from libmachine.define import Counterpart, Run, steps_of
from libmachine.errors import CutShort
from libmachine.export import Dropped, examples, pair_of, refusal, targets
from libmachine.folder import Folder
from libmachine.graders.judge import material
from libmachine.harness import weights
from libmachine.harness.base import Completion, Request, Sampling
from libmachine.harness.local import LocalEngine
from libmachine.leaks import leaks
from libmachine.load import Loaded, find, load_folder
from libmachine.measure import cost_of, tokens_of
from libmachine.run import Runner, Settings, sent_seed
from libmachine.select import answer_of
from libmachine.sft.dataset import build
from libmachine.sft.renderers import LocalRenderer
from libmachine.store.store import Store

MACHINES = Path(__file__).parent.parent / "machines"
LOCAL = "local/smollm2-135m-instruct"
CASE = {"id": "a", "identity": "1" * 40, "input": "The secret is 42.", "metadata": {"m": 1}}
PLAIN = Settings()


class Says:
    """An engine that says the n-th of its replies at the n-th call, the last again and again."""

    def __init__(self, name: str, *replies: str) -> None:
        self.name, self.model, self.replies = "says", name, replies
        self.requests: list[Request] = []

    def complete(self, request: Request) -> Completion:
        self.requests.append(request)
        text = self.replies[min(len(self.requests), len(self.replies)) - 1]
        return Completion(
            {"role": "assistant", "content": text}, "stop", self.model, completion_tokens=3, cost_usd=1
        )

    def close(self) -> None:
        """Nothing."""


def put(place: Path, name: str, **files: str) -> Loaded:
    folder = place / "machines" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.py").write_text(
        f"from libmachine import Machine\nmachine = Machine(intent={name!r})\n"
    )
    for file, text in files.items():
        (folder / file.replace("_", ".")).write_text(text)
    return load_folder(Folder(str(place / "machines"), name))


def talks(
    place: Path,
    machine: Says,
    counterpart: Says,
    until: Any = None,
    max_turns: int = 3,
    settings: Settings = PLAIN,
    theirs: str = "You call.",
) -> Conversations:
    desk, caller = (
        put(place, "desk", instructions_md="You help."),
        put(place, "caller", instructions_md=theirs),
    )
    facing = Facing(Counterpart("caller", until, max_turns), caller, counterpart)
    return Conversations(desk, machine, Store(str(place / "store"), fsync=False), settings, facing)


def once(talk: Conversations, trial: int = 1) -> Any:
    return talk.finish(talk.job(CASE, trial))


def test_a_conversation_is_seen_from_both_sides(tmp_path: Path) -> None:
    desk, caller = Says("d", "d1", "d2", "d3"), Says("c", "c1", "c2", "c3")
    outcome = once(talks(tmp_path, desk, caller))
    assert outcome.bought
    assert [m["content"] for m in desk.requests[-1].messages][:-1] == [
        "You help.",
        "c1",
        "d1",
        "c2",
        "d2",
        "c3",
    ]
    shown = [(m["role"], m["content"]) for m in caller.requests[2].messages][:6]
    assert shown[:2] == [("system", "You call."), ("user", "The secret is 42.")]
    assert shown[2:] == [("assistant", "c1"), ("user", "d1"), ("assistant", "c2"), ("user", "d2")]
    assert not any("42" in str(request) for request in desk.requests)
    run = Run(outcome.run)
    assert [(turn.side, turn.text) for turn in run.turns] == [
        (side, f"{side[0].replace('m', 'd')}{n}") for n in (1, 2, 3) for side in ("counterpart", "machine")
    ]
    assert (tokens_of(outcome.run), cost_of(outcome.run), outcome.run["usage"]["cost_usd"]) == (9, 6, 1)


def test_seeds_differ_by_side_and_turn_and_those_of_plain_runs_are_as_they_were(tmp_path: Path) -> None:
    desk, caller = Says("d", "d"), Says("c", "c")
    once(talks(tmp_path, desk, caller))
    once(talks(tmp_path, desk, caller), trial=2)
    seeds = [request.sampling.seed for request in desk.requests + caller.requests]
    assert len(set(seeds)) == 12
    assert sent_seed("1" * 40, 1, 0) == 516072946
    assert seeds[0] == sent_seed("1" * 40, 1, 0, "machine", 1)


def test_what_decides_a_conversation_is_in_its_key(tmp_path: Path) -> None:
    def base(**changed: Any) -> str:
        return talks(
            tmp_path, changed.pop("d", Says("d", "")), changed.pop("c", Says("c", "")), **changed
        ).base_of(CASE)

    def ends(run: Run) -> bool:
        return "end" in run.output

    def stops(run: Run) -> bool:
        return "stop" in run.output

    keys = [
        base(),
        base(d=Says("other", "")),
        base(c=Says("other", "")),
        base(theirs="You shout."),
        base(max_turns=4),
        base(until=ends),
        base(until=stops),
        base(settings=Settings(seed=1)),
    ]
    assert len(set(keys)) == len(keys)
    assert base() == keys[0]


def test_a_stop_between_turns_loses_nothing(tmp_path: Path) -> None:
    desk, caller = Says("d", "d"), Says("c", "c")
    talk = talks(tmp_path, desk, caller)
    stop = threading.Event()
    seen: list[Any] = []

    def watch(run: Any) -> None:
        seen.append(run)
        if len(seen) == 3:
            stop.set()

    talk.watch, talk.stop = watch, stop
    with pytest.raises(CutShort):
        once(talk)
    assert (len(desk.requests), len(caller.requests)) == (1, 2)
    assert (
        list(talks(tmp_path, desk, caller).run([CASE], 1, True, stop)) == []
    )  # told to stop: nothing, no error
    again = talks(tmp_path, desk, caller)
    assert not again.is_stored(again.job(CASE, 1))
    run = once(again).run
    assert (len(desk.requests), len(caller.requests)) == (3, 3)
    assert run["conversation"]["runs"][:3] == [run["id"] for run in seen]
    assert not once(talks(tmp_path, desk, caller)).bought
    fresh = talks(tmp_path, desk, caller, settings=Settings(resume=False))
    assert [job.trial for job in fresh.jobs([CASE])] == [2]


def test_a_trial_that_was_begun_is_not_fresh(tmp_path: Path) -> None:
    desk, caller = Says("d", "d"), Says("c", "c")
    cut = talks(tmp_path, desk, caller)
    cut.watch = lambda run: cut.stop.set()
    with pytest.raises(CutShort):
        once(cut)  # the counterpart's first turn alone is stored: no trial of the machine yet
    fresh = talks(tmp_path, desk, caller, settings=Settings(resume=False))
    assert once(fresh).run["trial"] == 2


def test_a_machine_without_a_counterpart_has_the_key_it_had(tmp_path: Path) -> None:
    plain = Runner(
        put(tmp_path, "desk"), Says("d", "d"), Store(str(tmp_path / "store"), fsync=False), Settings()
    )
    assert plain.job(CASE, 1).key == "eabac4135b66c64c64c3384ce8cf35fd96f0e551"


@given(
    st.lists(st.tuples(st.booleans(), st.text(min_size=1, max_size=5)), min_size=1, max_size=6),
    st.sampled_from(["machine", "counterpart"]),
)
def test_turns_are_read_whatever_the_steps(turns: list[tuple[bool, str]], side: str) -> None:
    """Tool calls before an answer make no turn of their own."""
    other = "counterpart" if side == "machine" else "machine"
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}]
    wanted = []
    for with_call, text in turns:
        messages.append({"role": "user", "content": text})
        if with_call:
            call = {"id": "c", "type": "function", "function": {"name": "t", "arguments": ""}}
            messages.append({"role": "assistant", "content": "wait", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": "c", "content": "x"})
        messages.append({"role": "assistant", "content": text + "!"})
        wanted += [(other, text), (side, text + "!")]
    record = {"case": {"input": "x"}, "messages": messages, "conversation": {"side": side, "start": 1}}
    assert [(turn.side, turn.text) for turn in Run(record).turns] == wanted


def test_every_good_turn_is_a_target_and_a_judge_sees_the_whole(tmp_path: Path) -> None:
    run = once(talks(tmp_path, Says("d", "d1", "d2", "d3"), Says("c", "c1", "c2", "c3"))).run
    assert targets(run) == [2, 4, 6]
    cut = json.loads(json.dumps(run))
    cut["conversation"]["steps"][1]["finish_reason"] = "length"
    assert targets(cut) == [2, 6]
    graded = {**run, "scorecard": {"score": 1.0, "passed": True}}
    assert refusal(graded, False) is None
    assert [len(example["messages"]) for example in examples(graded, True, False)] == [3, 5, 7]
    other = {**graded, "conversation": {**run["conversation"], "side": "counterpart"}}
    assert "counterpart's turn" in (refusal(other, False) or "")
    shown = material(Run(run))
    assert [turn["content"] for turn in shown["input"]] == ["c1", "d1", "c2", "d2", "c3"]
    assert (shown["output"], shown["hidden_scenario"]) == ("d3", "The secret is 42.")
    twin = once(talks(tmp_path, Says("d", "d1", "dX", "d3"), Says("c", "c1", "c2", "c3")), trial=2).run
    assert answer_of(run) != answer_of(twin)  # equal last words are not equal answers
    assert pair_of(run) != pair_of(twin)


@pytest.mark.parametrize(
    ("status", "stop", "output", "wanted"),
    [
        ("ok", "stop", "x", True),
        ("limit", "length", "x", True),
        ("limit", "max_steps", "x", False),
        ("limit", "length", " \n", False),
        ("ok", "stop", "", False),
        ("failed", "error", "x", False),
    ],
)
def test_what_can_be_answered(status: str, stop: str, output: str, wanted: bool) -> None:
    assert speaks({"status": status, "stop_reason": stop, "output": output}) is wanted


# the local model -------------------------------------------------------------------------------------


@pytest.fixture
def local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cache of this test's own that borrows the weights. Returns their path."""
    path = weights.ensure_weights(LOCAL)
    (tmp_path / "cache" / "models").mkdir(parents=True)
    os.symlink(path, tmp_path / "cache" / "models" / os.path.basename(path))
    monkeypatch.setenv("MACHINE_CACHE", str(tmp_path / "cache"))
    return path


def test_two_sides_of_the_local_model_talk_and_training_sees_what_they_saw(
    tmp_path: Path, local_cache: str
) -> None:
    short = Settings(sampling=Sampling(max_tokens=12))
    desk = put(tmp_path, "desk", instructions_md="Answer in a few words.")
    caller = put(tmp_path, "caller", model_json='{"sampling": {"max_tokens": 12}}')
    engines = LocalEngine(LOCAL), LocalEngine(LOCAL)
    store = Store(str(tmp_path / "store"), fsync=False)
    talk = Conversations(
        desk, engines[0], store, short, Facing(Counterpart("caller", None, 2), caller, engines[1])
    )
    case = read_case("You have a dog. Ask something about dogs.")
    run = talk.finish(talk.job(case, 1)).run
    assert (run["status"] in ("ok", "limit"), run["conversation"]["turn"]) == (True, 2)
    assert len(steps_of(run)) == 2 and run["conversation"]["usage"]["counterpart"]["calls"] == 2
    assert "You have a dog" not in str(run["messages"])
    pytest.importorskip("tokenizers")
    for step in run["conversation"]["steps"] + run["steps"]:
        step["finish_reason"] = "stop"  # cut or not, each is to be rendered
    ids = {step["tokens"]: json.loads(store.read_blob(step["tokens"])) for step in steps_of(run)}
    made = build([run], LocalRenderer(local_cache), ids.get, lambda run: True, Dropped())
    assert (made.compared, made.differences, len(made.runs)) == (1, [], 1)
    assert sum(len(example.messages) for example in made.examples) == 2
    for engine in engines:
        engine.close()
    store.close()


# the pair -------------------------------------------------------------------------------------------


def said(*texts: str, side: str = "machine", **case: Any) -> Run:
    """A conversation of these texts, the counterpart's first."""
    first, second = ("user", "assistant") if side == "machine" else ("assistant", "user")
    messages = [{"role": (first, second)[n % 2], "content": text} for n, text in enumerate(texts)]
    return Run(
        {
            "case": {"input": "x", **case},
            "messages": messages,
            "output": texts[-1],
            "conversation": {"side": side, "start": 0},
        }
    )


FACTS = {"target": "PUMP", "metadata": {"model": "K2", "light": "fast"}}


def graders(name: str) -> Any:
    return load_folder(find(name, [str(MACHINES)])).graders


@pytest.mark.parametrize(
    ("texts", "right", "guessed", "brief"),
    [
        (("Broken.", "Which?", "K2, blinking fast.", "Fill it by hand.\nRemedy: PUMP"), True, True, 1),
        (("Broken.", "Fill it.\n**Remedy: pump**"), True, False, 1),
        (("Broken.", "Which?", "A K2.", "Remedy: PUMP"), True, False, 1),
        (("A K2, fast!", "Remedy: TANK"), False, True, 1),
        (("A K2, fast!", "Remedy: PUMP\nRemedy: TANK"), False, True, 1),
        (("A K2, fast!", "The remedy: PUMP it is."), False, None, 1),
        (("A K2, fast!", "well " * 61, "Eh?", "Remedy: PUMP"), True, True, 0.5),
    ],
)
def test_the_checks_of_support(
    texts: tuple[str, ...], right: bool, guessed: bool | None, brief: float
) -> None:
    checks, run = graders("support"), said(*texts, **FACTS)
    assert checks["right_remedy"].function(run)[0] is right
    found = checks["no_guess"].function(run)
    assert (found and found[0]) is guessed
    assert checks["brief"].function(run)[0] == brief
    machine = load_folder(find("support", [str(MACHINES)]))
    assert machine.counterpart is not None and machine.counterpart.until is not None
    assert machine.counterpart.until(run) is ("\nRemedy" in "\n" + texts[-1].replace("*", ""))


@pytest.mark.parametrize(
    ("texts", "hides", "answers"),
    [
        (("It is broken.", "Which model?", "A K2.", "And the light?", "It blinks fast.", "Bye."), True, 1),
        (("My K2 is broken.", "Which model?", "A K2."), False, 1),
        (("Broken.", "Which model, and what does the light do?", "It is a K2."), True, 0.5),
        (("Broken, breakfast is over.", "Tell me more.", "No."), True, None),
    ],
)
def test_the_checks_of_customer(texts: tuple[str, ...], hides: bool, answers: float | None) -> None:
    checks, run = graders("customer"), said(*texts, side="counterpart", **FACTS)
    assert checks["withholds"].function(run)[0] is hides
    found = checks["answers"].function(run)
    assert (found and found[0]) == answers


def lines(name: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (MACHINES / name / file).read_text().splitlines()]


def test_the_cases_of_the_pair_can_be_solved() -> None:
    text = (MACHINES / "support" / "instructions.md").read_text()
    table = {(m, light): code for m, light, code in re.findall(r"^(K\d) (\w+): .* ([A-Z]+)$", text, re.M)}
    assert len(table) == 12 and len(set(table.values())) == 12
    for case in lines("support", "cases.jsonl") + lines("support", "holdout.jsonl"):
        assert table[case["metadata"]["model"], case["metadata"]["light"]] == case["target"]
    everything = [
        (n, c) for n in ("support", "customer") for f in ("cases", "holdout") for c in lines(n, f + ".jsonl")
    ]
    assert len({case["id"] for _, case in everything}) == len(everything) == 30
    for _, case in everything:
        for name in ("model", "light"):
            assert re.search(rf"(?<!\w){case['metadata'][name]}", case["input"], re.IGNORECASE), case["id"]


@pytest.mark.parametrize("name", ["support", "customer"])
def test_practice_and_exam_of_the_pair_do_not_leak(name: str) -> None:
    folder = find(name, [str(MACHINES)])
    cases, exam = folder.cases("cases.jsonl"), folder.cases("holdout.jsonl")
    assert leaks(cases, exam, folder.instructions()) == []
    first = [case["input"].split()[:4] for case in cases + exam]
    assert not any(one == other for one, other in combinations(first, 2))
