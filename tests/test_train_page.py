"""The page of a round of training: well formed, self-contained, foreign text escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from libmachine import stats
from libmachine.train import page as train_page
from libmachine.train import report as train_report

VOID = {"meta"}
NASTY = "<b>&\"'</b>{0}"


class Outline(HTMLParser):
    """Which tags were opened, and whether each was closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return outline


def verdict(live: list[list[Any]], new: list[list[Any]]) -> dict[str, Any]:
    figures = stats.paired_gate(live, new)
    arm = {"pass_rate": 0.5, "pass_at_k": 0.5, "all_good": None, "mean_completion_tokens": 3.0, "runs": 2}
    arm |= {"distinct_outputs": 2, "stop_reasons": {"stop": 2}}
    return {
        "machine": NASTY,
        "baseline": "b" * 40,
        "candidate": "c" * 40,
        "on": "score",
        "cases": len(live),
        "trials": 1,
        "arms": {"cases": [f"{i:040d}" for i in range(len(live))], "live": live, "candidate": new},
        "criteria": {"short": {"live": 0.1, "candidate": None, "role": "audit"}},
        "about": {"live": arm, "candidate": arm},
        **figures,
    }


def found(losses: list[float | None], judged: dict[str, Any]) -> dict[str, Any]:
    solved = {"cases": 3, "unsolved": 1, "median_rate": 0.5}
    return {
        "machine": NASTY,
        "base_version": "b" * 40,
        "version": "c" * 40,
        "runs": 9,
        "bought": 9,
        "graded": 9,
        "passed": 5,
        "data": {"examples": 4, "cases": 2, "tokens": 99, "solved": solved, "dropped": {NASTY: 2}},
        "training": {
            **{"base_model": "m", "steps": len(losses), "rank": 8, "learning_rate": 1e-4, "seed": 0},
            **{"duration_s": 3.2, "losses": losses, "warnings": ["few_steps: 2 steps"]},
        },
        "verdict": judged,
        "decision": judged["decision"],
        "cost_usd": 0.25,
        "measured_at": "2026-11-29T00:00:00Z",
    }


def test_a_whole_page() -> None:
    judged = verdict([[0.0], [0.5], [1.0], [None]], [[1.0], [0.5], [0.25], [1.0]])
    page = train_page.page(found([2.0, None, 1.0, 0.5], judged), {f"{0:040d}": NASTY})
    outline = read(page)
    # title, heading, verdict (twice), case, what was learned from and left out
    assert outline.text.count(NASTY) == 7
    assert "<b>" not in page
    assert not re.search(r"https?://|<script|<link|<img|url\(", page)
    # the loss leaves a gap where none was measured; each case has its dots
    assert outline.seen.count("polyline") == 2
    rows = page[page.index("Held-out cases") :]
    chart = rows[rows.index('role="img"') :]
    chart = chart[: chart.index("</svg>")]
    assert len(re.findall("<circle", chart)) == 7  # one grade is missing
    assert [len(re.findall(f'class="{kind}" x1', chart)) for kind in ("up", "same", "down")] == [1, 1, 1]
    assert "2 steps" in outline.text
    assert "$0.25" in outline.text


def test_a_verdict_without_a_measurement() -> None:
    judged = verdict([[0.0]], [[1.0]])
    for name in ("arms", "about", "criteria"):
        del judged[name]
    page = train_page.page(found([], {**judged, "decision": "same", "reasons": ["same"], "warnings": []}), {})
    assert "no loss was reported" in read(page).text


@given(st.lists(st.none() | st.floats(0, 1e6), max_size=40))
def test_any_losses(losses: list[float | None]) -> None:
    chart = train_page.loss_chart(losses)
    read(chart)
    for points in re.findall(r'points="([^"]*)"', chart):
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 800
            assert 0 <= y <= 240


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=200), st.integers(2, 60))
def test_sparkline(values: list[float], most: int) -> None:
    line = train_report.sparkline(values, most)
    assert len(line) == min(len(values), most)
    assert set(line) <= set("▁▂▃▄▅▆▇█")
    if len(values) <= most and min(values) < max(values):
        assert line[values.index(min(values))] == "▁"
        assert line[values.index(max(values))] == "█"
