"""Suites and comparisons as records and as text: figures, hostile text, odd shapes."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from libmachine import console
from libmachine.canon import RecordError, loads, plain
from libmachine.compare.comparison import _two_sided, comparison, rubric_changes
from libmachine.compare.report import RULE
from libmachine.compare.report import report as compare_report
from libmachine.compare.report import sentence as compare_sentence
from libmachine.controls import read_references
from libmachine.errors import MachineError
from libmachine.folder import Criterion
from libmachine.measure import Measured
from libmachine.record import arrange, problems, read_record, record_id
from libmachine.stats import paired_gate, wilson
from libmachine.suite.figures import family, over_units, spend, suite, unit_of, unused_tools
from libmachine.suite.report import report, sentence

GOOD = Criterion("good", "It is good.", 1.0)
KIND = Criterion("kind", "It is kind.", 3.0)
SEEN = Criterion("seen", "It is seen.", 0.0, role="audit")


def case(name: str, group: str | None = None) -> dict[str, Any]:
    return {
        "id": name,
        "identity": f"identity of {name}",
        "input": name,
        "metadata": {"group": group} if group else {},
    }


def run(
    of: Mapping[str, Any],
    trial: int,
    grades: Mapping[str, float | None] | float | None,
    status: str = "ok",
    **fields: Any,
) -> dict[str, Any]:
    """A graded run; a number is the grade of `good`, None a grade that could not be made."""
    marks = grades if isinstance(grades, Mapping) else {"good": grades}
    weights = {"good": 1, "kind": 3, "seen": 0}
    lines = [
        {
            "criterion": name,
            "weight": weights[name],
            "reason": None if score is None else f"{name} is {score}",
            "score": score,
            "grader": "check:x@0",
            "key": "k",
            **({"error": "judge failed"} if score is None else {}),
        }
        for name, score in marks.items()
    ]
    known = [(line["score"], line["weight"]) for line in lines if line["criterion"] != "seen"]
    missing = any(score is None for score, _ in known)
    score = None if missing else sum(s * w for s, w in known) / sum(w for _, w in known)
    record: dict[str, Any] = {
        "id": f"{of['id']}{trial}".encode().hex().ljust(40, "0"),
        "machine": "m",
        "case": of,
        "trial": trial,
        "status": status,
        "output": f"output {trial}",
        "stop_reason": "stop" if status != "failed" else "error",
        "usage": {"completion_tokens": 10 * trial, "cost_usd": 0.25},
        "steps": [],
        "tools": [],
        "model": "openai/gpt-5",
        "answered": "gpt-5",
        **fields,
    }
    if status == "failed":
        return {**record, "error": {"message": "no route"}}
    passed = None if score is None else score >= 1
    return {**record, "scorecard": {"score": score, "passed": passed, "grades": lines}}


def head(trials: int, name: str = "m") -> dict[str, Any]:
    return {
        "machine": name,
        "version": "0" * 40,
        "revision": {"commit": None, "dirty": None},
        "engine": ["openai/gpt-5", "openai"],
        "rubric": "1" * 40,
        "on": "cases",
        "trials": trials,
    }


def told(record: Mapping[str, Any], width: int = 80, **options: Any) -> str:
    return report({**plain(dict(record))}, width, **options)


# suites ----------------------------------------------------------------------------------


def test_figures_are_over_cases_and_leave_out_what_is_missing() -> None:
    a, b, c, d = (case(name) for name in "abcd")
    runs = [
        *(run(a, trial, 1.0) for trial in (1, 2, 3)),
        run(b, 1, 1.0),
        run(b, 2, 0.0),
        run(b, 3, None),
        *(run(c, trial, 0.5) for trial in (1, 2, 3)),
        *(run(d, trial, 0.0, "failed") for trial in (1, 2, 3)),
    ]
    random.Random(1).shuffle(runs)
    found = suite(head(3), [GOOD], [a, b, c, d], runs)
    means = [1.0, 0.5, 0.5]
    assert found["mean"] == pytest.approx(statistics.mean(means), abs=1e-12)
    assert found["stderr"] == pytest.approx(statistics.stdev(means) / 3**0.5, abs=1e-12)
    counts = ("cases", "runs", "graded", "failed", "ungraded", "passes", "units")
    assert [found[name] for name in counts] == [4, 12, 8, 3, 1, 4, 3]
    assert found["pass_rate"] == 4 / 8
    assert found["pass_at_1"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert found["pass_at_k"] == pytest.approx((1 + 0) / 2), "only cases with three graded trials count"
    assert found["all_good"] == pytest.approx((1 + 0) / 2)
    assert [line["id"] for line in found["by_case"]] == ["c", "b", "a", "d"]
    by_name = {line["id"]: line for line in found["by_case"]}
    assert by_name["d"]["mean"] is None and by_name["d"]["failed"] == 3
    assert by_name["b"]["scores"] == [1.0, 0.0, None]
    assert by_name["b"]["worst"] == {
        "run": by_name["b"]["runs"][1],
        "trial": 2,
        "criterion": "good",
        "why": "good is 0.0",
    }
    assert by_name["a"]["worst"] is None
    assert found["by_criterion"][0]["missing"] == 1
    assert found["stop_reasons"] == {"error": 3, "stop": 9}
    assert found["mean_completion_tokens"] == 20
    assert [w.partition(":")[0] for w in found["warnings"]] == ["missing_grades"]


def test_the_interval_of_the_pass_rate_counts_cases_not_trials() -> None:
    cases = [case(str(n)) for n in range(10)]
    once = [run(one, 1, float(n < 7)) for n, one in enumerate(cases)]
    thrice = [run(one, trial, float(n < 7)) for n, one in enumerate(cases) for trial in (1, 2, 3)]
    wanted = pytest.approx(wilson(7, 10))
    assert suite(head(1), [GOOD], cases, once)["pass_interval"] == wanted
    assert suite(head(3), [GOOD], cases, thrice)["pass_interval"] == wanted
    assert suite(head(1), [GOOD], cases[:7], once[:7])["pass_interval"] == pytest.approx(wilson(7, 7))


def test_groups_are_units() -> None:
    cases = [case("a", "g"), case("b", "g"), case("c"), case("d")]
    runs = [run(one, 1, score) for one, score in zip(cases, (1.0, 0.0, 1.0, 0.0), strict=True)]
    found = suite(head(1), [GOOD], cases, runs)
    assert (found["mean"], found["units"]) == (0.5, 3)
    assert found["stderr"] == pytest.approx(statistics.stdev([0.5, 1.0, 0.0]) / 3**0.5)
    assert "over 3 groups" in told(found)
    assert over_units([None, None], ["a", "b"]) == (None, None, 0)
    assert unit_of(case("a", "g")) == unit_of(case("b", "g")) != unit_of(case("c"))


def test_criteria_and_the_worst_grade() -> None:
    one, two = case("one"), case("two")
    runs = [
        run(one, 1, {"good": 1.0, "kind": 0.5, "seen": 0.0}),
        run(two, 1, {"good": 0.0, "kind": 1.0, "seen": 1.0}),
    ]
    found = suite(head(1), [GOOD, KIND, SEEN], [one, two], runs)
    by_name = {line["criterion"]: line for line in found["by_criterion"]}
    assert [by_name[name]["mean"] for name in ("good", "kind", "seen")] == [0.5, 0.75, 0.5]
    assert by_name["kind"]["stderr"] == pytest.approx(0.25)
    assert [line["worst"]["criterion"] for line in found["by_case"]] == ["kind", "good"]
    assert "seen (audit)" in told(found)


@pytest.mark.parametrize("model", ["openai/gpt-4o-mini", "openai/other"])
def test_one_warning_of_each_kind(model: str) -> None:
    one = case("one")
    tool = {"type": "function", "function": {"name": "look"}}
    used = {"type": "function", "function": {"name": "used"}}
    graded = [
        run(one, trial, 1.0, tools=[tool, used], steps=[{"tools": [{"name": "used"}]}]) for trial in (1, 2)
    ]
    for record in graded:
        grade = record["scorecard"]["grades"][0]
        grade |= {"grader": f"judge:{model}:medium@0", "model": model, "usage": {"cost_usd": 0.5}}
    found = suite(head(2), [GOOD], [one], graded)
    codes = [warning.partition(":")[0] for warning in found["warnings"]]
    assert codes == ["unused_tools", *(["judge_is_kin"] if "gpt" in model else [])]
    assert unused_tools(graded) == ["look"]
    assert found["spend"] == {"runs": 0.5, "judges": 1.0}
    graded[0]["usage"]["cost_usd"] = None
    assert spend(graded) == {"runs": None, "judges": 1.0}
    assert "runs cost unknown" in told(suite(head(2), [GOOD], [one], graded))


def test_nothing_measured_says_so() -> None:
    one = case("one")
    found = suite(head(1), [GOOD], [one], [run(one, 1, None)])
    assert (found["mean"], found["stderr"], found["pass_interval"], found["pass_at_1"]) == (None,) * 4
    assert "has no score: ungraded: judge failed" in sentence(found)
    empty = suite(head(1), [GOOD], [one], [])
    assert empty["mean"] is None and told(empty)
    assert "which says nothing of others" in sentence(suite(head(1), [GOOD], [one], [run(one, 1, 0.5)]))
    assert "no further gain" in sentence(suite(head(1), [GOOD], [one], [run(one, 1, 1.0)]))


def test_the_record_fits_its_table() -> None:
    cases = [case("a"), case("b")]
    runs = [run(one, 1, 0.5) for one in cases]
    found = plain({**suite(head(1), [GOOD], cases, runs), "measured_at": "2026-11-29T00:00:00.000Z"})
    assert list(problems("suite", {**found, "id": "x"})) == []
    line = arrange("suite", {**found, "id": record_id(found)})
    assert list(line)[:3] == ["v", "type", "id"]
    assert read_record(loads(json.dumps(line).encode()), "suite") == line
    with pytest.raises(RecordError, match="changed"):
        read_record({**line, "mean": 0.9}, "suite")


HOSTILE = ["\x1b[31mred\x1b[0m\nnew line", "日本語" * 30, "x" * 500, "", "\u202eevil", "a\tb"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_text_fits_and_is_safe(width: int) -> None:
    cases = [case(text or "empty") for text in HOSTILE] + [case(f"case {n}") for n in range(40)]
    runs = [
        run(one, t, (n + t) % 3 / 2, output=HOSTILE[n % 6]) for n, one in enumerate(cases) for t in (1, 2)
    ]
    for record in runs:
        record["scorecard"]["grades"][0]["reason"] = HOSTILE[record["trial"]] * 3
    found = suite({**head(2), "machine": "a/" * 20 + "m"}, [GOOD], cases, runs)
    for text in (told(found, width), told(found, width, runs=runs, all_cases=True)):
        long = [line for line in text.splitlines() if console.columns(line) > width]
        assert [line for line in long if not line.startswith("Next: ")] == []
        assert "\x1b" not in text and "\u202e" not in text
    assert "further case" in told(found, width)
    assert "further case" not in told(found, width, all_cases=True)


def test_family_counts_a_shared_case_once() -> None:
    shared, own = case("shared"), case("own")
    parent = (suite(head(1), [GOOD], [shared], [run(shared, 1, 1.0)]), [GOOD], [run(shared, 1, 1.0)])
    runs = [run(one, 1, {"good": score, "kind": 1.0}) for one, score in ((shared, 0.0), (own, 1.0))]
    child = (suite(head(1, "m/c"), [GOOD, KIND], [shared, own], runs), [GOOD, KIND], runs)
    (line,) = family([parent, child])
    assert (line["criterion"], line["machines"]) == ("good", ["m", "m/c"])
    assert (line["mean"], line["cases"]) == (0.75, 2), "the shared case is one unit, 0.5"
    both = {**parent[0], "family": {"members": [parent[0], child[0]], "criteria": [line]}}
    assert told(both).splitlines()[-1] == "Next: machine-suite m/c -v"


def test_family_weighs_cases_alike_whatever_their_trials() -> None:
    """By hand: case means 1/3, 1, 0 and a group's 0.75; the error is that of these four numbers."""
    one, two, three, four, five = case("one"), case("two"), case("three"), case("4", "g"), case("5", "g")
    parents = [run(one, t, score) for t, score in ((1, 1.0), (2, 0.0), (3, 0.0))] + [run(four, 1, 0.5)]
    childs = [
        run(of, 1, {"good": score, "kind": 1.0}) for of, score in ((two, 1.0), (three, 0.0), (five, 1.0))
    ]
    members = [
        (suite(head(3), [GOOD, SEEN], [one, four], parents), [GOOD, SEEN], parents),
        (suite(head(1, "m/c"), [GOOD, KIND], [two, three, five], childs), [GOOD, KIND], childs),
    ]
    (line,) = family(members)
    means = [1 / 3, 1.0, 0.0, 0.75]
    assert (line["cases"], line["mean"]) == (4, pytest.approx(statistics.mean(means)))
    assert line["stderr"] == pytest.approx(statistics.stdev(means) / 2)
    failed = [*childs, run(case("six"), 1, None, status="failed"), run(case("seven"), 1, None)]
    (again,) = family([members[0], (members[1][0], members[1][1], failed)])
    assert (again["mean"], again["stderr"], again["cases"]) == (line["mean"], line["stderr"], 4)
    assert (line["missing"], again["missing"]) == (0, 1), "counted, in no mean"


