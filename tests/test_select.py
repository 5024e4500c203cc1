"""Lines put by on disk and in memory, and what machine-select keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine.select import Wanted, select
from libmachine.shelf import Shelf

runs_of = st.lists(
    st.fixed_dictionaries(
        {
            "machine": st.sampled_from(["a", "a/b"]),
            "case": st.sampled_from([{"identity": "1"}, {"identity": "2"}, {"identity": "3"}]),
            "status": st.sampled_from(["ok", "ok", "limit", "failed"]),
            "started_at": st.sampled_from(["2026-11-29T10", "2026-11-29T11"]),
            "output": st.sampled_from(["yes", "YES ", "no"]),
            "messages": st.just([]),
            "scorecard": st.one_of(
                st.none(),
                st.sampled_from([0, 0.5, 1]).map(lambda score: {"score": score, "passed": score == 1}),
            ),
        }
    ),
    max_size=30,
)
wanted_of = st.builds(
    Wanted, best=st.one_of(st.none(), st.integers(1, 4)), distinct=st.booleans(), passing=st.booleans()
)


def lines_of(runs: list[dict[str, Any]]) -> list[tuple[bytes, dict[str, Any]]]:
    return [(b"%d:%s\n" % (number, b"x" * (number % 7)), run) for number, run in enumerate(runs)]


def plainly(runs: list[dict[str, Any]], wanted: Wanted) -> list[bytes]:
    """What is kept, by sorting all."""
    kept = []
    for number, (raw, run) in enumerate(lines_of(runs)):
        card = run["scorecard"] if run["status"] != "failed" else None
        if card is None and (wanted.best is not None or wanted.passing):
            continue
        if wanted.passing and not card["passed"]:
            continue
        rank = (card["score"] if card else -1, run["started_at"], number)
        kept.append((rank, (run["machine"], run["case"]["identity"]), run["output"].strip().lower(), raw))
    kept.sort(reverse=True, key=lambda item: item[0])
    if wanted.distinct:
        kept = [k for i, k in enumerate(kept) if k[1:3] not in [other[1:3] for other in kept[:i]]]
    if wanted.best is not None:
        kept = [k for i, k in enumerate(kept) if [o[1] for o in kept[:i]].count(k[1]) < wanted.best]
    return [raw for rank, _, _, raw in sorted(kept, key=lambda item: item[0][2])]


@settings(max_examples=150, deadline=None)
@given(runs_of, wanted_of, st.sampled_from([0, 1, 10, 40, 10**6]))
def test_the_same_is_kept_wherever_lines_wait(runs: list[dict[str, Any]], wanted: Wanted, room: int) -> None:
    assert list(select(lines_of(runs), wanted, Shelf(room))) == plainly(runs, wanted)


def test_what_is_dropped_is_not_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shelf = Shelf(100)
    for number in range(50):
        shelf.drop(shelf.put(b"%060d" % number))
    assert shelf._file is None
    slips = [shelf.put(b"%060d" % number) for number in range(50)]
    assert shelf._file is not None
    assert list(tmp_path.iterdir()) == []  # it has no name that a killed process would leave behind
    assert [shelf.get(slip) for slip in slips] == [b"%060d" % number for number in range(50)]
    assert sum(slip.line is not None for slip in slips) <= 1
