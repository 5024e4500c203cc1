"""A round of training as one page that needs nothing else: HTML with its charts as SVG, no script.

Read it in any browser, attach it to a pull request, keep it with the checkpoint. Pure.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from libmachine.canon import Record
from libmachine.console import count, money
from libmachine.gate.report import sentence
from libmachine.sft.examples import loss_ends
from libmachine.train.report import lines

_STYLE = """
:root { --ink: #1c2024; --soft: #60646c; --line: #d9d9e0; --paper: #ffffff; --live: #8b8d98; --new: #0d74ce;
  --worse: #ce2c31; --better: #218358; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --soft: #b0b4ba; --line: #43484e;
  --paper: #111113; --live: #777b84; --new: #70b8ff; --worse: #ff9592; --better: #3dd68c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { font-size: 1.1rem; margin: .5rem 0 1rem; } .soft { color: var(--soft); }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } th { color: var(--soft); font-weight: 500; }
tr { border-bottom: 1px solid var(--line); } svg { width: 100%; height: auto; display: block; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); } code { font-size: .9em; }
.axis { stroke: var(--line); } .loss { fill: none; stroke: var(--new); stroke-width: 2; }
.live { fill: var(--live); } .new { fill: var(--new); }
.up { stroke: var(--better); } .down { stroke: var(--worse); }
.up, .down { stroke-width: 3; } .same { stroke: var(--line); stroke-width: 3; } .name { fill: var(--ink); }
""".strip()


def page(found: Record, names: Mapping[str, str]) -> str:
    """The page. names: case identity -> the case's id today. Text of machines and cases is escaped."""
    verdict = found["verdict"]
    title = f"{found['machine']}: {found['base_version'][:12]} to {found['version'][:12]}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="soft">{_text(found["measured_at"])} · {_text(money(found["cost_usd"]))}</p>',
        f'<p class="verdict">{_text(sentence(verdict))}</p>',
        "<h2>Loss</h2>",
        loss_chart(found["training"]["losses"]),
    ]
    if "arms" in verdict:
        parts += ["<h2>Held-out cases</h2>", _legend(verdict), case_chart(verdict, names)]
        parts += ["<h2>Figures</h2>", _figures(verdict), "<h2>Criteria</h2>", _criteria(verdict)]
    warnings = [str(warning) for warning in verdict["warnings"]]
    if warnings:
        parts += ["<h2>Warnings</h2>", _list(warnings)]
    parts += ["<h2>What was learned from</h2>", _list(lines(found, 200))]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{_STYLE}\n</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def loss_chart(losses: Sequence[float | None]) -> str:
    """SVG of the mean loss a token by step; what was not measured leaves a gap."""
    known = [loss for loss in losses if loss is not None]
    ends = loss_ends(losses)
    if ends is None:
        return '<p class="soft">no loss was reported</p>'
    wide, high, left, bottom = 800, 240, 48, 28
    top = _ceiling(max(known))
    across = max(1, len(losses) - 1)

    def at(step: int, loss: float) -> tuple[float, float]:
        return left + (wide - left - 16) * step / across, 12 + (high - bottom - 12) * (1 - loss / top)

    marks = []
    for part in range(5):
        value = top * part / 4
        y = at(0, value)[1]
        marks.append(f'<line class="axis" x1="{left}" x2="{wide - 16}" y1="{y:.1f}" y2="{y:.1f}"/>')
        marks.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for step in sorted({0, across // 2, across}):
        x = at(step, 0)[0]
        anchor = "end" if step and step == across else "middle"
        marks.append(f'<text x="{x:.1f}" y="{high - 8}" text-anchor="{anchor}">step {step + 1}</text>')
    curves: list[str] = []
    run: list[str] = []
    for step, loss in [*enumerate(losses), (len(losses), None)]:
        if loss is None:
            curves += [f'<polyline class="loss" points="{" ".join(run)}"/>'] if run else []
            run = []
        else:
            x, y = at(step, loss)
            run.append(f"{x:.1f},{y:.1f}")
    told = f"loss a token, {ends[0]:.3f} in the first quarter of the steps, {ends[1]:.3f} in the last"
    return _svg(wide, high, told, [*marks, *curves])


def case_chart(verdict: Record, names: Mapping[str, str]) -> str:
    """SVG with a row a held-out case: the mean score of the live version and of the new one."""
    arms = verdict["arms"]
    rows = []
    for number, identity in enumerate(arms["cases"]):
        live, new = _mean(arms["live"][number]), _mean(arms["candidate"][number])
        rows.append((names.get(identity, identity[:12]), live, new))
    rows.sort(key=lambda row: (row[1] is None or row[2] is None, (row[2] or 0) - (row[1] or 0), row[0]))
    wide, left, step = 800, 220, 20
    high = step * len(rows) + 32
    shapes = []
    for part in range(5):
        x = _across(part / 4, left, wide)
        shapes.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{high - 24}"/>')
        shapes.append(f'<text x="{x:.1f}" y="{high - 8}" text-anchor="middle">{part / 4:g}</text>')
    for row, (name, live, new) in enumerate(rows):
        y = 14 + step * row
        shapes.append(
            f'<text class="name" x="{left - 16}" y="{y + 4}" text-anchor="end">{_text(_cut(name))}</text>'
        )
        if live is not None and new is not None:
            kind = "same" if abs(new - live) < 1e-9 else "up" if new > live else "down"
            x1, x2 = _across(live, left, wide), _across(new, left, wide)
            shapes.append(f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y}" y2="{y}"/>')
        for value, kind in ((live, "live"), (new, "new")):
            if value is not None:
                x = _across(value, left, wide)
                shapes.append(
                    f'<circle class="{kind}" cx="{x:.1f}" cy="{y}" r="5"><title>{value:.2f}</title></circle>'
                )
    return _svg(wide, high, "mean score of each held-out case, live and new", shapes)


def _across(value: float, left: int, wide: int) -> float:
    return left + (wide - left - 24) * min(1.0, max(0.0, value))


def _legend(verdict: Record) -> str:
    told = (
        f"{count(verdict['cases'], 'case')} x {count(verdict['trials'], 'trial')}: "
        f"{verdict['wins']} better, {verdict['losses']} worse, {verdict['ties']} alike. "
    )
    circle = '<circle class="{0}" cx="5" cy="5" r="5"/>'
    dot = f'<svg style="display:inline;width:10px" viewBox="0 0 10 10">{circle}</svg>'
    return f"<p>{_text(told)}{dot.format('live')} live &nbsp; {dot.format('new')} new</p>"


def _figures(verdict: Record) -> str:
    about = verdict["about"]
    rows = [["", "live", "new"]]
    rows.append(["mean score", _number(verdict["mean_live"]), _number(verdict["mean_cand"])])
    for label, key in (("passed", "pass_rate"), ("passed in any trial", "pass_at_k"), ("in all", "all_good")):
        rows.append([label, *(_percent(about[arm].get(key)) for arm in ("live", "candidate"))])
    rows.append(
        ["tokens out", *(_number(about[arm]["mean_completion_tokens"], 1) for arm in ("live", "candidate"))]
    )
    interval = verdict["ci_t"]
    told = [f"difference {_number(verdict['mean_diff'], 3)}, standard error {_number(verdict['se'], 3)}"]
    told += [f"z {_number(verdict['z'])}"] if verdict["z"] is not None else []
    told += [f"95 % from {interval[0]:+.3f} to {interval[1]:+.3f}"] if interval else []
    told += [f"exact p {verdict['p_flip']:.2g}"] if verdict["p_flip"] is not None else []
    return _table(rows) + f"<p>{_text('; '.join(told))}</p>"


def _criteria(verdict: Record) -> str:
    rows = [["criterion", "live", "new"]]
    for name, row in verdict["criteria"].items():
        label = f"{name} (audit)" if row.get("role") == "audit" else name
        rows.append([label, _number(row.get("live")), _number(row.get("candidate"))])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    tagged = []
    for number, row in enumerate(rows):
        tag = "td" if number else "th"
        cells = "".join(f"<{tag}>{_text(cell)}</{tag}>" for cell in row)
        tagged.append(f"<tr>{cells}</tr>")
    return f"<table>{''.join(tagged)}</table>"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(item)}</li>" for item in items) + "</ul>"


def _svg(wide: int, high: int, told: str, shapes: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {wide} {high}" role="img" aria-label="{_text(told)}">\n'
        + "\n".join(shapes)
        + "\n</svg>"
    )


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _cut(name: str) -> str:
    return name if len(name) <= 28 else name[:27] + "…"


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _ceiling(value: float) -> float:
    """The next round number above a value, for the top of an axis."""
    if value < 1e-300:  # of less there is no power of ten
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(step * size for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * size >= value)