def test_criteria_of_one_name_are_common_only_if_they_are_equal() -> None:
    other = Criterion("kind", "It is of this kind.", 3.0)
    runs = [run(case("one"), 1, {"good": 1.0, "kind": 0.0})]
    parts = [
        (suite(head(1, f"m/{n}"), c, [], []), c, runs) for n, c in (("a", [GOOD, KIND]), ("b", [GOOD, other]))
    ]
    assert [(line["criterion"], line["machines"]) for line in family(parts)] == [("good", ["m/a", "m/b"])]


# comparisons -----------------------------------------------------------------------------


def measured(live: Sequence[Sequence[float | None]], new: Sequence[Sequence[float | None]]) -> Any:
    cases = [case(f"c{n:02}") for n in range(len(live))]
    arms: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, scores in (("live", live), ("candidate", new)):
        arms[name] = {
            one["identity"]: [run(one, t, s) for t, s in enumerate(trials, 1)]
            for one, trials in zip(cases, scores, strict=True)
        }
    return Measured(arms), cases


def compared(live: Sequence[Sequence[float | None]], new: Sequence[Sequence[float | None]]) -> dict[str, Any]:
    found, cases = measured(live, new)
    about = {
        "machine": "m",
        "baseline": "0" * 40,
        "candidate": "1" * 40,
        "base": "HEAD",
        "base_commit": "2" * 40,
        "rubric": "3" * 40,
        "graders": "4" * 40,
        "engine": {},
        "on": "cases.jsonl",
        "trials": len(live[0]),
        "changed": ["instructions"],
        "stored": {"live": 0, "candidate": 0},
    }
    return comparison(about, found, cases, [GOOD], [])


