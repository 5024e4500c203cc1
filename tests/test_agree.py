"""Agreement of graders: figures against the vectors, what is required, panels, escalation, memory."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine.agree import pairs
from libmachine.agree.figures import Figures, held, record
from libmachine.agree.report import report
from libmachine.canon import Record
from libmachine.define import Check, Judge, check, jev, judge, judge_panel
from libmachine.folder import Criterion
from libmachine.grade import is_unsure
from libmachine.graders.panel import read_panel
from libmachine.judging import kin
from libmachine.stats import Sweep, agreement, wilson

VECTORS = json.loads((Path(__file__).parent / "data" / "vectors_agree.json").read_text())
TERMS = pairs.Terms("judge", "grader", 1)


class Stub:
    """What of a pairing a record needs."""

    terms = TERMS
    criterion = Criterion("kind", "It is kind.", 1.0)

    class reference:
        rubric = "r"

        class machine:
            name, version = "m", "v"


def pair(
    reference: float | None, *candidates: float | None, case: int = 0, run: str = "0" * 40, **more: Any
) -> pairs.Pair:
    grades = [{"score": score, "reason": None, **more} for score in candidates]
    graded: Record = {
        "id": run,
        "case": {"id": str(case), "identity": f"{case:015x}".ljust(40, "0")},
        "trial": 1,
    }
    return pairs.Pair(graded, {"score": reference, "grader": "judge:m:medium@0"}, grades, True)


def found(figures: Figures) -> Record:
    return record(Stub, figures, "judge:x:medium@1")  # type: ignore[arg-type]


# the figures ----------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["tables"], ids=lambda v: v["name"])
def test_tables_run_by_run(vector: dict[str, Any]) -> None:
    sweep = Sweep([0.5])
    cells = [((1, 1), "tp"), ((0, 1), "fp"), ((1, 0), "fn"), ((0, 0), "tn")]
    pairs = [scores for scores, name in cells for _ in range(vector[name])]
    random.Random(1).shuffle(pairs)
    for scores in pairs:
        sweep.add(*scores)
    got = sweep.result()["sweep"][0]
    for name, value in vector["expect"].items():
        assert got[name] == (pytest.approx(value, abs=1e-9) if value is not None else None), name


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_every_share_lies_in_its_interval(scores: list[tuple[float, float]]) -> None:
    figures = Figures()
    for number, (reference, candidate) in enumerate(scores):
        figures.add(pair(reference, candidate, case=number), same=False)
    report_ = found(figures)
    assert report_["usable"] == len(scores) == report_["cases"]
    for row in report_["sweep"]:
        assert row["tp"] + row["fp"] + row["fn"] + row["tn"] == len(scores)
        for share, name in (
            ("agreement", "agreement_ci95"),
            ("false_pass_rate", "false_pass_ci95"),
            ("false_fail_rate", "false_fail_ci95"),
            ("precision", "precision_ci95"),
        ):
            assert (row[share] is None) == (row[name] is None)
            assert row[share] is None or row[name][0] <= row[share] <= row[name][1]
    assert report_["disagree"] == len(report_["disagreements"])
    assert report_["escalation"]["agreement"] >= report_["sweep"][1]["agreement"] - 1e-9
    assert "None" not in report(report_, 80)


def test_a_planted_lenient_grader() -> None:
    """Of 200 bad runs it passes 60, of 300 good ones it fails 3: just that is said."""
    figures = Figures()
    scores = [(0.0, 0.9)] * 60 + [(0.0, 0.1)] * 140 + [(1.0, 0.9)] * 297 + [(1.0, 0.2)] * 3
    random.Random(2).shuffle(scores)
    for number, (reference, candidate) in enumerate(scores):
        figures.add(pair(reference, candidate, case=number), same=False)
    row = found(figures)["sweep"][1]
    assert (row["false_pass_rate"], row["false_fail_rate"]) == (0.3, 0.01)
    assert row["false_pass_ci95"] == list(wilson(60, 200) or ())
    assert row | agreement(297, 60, 3, 140) == row


def test_what_was_not_measured_is_said() -> None:
    figures = Figures()
    for number in range(5):
        figures.add(pair(1.0, 1.0, case=number), same=False)
    report_ = found(figures)
    assert report_["sweep"][1]["false_pass_rate"] is None and report_["sweep"][1]["kappa"] is None
    text = report(report_, 80)
    assert "false-pass rate                     unmeasured" in text and "kappa" in text
    assert {w.partition(":")[0] for w in report_["warnings"]} == {"few_bad", "few_good"}


def test_what_is_left_out() -> None:
    figures = Figures()
    assert figures.add(None, same=False) is None
    assert figures.add(pair(None), same=False) is None
    assert figures.add(pair(1.0, None, error="no"), same=False) == "no"
    assert figures.add(pair(1.0, None, applies=False), same=False) is None
    figures.add(pair(1.0, 1.0, case=1), same=False)
    figures.add(pair(0.0, 1.0, case=1), same=False)
    report_ = found(figures)
    counts = [
        report_[n] for n in ("runs", "failed", "no_reference", "candidate_errors", "not_applicable", "usable")
    ]
    assert counts == [6, 1, 1, 1, 1, 2]
    assert any(warning.startswith("runs_of_a_case: 2 runs of 1 cases") for warning in report_["warnings"])


def test_a_flaky_grader() -> None:
    figures = Figures()
    figures.add(pair(1.0, 0.9, 0.9, 0.9), same=False)
    figures.add(pair(1.0, 0.4, 0.6, 0.5), same=False)
    figures.add(pair(1.0, 0.5, 0.5, None), same=False)
    figures.add(pair(1.0, 0.2), same=False)  # graded once: says nothing of this
    steady = found(figures)["repeat"]
    assert (steady["runs"], steady["flips"], steady["flip_rate"]) == (3, 1, pytest.approx(1 / 3))
    assert (steady["spread_max"], steady["spread_mean"]) == (pytest.approx(0.2), pytest.approx(0.2 / 3))
    figures = Figures()
    figures.add(pair(0.4, 0.5), same=True)  # the stored grade is one of the grades
    assert found(figures)["repeat"]["flips"] == 1


def test_the_list_is_bounded() -> None:
    figures = Figures()
    for number in range(1500):
        figures.add(pair(1.0, 0.0, case=number % 7), same=False)
    report_ = found(figures)
    assert (report_["disagree"], len(report_["disagreements"])) == (1500, 1000)
    assert any(warning.startswith("not_all_listed") for warning in report_["warnings"])
    assert "(1480 further ones; --json lists them)" in report(report_, 80)


@pytest.mark.parametrize(
    ("scores", "kappa", "false_pass", "wanted"),
    [
        ([(1, 1), (0, 0)], 1.0, 0.0, True),
        ([(1, 1), (0, 0), (0, 1)], 0.5, None, False),
        ([(1, 1), (0, 0), (0, 1)], None, 0.5, True),
        ([(1, 1), (0, 0), (0, 1)], None, 0.49, False),
        ([(1, 1)], 0.1, None, None),
        ([(1, 1)], None, 0.1, None),
        ([(0, 1)], 0.1, 0.5, False),
        ([(1, 1)], None, None, True),
    ],
)
def test_held(scores: list[tuple[float, float]], kappa: Any, false_pass: Any, wanted: bool | None) -> None:
    figures = Figures()
    for number, (reference, candidate) in enumerate(scores):
        figures.add(pair(float(reference), float(candidate), case=number), same=False)
    good, why = held(found(figures), kappa, false_pass)
    assert good is wanted and bool(why) == (wanted is not True)


# who is measured ------------------------------------------------------------------------


def test_candidates() -> None:
    own = jev.score(["a", "b"])
    assert pairs.candidate_of(own, "jev", None, None) is own
    assert pairs.candidate_of(own.or_judge(judge()), "jev", None, None) is own
    assert pairs.candidate_of(judge(), "jev", None, None) == jev.noul()
    assert pairs.candidate_of(own, "judge", "x/y", "low") == Judge("x/y", "low")
    assert pairs.candidate_of(own, "same", "x/y", None) is own


def test_unsure_is_closed() -> None:
    assert [is_unsure(score, (0.3, 0.7)) for score in (0.29, 0.3, 0.5, 0.7, 0.71, None)] == [
        False, True, True, True, False, False,
    ]  # fmt: skip


def test_escalation_takes_a_judge() -> None:
    cheap = check(lambda run: 0.5)
    assert isinstance(cheap, Check) and cheap.or_judge(judge()).pass_at == 0.5
    with pytest.raises(ValueError, match="or_judge takes a judge"):
        judge().or_judge(cheap)  # type: ignore[arg-type]


def test_panels_are_told_apart() -> None:
    assert judge_panel() != judge_panel()


def test_kin_of_an_escalation() -> None:
    run = {"model": "openai/gpt-4o", "answered": "gpt-4o"}
    who = "jev:jev-latest@0123 unsure 0.3-0.7 judge:openai/gpt-4o-mini:medium@4567"
    assert kin({"grader": who, "model": "jev-1.13.0"}, run) is None  # the judge was not asked
    assert kin({"grader": who, "model": "m", "first": {"score": 0.5}}, run) == "gpt"
    assert kin({"grader": "panel:openai/gpt-4o:low@45", "model": "m"}, run) == "gpt"


# panels ---------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]


def verdict(name: str, score: object, call_id: str = "k7f2") -> str:
    return json.dumps({"id": call_id, "criterion": name, "reasoning": f"why {name}", "score": score})


def scores(reply: str, finish: str | None = "stop") -> list[float | None]:
    return [reading.score for reading in read_panel(reply, "k7f2", NAMES, finish).values()]


def test_panel_replies() -> None:
    whole = "\n".join(verdict(name, number / 2) for number, name in enumerate(NAMES))
    assert scores(whole) == [0.0, 0.5, 1.0]
    assert scores(f"I think.\n```json\n[{whole.replace(chr(10), ',')}]\n```") == [0.0, 0.5, 1.0]
    assert scores(f"<think>{verdict('a', 1)}</think>{whole}") == [0.0, 0.5, 1.0]
    assert scores(f"{whole}\n{verdict('d', 1)}") == [0.0, 0.5, 1.0]
    assert scores(f"{whole}\n{verdict('a', 1, 'other')}") == [0.0, 0.5, 1.0]
    assert scores(verdict("a", 1) + verdict("c", 0)) == [1.0, None, 0.0]
    assert scores(verdict("a", 1) + verdict("b", 7) + verdict("c", "80%")) == [1.0, None, 0.8]
    assert scores(verdict("a", 1)[:-1] + ', "score": 0}' + verdict("b", 1)) == [None, 1.0, None]
    assert scores(whole + '\n{"id": "k7f2", "criterion": "b", "sco') == [0.0, None, 1.0]
    assert scores(whole + "\nk7f2 is done") == [None, None, None]
    assert scores(whole, "length") == scores("") == scores("<think>" + whole) == [None, None, None]
    assert scores(verdict("a", True) + verdict("b", None) + verdict("c", float("nan"))) == [None] * 3


PIECES = ["{", "}", '"id": "k7f2"', '"criterion": "a"', ",", '"score": 1', "k7f2"]


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_whatever_a_panel_says(reply: str) -> None:
    found_ = read_panel(reply, "k7f2", NAMES)
    assert list(found_) == NAMES
    assert all((r.score is None) == (r.problem is not None) for r in found_.values())


# memory ---------------------------------------------------------------------------------

MANY = """
import sys, threading
from libmachine import pool
from libmachine.agree.pairs import Pairing, Terms
from libmachine.agree.figures import Figures
from libmachine.grade import Grading
from libmachine.load import load
from libmachine.store.store import Store

