"""Cases in and out of other tools' files, and the split that stays as it is when rows are added.

tests/data/interchange holds files that inspect_ai 0.3.285 and promptfoo 0.121.20 wrote themselves.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine import intake
from libmachine.canon import dump_line, hash_of
from libmachine.case import read_case
from libmachine.cases import rows
from libmachine.errors import MachineError
from libmachine.interchange import evals, inspect_read, inspect_write, promptfoo
from libmachine.interchange.rows import Columns, Row, Unfit, table
from libmachine.leaks import LIKE, _grams, _plain, alike
from libmachine.stats import paired_gate, smallest_gain

DATA = Path(__file__).resolve().parent / "data" / "interchange"
NONE = Columns()
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30)


def cases_of(name: str, source: str | None, columns: Columns = NONE) -> list[dict[str, Any]]:
    path = DATA / name
    found = list(rows(path.read_bytes(), source, False, columns, str(path)))
    assert [row.error for row in found] == [None] * len(found)
    return [read_case(row.value) for row in found]


def sides(found: intake.Intake) -> dict[str, str]:
    return {case["identity"]: side for side, cases in found.added.items() for case in cases}


# the split ------------------------------------------------------------------------------


def sorted_in(
    inputs: list[str], old: dict[str, list[Any]] | None = None, share: float = 0.4
) -> intake.Intake:
    given = old or {"cases": [], "holdout": []}
    found = [Row(number, {"input": text}) for number, text in enumerate(inputs, 1)]
    return intake.take_in(found, given, share, lambda identity: False, keep_near=True)


@given(st.lists(texts, max_size=12), st.lists(texts, max_size=12), st.randoms())
def test_a_case_stays_on_its_side(first: list[str], more: list[str], chance: random.Random) -> None:
    """Rows added, in whatever order, move nobody; what is there comes in no second time."""
    before = sorted_in(first)
    old = before.added
    rest = [*first, *more]
    chance.shuffle(rest)
    after = sorted_in(rest, old)
    assert not set(sides(before)) & set(sides(after))
    assert set(sides(before)) | set(sides(after)) == {read_case(text)["identity"] for text in rest}
    again = sorted_in(rest, {side: [*old[side], *after.added[side]] for side in old})
    assert sides(again) == {}


def test_the_share_is_that_of_the_holdout() -> None:
    identities = [read_case(f"case {number}")["identity"] for number in range(4000)]
    for share in (0.0, 0.1, 0.4, 1.0):
        held = sum(intake.side_of({"identity": i}, share) == "holdout" for i in identities) / len(identities)
        assert abs(held - share) < 0.03, share
    # a greater share moves cases into the exam and none out of it
    one, two = (
        {i for i in identities if intake.side_of({"identity": i}, s) == "holdout"} for s in (0.2, 0.5)
    )
    assert one < two


def test_a_group_is_on_one_side_and_held_out_cases_stay_so() -> None:
    found = [
        Row(number, {"input": hash_of(number), "metadata": {"group": f"g{number % 5}"}})
        for number in range(1, 60)
    ]
    done = intake.take_in(found, {"cases": [], "holdout": []}, 0.5, lambda identity: False, True)
    groups = [{case["metadata"]["group"] for case in cases} for cases in done.added.values()]
    assert groups[0] and groups[1] and not groups[0] & groups[1]
    old = read_case("an old exam")
    done = intake.take_in(
        [Row(1, "an old exam")], {"cases": [], "holdout": []}, 0.0, lambda i: i == old["identity"], False
    )
    assert sides(done) == {old["identity"]: "holdout"}


@given(st.lists(st.text("ab1 ", max_size=25), max_size=12))
@settings(max_examples=200)
def test_alike_finds_what_comparing_all_pairs_finds(inputs: list[str]) -> None:
    cases = [{"id": str(number), "input": text} for number, text in enumerate(inputs)]
    grams = [_grams(_plain(text)) for text in inputs]
    wanted = [
        (a, b)
        for b in range(len(grams))
        for a in range(len(grams))
        if len(grams[a] & grams[b]) >= LIKE * len(grams[a] | grams[b])
    ]
    assert alike(cases, cases) == wanted


def test_the_smallest_gain_is_the_gates() -> None:
    live = [[0.0], [1.0], [0.5], [0.25]]
    candidate = [[1.0], [1.0], [0.0], [0.75]]
    verdict = paired_gate(live, candidate)
    assert verdict["mde80"] == pytest.approx(smallest_gain(4, verdict["sd"]))
    assert smallest_gain(1, 0.3) is None
    gains = [smallest_gain(n, intake.SPREAD) for n in (6, 12, 24, 100)]
    assert gains == sorted(gains, key=lambda gain: -(gain or 0))
    exam = [read_case({"input": str(n), "metadata": {"group": f"g{n // 2}"}}) for n in range(24)]
    assert intake.power(exam) == {"cases": 24, "units": 12, "gain": gains[1]}


# tables ---------------------------------------------------------------------------------


def test_table() -> None:
    found = list(table(b'\xef\xbb\xbfa,b\r\n"x\r\ny",1\r\n\r\n,\r\n1,2,3\r\nlast'))
    assert [(row.number, row.value) for row in found if row.error is None] == [
        (2, {"a": "x\r\ny", "b": "1"}),
        (7, {"a": "last"}),
    ]
    assert [(row.number, "3 cells under 2" in str(row.error)) for row in found if row.error] == [(6, True)]
    assert list(table(b"a\tb\n1\t2\n", tabs=True)) == [Row(2, {"a": "1", "b": "2"})]
    for wrong in (b"", b"\xff\n", b"a,a\n1,2\n"):
        with pytest.raises(MachineError):
            list(table(wrong))


# inspect --------------------------------------------------------------------------------


def test_inspect_files() -> None:
    cases = {case["id"]: case for case in cases_of("inspect.jsonl", "inspect")}
    assert cases["colors"]["target"] == ["red", "yellow", "blue"]
    assert cases["pick"]["input"].endswith("\n\nA) stone\nB) apple")
    assert cases["chat"]["files"] == {"note.txt": "the sea is blue"}
    call = cases["tool"]["input"][1]["tool_calls"][0]
    assert call == {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":2}'}}
    log = {case["id"]: case for case in cases_of("inspect-log.json", "inspect")}
    assert set(log) == {"sky", "colors", "pick", "chat"}, "each sample once, of two epochs"
    for name in ("sky", "colors", "pick"):
        assert log[name]["identity"] == cases[name]["identity"]


def test_a_packed_log_says_what_it_needs_or_is_read() -> None:
    try:
        import zstandard  # noqa: F401
    except ImportError:
        with pytest.raises(MachineError, match="pip install zstandard"):
            cases_of("inspect-log.eval", "inspect")
    else:
        packed = {case["identity"] for case in cases_of("inspect-log.eval", "inspect")}
        assert packed == {case["identity"] for case in cases_of("inspect-log.json", "inspect")}


@pytest.mark.parametrize("cut", [3, 40, 5000])
def test_a_torn_log_is_no_bug_of_ours(cut: int) -> None:
    for name in ("inspect-log.eval", "inspect-log.json"):
        data = (DATA / name).read_bytes()[:cut]
        try:
            list(inspect_read.read(data, NONE, None, False))
        except MachineError:
            pass


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["input", "target", "id", "choices", "files", "metadata"]), json_values)
)
def test_any_sample_is_a_case_or_said_to_be_none(sample: dict[str, Any]) -> None:
    data = json.dumps(sample).encode()
    for read in (
        lambda: inspect_read.read(data, NONE, None, False),
        lambda: evals.read(data, NONE),
        lambda: promptfoo.read(json.dumps([{"vars": sample}]).encode(), NONE, None),
    ):
        for row in read():
            assert row.error or isinstance(row.value, dict)


targets = st.none() | texts | st.lists(texts, min_size=1, max_size=3)


@given(texts, targets, st.dictionaries(st.sampled_from(["level", "topic"]), texts))
def test_round_trips(text: str, target: Any, metadata: dict[str, str]) -> None:
    """A case that goes out and comes in again is the same case."""
    case = read_case({"id": "one", "input": text, "target": target, "metadata": metadata})
    wanted = (case["identity"], case["target"], metadata)

    def back(found: Any) -> tuple[Any, ...]:
        (row,) = found
        read = read_case(row.value)
        return read["identity"], read.get("target"), read.get("metadata") or {}

    given = case if target is not None else {k: v for k, v in case.items() if k != "target"}
    assert back(inspect_read.read(dump_line(inspect_write.sample(given)), NONE, None, False)) == wanted
    assert back(evals.read(dump_line(evals.sample(given)), NONE)) == wanted
    try:
        test = promptfoo.as_test(given)
    except Unfit:
        return
    config = dump_line(promptfoo.configuration("m", [test]))
    if not text.lstrip().startswith("["):  # promptfoo takes that for messages, and so do we
        assert back(promptfoo.read(config, NONE, None)) == wanted


# promptfoo ------------------------------------------------------------------------------


def test_promptfoo_results_and_its_table() -> None:
    found = cases_of("promptfoo-results.json", "promptfoo")
    sky = next(case for case in found if "sky" in case["input"])
    assert (sky["target"], sky["metadata"]["level"]) == ("sky", "easy")
    assert sky["metadata"]["assert"] == [{"type": "icontains", "value": "sky"}]
    assert {"Name a color.", "Name a shape."} <= {case["input"] for case in found}
    config = json.dumps({"tests": ["file://promptfoo-tests.csv"]}).encode()
    legs, sea = (row.value for row in promptfoo.read(config, NONE, str(DATA)))
    # as promptfoo itself reads that file: tests/data was made by a run of it
    assert legs["metadata"]["assert"] == [{"type": "icontains", "value": "four"}]
    assert sea["target"] == "the Red Sea"
    assert sea["metadata"]["assert"] == [{"type": "equals", "value": "the Red Sea"}]
    above = json.dumps({"tests": ["file://../run-v1.jsonl", "file://made.js", 3]}).encode()
    assert all(row.error for row in promptfoo.read(above, NONE, str(DATA)))


def test_promptfoo_yaml() -> None:
    try:
        import yaml  # noqa: F401
    except ImportError:
        with pytest.raises(MachineError, match="pip install pyyaml"):
            cases_of("promptfooconfig.yaml", "promptfoo")
    else:
        ours = {case["identity"] for case in cases_of("promptfooconfig.yaml", "promptfoo")}
        assert ours == {case["identity"] for case in cases_of("promptfoo-results.json", "promptfoo")}


def test_what_promptfoo_would_change_stays_here() -> None:
    for text in ("say {{input}}", "my {{ env.HOME }}", "file:///etc/hostname"):
        with pytest.raises(Unfit):
            promptfoo.as_test(read_case({"input": text}))
    with pytest.raises(Unfit):
        promptfoo.as_test(read_case({"input": "x", "files": {"a": "b"}}))
    several = json.dumps([{"vars": {"city": "Rome", "land": "Italy"}}]).encode()
    (row,) = promptfoo.read(several, NONE, None)
    assert row.error == "which variable is the input? --input city|land"
    (row,) = promptfoo.read(several, Columns("city", "land"), None)
    assert row.value == {"input": "Rome", "target": "Italy"}


# runs as a log --------------------------------------------------------------------------


def run_of(case: str, trial: int, score: float | None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((DATA.parent / "run-v1.jsonl").read_text())
    made.pop("scorecard", None)
    read = read_case({"id": case, "input": f"what is {case}?", "target": [case]})
    grades = [{"criterion": "good", "score": score, "reason": "because"}]
    card = {"score": score, "passed": None if score is None else score == 1, "grades": grades}
    return {
        **made,
        "case": read,
        "trial": trial,
        "scorecard": card,
        "status": "ok",
        "stop_reason": "stop",
        **more,
    }


def a_log() -> dict[str, Any]:
    failed = {"status": "failed", "error": {"where": "provider", "message": "down"}, "stop_reason": "error"}
    return inspect_write.log(
        [
            run_of("a", 1, 1.0),
            run_of("a", 2, 0.0),
            run_of("b", 1, 1.0),
            run_of("b", 2, None),
            run_of("c", 1, None, **failed),
            run_of("d", 1, 0.0, status="limit", stop_reason="max_steps"),
        ]
    )


def test_log() -> None:
    log = a_log()
    score = next(s for s in log["results"]["scores"] if s["name"] == "good")
    assert score["metrics"]["mean"]["value"] == pytest.approx((0.5 + 1.0 + 0.0) / 3), "over cases, not runs"
    assert (score["scored_samples"], score["unscored_samples"]) == (4, 2)
    samples = log["samples"]
    assert [(s["id"], s["epoch"]) for s in samples][:4] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert samples[3]["scores"] == {} and "error" not in samples[3], "not graded is no zero"
    assert samples[4]["error"]["message"] == "provider: down" and samples[4]["scores"] == {}
    assert samples[5]["limit"]["type"] == "custom"
    real = json.loads((DATA / "inspect-log.json").read_text())
    assert set(log) <= set(real), "fields that a log of inspect_ai has"
    assert set(log["eval"]) <= set(real["eval"]) | {"metadata", "revision"}
    for ours, theirs in ((log["samples"][0], real["samples"][0]), (log["results"], real["results"])):
        assert set(ours) <= set(theirs)
    assert set(score) <= set(real["results"]["scores"][0])


def test_inspect_itself_reads_what_we_write(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    from inspect_ai.dataset import json_dataset
    from inspect_ai.log import read_eval_log

    cases = cases_of("inspect.jsonl", "inspect")
    (tmp_path / "cases.jsonl").write_bytes(b"".join(dump_line(inspect_write.sample(c)) for c in cases))
    samples = {sample.id: sample for sample in json_dataset(str(tmp_path / "cases.jsonl"))}
    assert samples["colors"].target == ["red", "yellow", "blue"]
    assert samples["tool"].input[1].tool_calls[0].arguments == {"a": 2, "b": 2}
    (tmp_path / "log.json").write_bytes(dump_line(a_log()))
    log = read_eval_log(str(tmp_path / "log.json"))
    assert log.status == "success" and log.samples is not None and log.results is not None
    assert log.samples[0].scores["good"].value == 1
    assert log.samples[4].error.message == "provider: down"