def test_comparison_has_the_gates_figures() -> None:
    rng = random.Random(7)
    live = [[rng.choice((0.0, 0.5, 1.0, None)) for _ in range(3)] for _ in range(15)]
    new = [[rng.choice((0.0, 0.5, 1.0)) for _ in range(3)] for _ in range(15)]
    found = compared(live, new)
    gate = paired_gate(live, new)
    for name in ("mean_diff", "se", "z", "p_flip", "p_t", "ci_t", "wins", "losses", "ties", "missing_live"):
        assert found[name] == gate[name], name
    assert paired_gate(found["arms"]["live"], found["arms"]["candidate"])["diff"] == found["diff"]
    assert found["ungraded"] == sum(score is None for trials in live for score in trials)
    line = plain({**found})
    assert list(problems("comparison", {**line, "id": "x"})) == []
    assert read_record({**line, "id": record_id(line)}, "comparison")["evidence"] == found["evidence"]


@pytest.mark.parametrize("seed", range(6))
def test_two_sided_p_by_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    diff = [rng.choice((-1.0, -0.5, -1 / 3, 0.0, 1 / 3, 1.0)) for _ in range(9)]
    gate = paired_gate([[0.0] for _ in diff], [[d] for d in diff])
    seen = abs(sum(diff)) - 1e-9
    flips = [
        sum(s * d for s, d in zip(signs, diff, strict=True)) for signs in itertools.product((1, -1), repeat=9)
    ]
    wanted = sum(abs(total) >= seen for total in flips) / len(flips)
    assert _two_sided(gate) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    ("live", "new", "evidence", "words"),
    [
        ([[0.0]] * 8, [[1.0]] * 8, "better", "is better on these cases: +1.000, the same in every case"),
        ([[1.0]] * 8, [[0.0]] * 8, "worse", "is worse on these cases"),
        ([[0.0]] * 3, [[1.0]] * 3, "none", "3 cases that move alike are no evidence yet"),
        ([[0.5]] * 8, [[0.5]] * 8, "none", "every case scored the same"),
        ([[0.0]], [[1.0]], "none", "One case"),
        ([[0.0]] * 8, [[1.0]] + [[0.0]] * 7, "none", "+0.125 is 1.0 standard errors"),
        ([[None]] * 3, [[1.0]] * 3, None, "Nothing can be compared"),
    ],
)
def test_what_it_means(live: Any, new: Any, evidence: str | None, words: str) -> None:
    found = compared(live, new)
    assert found["evidence"] == evidence
    assert words in compare_sentence(found)
    text = compare_report(plain({**found}), 80)
    assert RULE in text.splitlines()
    assert text.splitlines()[-1].startswith("Next: ")
    assert max(map(console.columns, text.splitlines())) <= 80


