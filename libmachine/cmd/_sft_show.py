"""What machine-sft prints: the plan of a dry run, the candidate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from libmachine import console
from libmachine.canon import Record, dump_line, plain
from libmachine.cmd import _cli
from libmachine.record import arrange
from libmachine.sft.job import Job


def show(record: Record, output: _cli.Output, as_json: bool) -> None:
    """Print a candidate: its record, or a line where a person reads."""
    name = record["machine"]
    console.say(f"candidate {record['version'][:12]} of {name}. Next: machine-gate {name}")
    if as_json or not console.is_terminal(1):
        output.write(dump_line(arrange("candidate", record)))
    else:
        told = (
            f"{record['version'][:12]}  {record['training']['id']}  {record['files']['model.json'].strip()}"
        )
        output.text(console.one_line(told, console.width()))


def show_plan(job: Job, output: _cli.Output, as_json: bool) -> None:
    """Print what would be trained: figures, the first difference in rendering, one example with its mask."""
    example = job.plan.examples[0]
    if as_json:
        plan = job.plan
        record: dict[str, Any] = {
            "v": 1,
            "type": "training",
            "machine": job.name,
            "training": plan.id,
            **plan.settings.record(),
            "examples": len(plan.examples),
            "steps": len(plan.steps),
            "tokens": plan.tokens(),
            "cost_usd": plan.cost(job.price),
            "differences": [difference._asdict() for difference in job.dataset.differences],
            "compared": job.dataset.compared,
            "uncompared": job.dataset.uncompared,
            "dropped": {reason: len(cases) for reason, cases in job.dropped.reasons.items()},
            "warnings": job.warnings,
            "example": [[text, weight] for text, weight in spans(job, example.rendered)],
        }
        output.write(dump_line(plain(record)))
        return
    for line in _lines(job):
        output.text(line)
    for difference in job.dataset.differences[:1]:
        output.text(
            console.safe(
                f"first difference: case {difference.case}, step {difference.step + 1}: {difference.what}"
            )
        )
    output.text(f"example of run {example.run[:12]}; what is learned stands between >>> and <<<")
    text = "".join(f">>>{text}<<<" if weight else text for text, weight in spans(job, example.rendered))
    output.text(text)


def spans(job: Job, rendered: Any) -> list[tuple[str, float]]:
    """An example as pieces of text with their weight."""
    found: list[tuple[str, float]] = []
    start = 0
    tokens, weights = rendered
    for end in range(1, len(tokens) + 1):
        if end == len(tokens) or weights[end] != weights[start]:
            found.append((job.renderer.decode(tokens[start:end]), weights[start]))
            start = end
    return found


def _lines(job: Job) -> Iterator[str]:
    """What would be trained, for people."""
    settings, what = job.plan.settings, job.plan
    cases = len({example.case for example in what.examples})
    yield f"{job.name}: {console.count(len(what.examples), 'example')} of {console.count(cases, 'case')}"
    yield (
        f"{settings.base_model} by {settings.renderer}, rank {settings.rank}, rate {settings.learning_rate:g}"
        + (f", effort {settings.effort:g}" if settings.effort is not None else "")
    )
    yield (
        f"{console.count(len(what.steps), 'step')} of up to {settings.batch_size}, "
        f"{what.tokens()} tokens, {console.money(what.cost(job.price))}"
    )
