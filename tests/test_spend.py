"""machine-spend: totals equal rows, nothing that was spent is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine import console, spend
from libmachine.budget.ledger import Ledger
from libmachine.cmd.spend import command

ROOT = Path(__file__).resolve().parent.parent


def row(usd: float | None, **fields: Any) -> dict[str, Any]:
    known = {"at": "2026-11-29T23:59:59.000Z", "kind": "run", "machine": "say", "model": "m", "verb": "run"}
    return {"type": "settle", "id": "1", "usd": usd, **known, **fields}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A project whose store has spent: a run and its judge, one call in flight, one of a dead process."""
    (tmp_path / "machines").mkdir()
    path = tmp_path / ".machine" / "spend"
    ledger = Ledger(spend=str(path), fsync=False)
    run = {"kind": "run", "machine": "say", "model": "big", "verb": "run"}
    judge = {"kind": "judge", "machine": "say", "model": "small", "verb": "grade"}
    counts = {"prompt_tokens": 1999, "cached_tokens": 1792, "completion_tokens": 10, "reasoning_tokens": 0}
    ledger.settle(ledger.reserve(0.05, run), 0.02, counts)
    ledger.settle(ledger.reserve(0.05, judge), 0.0012, {"prompt_tokens": 300, "completion_tokens": 5})
    ledger.release(ledger.reserve(0.05, run))
    code = "import sys; from libmachine.budget.ledger import Ledger; "
    code += "Ledger(spend=sys.argv[1], fsync=False).reserve(0.03, {'kind': 'run', 'machine': 'brief'})"
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True)
    ledger.reserve(0.04, run)
    return tmp_path


def test_rows(store: Path) -> None:
    found = list(spend.rows(str(store / ".machine" / "spend")))
    assert [r["usd"] for r in found] == [0.02, 0.0012, 0.03]
    assert [r.get("lost") for r in found] == [None, None, True]
    assert list(spend.rows(str(store / "nothing"))) == []


def test_the_judge_is_in_the_total_and_apart_from_the_run(store: Path) -> None:
    groups = spend.sums(spend.rows(str(store / ".machine" / "spend")), "kind")
    assert [(g["name"], g["calls"], g["usd"], g["prompt_tokens"]) for g in groups] == [
        ("run", 2, 0.05, 1999),
        ("judge", 1, 0.0012, 300),
    ]
    whole = spend.total(groups)
    assert (whole["calls"], whole["usd"], whole["prompt_tokens"], whole["lost"]) == (3, 0.0512, 2299, 1)


def test_what_is_not_reported_is_not_zero() -> None:
    (group,) = spend.sums([row(None), row(0.5, estimated=True, completion_tokens=4)], "model")
    assert (group["usd"], group["calls"], group["unknown"], group["estimated"]) == (0.5, 2, 1, 1)
    assert (group["prompt_tokens"], group["completion_tokens"]) == (None, 4)


def test_days_in_order_and_since() -> None:
    found = [row(0.1, at=f"2026-11-{day}T10:00:00.000Z") for day in ("29", "27", "28", "27")]
    assert [(g["name"], g["usd"]) for g in spend.sums(found, "day")] == [
        ("2026-11-27", 0.2),
        ("2026-11-28", 0.1),
        ("2026-11-29", 0.1),
    ]
    late = spend.sums(found, "day", since="2026-11-28T10:00:00.000Z")
    assert [g["name"] for g in late] == ["2026-11-28", "2026-11-29"]


def test_lines_that_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "spend"
    lines = [
        "x",
        "[]",
        '{"type": 3}',
        '{"type": "settle"}',
        '{"type": "settle", "usd": "much", "machine": 7}',
    ]
    path.write_text("\n".join([*lines, json.dumps(row(0.25)), '{"type": "settle", "usd": 9']))
    assert spend.total(spend.sums(spend.rows(str(path)), "machine"))["usd"] == 0.25
    assert spend.sums(spend.rows(str(path)), "day")


ROWS = st.lists(
    st.builds(
        lambda micro, fields: row(micro / 1e6, **fields),
        st.integers(0, 10**9),
        st.fixed_dictionaries(
            {},
            optional={
                "machine": st.sampled_from(["a", "b", None]),
                "model": st.sampled_from(["x", "y"]),
                "kind": st.sampled_from(["run", "judge"]),
                "at": st.dates().map(lambda day: f"{day}T00:00:00.000Z"),
                "prompt_tokens": st.integers(0, 10**6),
            },
        ),
    ),
    max_size=30,
)


@given(ROWS, st.sampled_from(spend.GROUPS))
def test_totals_equal_rows(found: list[dict[str, Any]], by: str) -> None:
    groups = spend.sums(found, by)
    whole = spend.total(groups)
    assert round(whole["usd"] * 1e6) == sum(round(r["usd"] * 1e6) for r in found)
    assert whole["calls"] == len(found)
    assert (whole["prompt_tokens"] or 0) == sum(r.get("prompt_tokens", 0) for r in found)
    assert len({g["name"] for g in groups}) == len(groups)


# the command -----------------------------------------------------------------------------


def machine_spend(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MACHINE_")}
    return subprocess.run(
        [sys.executable, str(ROOT / "libmachine" / "boot.py"), "spend", "machine-spend", *words],
        cwd=project,
        env=kept,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_lines_in_a_pipe(store: Path) -> None:
    done = machine_spend(store)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(g["type"], g["by"], g["name"], g["usd"]) for g in lines] == [
        ("spend", "machine", "brief", 0.03),
        ("spend", "machine", "say", 0.0212),
    ]
    by_verb = [json.loads(line)["name"] for line in machine_spend(store, "--by", "verb").stdout.splitlines()]
    assert by_verb == ["-", "run", "grade"]
    assert machine_spend(store, "--since", "2999-01-01").stdout == ""
    assert len(machine_spend(store, "--since", "1h").stdout.splitlines()) == 2


def test_a_table_on_a_terminal(
    store: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "is_terminal", lambda fd: True)
    command.main(["-C", str(store), "--by", "model"], standalone_mode=False)
    assert [line.split() for line in capfd.readouterr().out.splitlines()] == [
        ["model", "calls", "in", "cached", "out", "USD", "of", "it"],
        ["-", "1", "-", "-", "-", "0.030000", "1", "lost"],
        ["big", "1", "1999", "1792", "10", "0.020000"],
        ["small", "1", "300", "-", "5", "0.001200"],
        ["total", "3", "2299", "1792", "15", "0.051200", "1", "lost"],
    ]
    command.main(["-C", str(store), "--json"], standalone_mode=False)
    assert capfd.readouterr().out.startswith('{"v":1,"type":"spend"')


def test_nothing_spent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = machine_spend(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(console, "is_terminal", lambda fd: True)
    command.main(["-C", str(tmp_path)], standalone_mode=False)
    assert capfd.readouterr().err == "nothing was spent\n"


def test_usage(tmp_path: Path) -> None:
    assert machine_spend(tmp_path, "--by", "week").returncode == 129
    assert machine_spend(tmp_path, "--since", "soon").returncode == 129


def test_the_command_knows_every_group() -> None:
    choice = next(param.type for param in command.params if param.name == "by")
    assert tuple(choice.choices) == spend.GROUPS  # type: ignore[attr-defined]