store = Store(sys.argv[1], fsync=False)
machine = load("say", [sys.argv[2]])
grading = Grading(machine)
terms = Terms("same", "grader", 1)
pairing = Pairing(grading, grading, machine.criteria[0], machine.graders["good"], store, terms)
figures = Figures()
rows = (row for number, row in enumerate(store.index.runs("say")) if number < int(sys.argv[3]))
for pair in pool.stream(pairing.pair, rows, 2, True, threading.Event()):
    figures.add(pair, True)
# not ru_maxrss, which keeps what the parent had when it forked
with open("/proc/self/status") as status:
    print(figures.sweep.n, next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    """5,000 stored runs of 20 kB (100 MB of them) take no more memory than 500."""
    from libmachine.store.store import Store

    folder = tmp_path / "machines" / "say"
    folder.mkdir(parents=True)
    (folder / "machine.py").write_text(
        "from libmachine import Machine, check\n"
        "machine = Machine(intent='x', graders={'good': check(lambda run: len(run.output) > 9, 'long')})\n"
    )
    (folder / "rubric.toml").write_text('[good]\ndescription = "It is good."\n')
    store = Store(str(tmp_path / "store"), fsync=False)
    for number in range(5000):
        store.add_run(*stored_run(number))
    store.close()
    used = {}
    for many in (500, 5000):
        words = [sys.executable, "-c", MANY, str(tmp_path / "store"), str(tmp_path / "machines"), str(many)]
        root = Path(__file__).resolve().parent.parent
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=root)
        n, used[many] = map(int, done.stdout.split())
        assert n == many
    assert used[5000] < used[500] + 8 * 1024, f"kB: {used}"


def stored_run(number: int) -> tuple[Record, str]:
    identity = f"{number % 50:040x}"
    text = f"{number} " + "x" * 20_000
    run: Record = {
        "v": 1, "type": "run", "machine": "say", "version": "0" * 40,
        "revision": {"commit": None, "dirty": None},
        "case": {"id": identity[-6:], "identity": identity, "input": "say"},
        "trial": number // 50 + 1, "model": "echo", "answered": "echo", "harness": "echo", "sampling": {},
        "limits": {}, "messages": [{"role": "assistant", "content": text}],
        "tools": [], "output": text, "stop_reason": "stop",
        "usage": {"calls": 1, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0,
                  "reasoning_tokens": 0, "cost_usd": 0},
        "steps": [], "started_at": "2026-11-29T00:00:00.000Z", "duration_s": 0, "status": "ok",
        "key": f"{number:040x}",
    }  # fmt: skip
    return run, identity
