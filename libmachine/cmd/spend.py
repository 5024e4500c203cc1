"""machine-spend: sum what was spent."""

from __future__ import annotations

import click

from libmachine.cmd import _cli


@click.command("machine-spend", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.option("--since", metavar="TIME", help="Spent since TIME: a date, an ISO time, or 90m, 2d.")
@click.option(
    "--by",
    type=click.Choice(["machine", "model", "day", "verb", "kind"]),
    default="machine",
    show_default=True,
    help="What to sum by; kind is run, judge, train or author. Days are UTC.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines on a terminal too.")
def command(workspace: str | None, since: str | None, by: str, as_json: bool) -> int:
    """Sum what calls from this project's store were billed, one line a group, the dearest first."""
    import threading

    from libmachine import console, spend, times
    from libmachine.canon import dump_line, plain
    from libmachine.store import layout

    store = _cli.project(workspace).store
    layout.refuse_foreign(store)
    groups = spend.sums(spend.rows(f"{store}/spend"), by, times.since(since) if since else None)
    output = _cli.Output(threading.Event())
    if as_json or not console.is_terminal(1):
        for group in groups:
            output.write(dump_line(plain(group)))
    elif groups:
        lines = [[by, "calls", "in", "cached", "out", "USD", "of it"]]
        lines += [_cells(group) for group in [*groups, spend.total(groups)]]
        output.text(console.table(lines, console.width(), right=(1, 2, 3, 4, 5)).rstrip("\n"))
    else:
        console.say("nothing was spent")
    return _cli.Tally(output.stop).code(output=output)


def _cells(group: dict[str, object]) -> list[str]:
    from libmachine import console

    counts = [group[name] for name in ("calls", "prompt_tokens", "cached_tokens", "completion_tokens")]
    notes = [f"{group[name]} {name}" for name in ("unknown", "estimated", "lost") if group[name]]
    return [
        console.one_line(str(group["name"]), 40),
        *("-" if count is None else str(count) for count in counts),
        f"{group['usd']:.6f}",
        ", ".join(notes),
    ]


main = _cli.entry(command)
