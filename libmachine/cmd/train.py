"""machine-train: sample, train and gate a machine in one go."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli, _options


@click.command("machine-train", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name")
@click.option(
    "--samples",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Sample each case N times first; 0: learn from the stored runs.",
)
@_options.training
@click.option(
    "--trials",
    metavar="N",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="In the gate, run each held-out case N times an arm.",
)
@click.option(
    "--min-z",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    help="Standard errors the gain must reach.",
)
@click.option("--strict", is_flag=True, help="Refuse where the plain rule only warns.")
@click.option("--no-confirm", is_flag=True, help="Let a weak pass stand without a second look.")
@click.option(
    "--reuse-live/--no-reuse-live",
    default=None,
    help="In the gate, take stored runs of the live version. Default: on paid endpoints.",
)
@click.option("--judge-model", metavar="ID", help="Model of the judges that name none.")
@click.option("--judge-effort", metavar="LEVEL", help="Reasoning effort of the judges that name none.")
@click.option("--harness", metavar="NAME", help="Sample and gate with this harness.")
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the samples, the order, the adapter and the gate.",
)
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Runs under way at once."
)
@click.option(
    "--budget", metavar="USD", help="Spend at most USD in all, or none. Default: 1 on paid endpoints."
)
@click.option("--price-as", metavar="MODEL", help="Price the models as this one.")
@click.option("--page", metavar="FILE", help="Write the report to FILE too, as one HTML page.")
@click.option("-x", "--commands", is_flag=True, help="Print the same work as a pipe of commands; do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one record instead of the tables.")
def command(**options: Any) -> int:
    """Sample machine NAME, grade, train its model on the best runs, and judge the result on held-out
    cases. It ends with a pending candidate and a verdict; no file of the project changes. Exit 0 better,
    1 refused or nothing to learn from, 125 cannot be judged."""
    from libmachine.cmd import _extra, _train

    if options["commands"]:
        return _train.show_commands(**options)
    _extra.ensure("train")
    return _train.main(**options)


main = _cli.entry(command)