def test_many_cases_show_those_that_moved() -> None:
    found = compared([[0.0]] * 60, [[1.0]] * 5 + [[0.0]] * 50 + [[None]] * 5)
    text = compare_report(plain({**found}), 80)
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("0.00  1.00")] == [
        f"c{n:02}" for n in range(5)
    ]
    assert "(55 further cases: 0 better, 0 worse, 50 alike, 5 without a pair)" in text
    assert "no case moved (60 alike, 0 without a pair)" in compare_report(
        compared([[0.0]] * 60, [[0.0]] * 60), 80
    )


def test_rubric_changes() -> None:
    heavier = Criterion("good", "It is good.", 2.0)
    assert rubric_changes([GOOD, SEEN], [heavier, KIND]) == ["added kind", "dropped seen", "changed good"]
    assert rubric_changes([GOOD, KIND], [KIND, GOOD]) == []


# controls --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1]", "reference 2: a reference is"),
        ('{"id": "a"}', "reference 2: a reference is"),
        ('{"output": "x"}', "reference 2: a reference is"),
        ('{"id": "a", "output": []}', "reference 2: 'output' is a text"),
        ('{"id": "a", "output": 7}', "reference 2: 'output' is a text"),
        ('{"id": "a", "output": "x", "more": 1}', "reference 2: unknown field 'more'"),
        ('{"id": "z", "output": "x"}', "reference 2: there is no case 'z'"),
        ('{"input": "z", "output": "x"}', "reference 2: there is no case of this input"),
        ('{"id": "b", "output": "x"}', "reference 2: this case has another reference above"),
        ("{", "reference 2: "),
    ],
)
def test_bad_references(line: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "references"
    path.write_text('{"id": "b", "output": "y"}\n' + line + "\n")
    with pytest.raises(MachineError, match=why):
        read_references(str(path), [case("a"), case("b")])


def test_references_are_needed(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for name, why in (("empty", "has no reference"), ("absent", "no file of references")):
        with pytest.raises(MachineError, match=why):
            read_references(str(tmp_path / name), [case("a")])
