"""machine-gate: judge whether a version may go live."""

from __future__ import annotations

from typing import Any

import click

from libmachine.cmd import _cli
from libmachine.errors import UsageError


@click.command("machine-gate", context_settings=_cli.SETTINGS)
@_cli.workspace_option
@click.argument("name", required=False)
@click.option(
    "--base", metavar="VERSION", default="HEAD", show_default=True, help="Live version: a commit, vN or id."
)
@click.option("--candidate", metavar="ID", help="Judge this pending candidate instead of the work tree.")
@click.option(
    "--trials", type=click.IntRange(1), default=3, show_default=True, help="Run each case N times an arm."
)
@click.option(
    "--on",
    type=click.Choice(["score", "passed"]),
    default="score",
    show_default=True,
    help="What is compared.",
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
@click.option("--no-worse", is_flag=True, help="Ask only that it is not worse: 1 if it is, beyond noise.")
@click.option("--judge-by", metavar="COMMIT", help="Take rubric, graders and holdout from this commit.")
@click.option("--judge-model", metavar="ID", help="Model of the judges that name none.")
@click.option("--judge-effort", metavar="LEVEL", help="Reasoning effort of the judges that name none.")
@click.option("--budget", metavar="USD", help="Spend at most USD, or none. Default: 1 on paid endpoints.")
@click.option("--price-as", metavar="MODEL", help="Price the models as this one.")
@click.option("--harness", metavar="NAME", help="Use this harness for both arms.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed, other samples.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Runs under way at once."
)
@click.option("--reuse-live", is_flag=True, help="Take stored runs of the live version of the last 24 hours.")
@click.option("--rerun", is_flag=True, help="Measure anew although a verdict is stored.")
@click.option("--staged", is_flag=True, help="Look up verdicts for what is staged; runs nothing.")
@click.option(
    "--range", "range_", metavar="OLD..NEW", help="Look up verdicts for a range; -: a hook's lines on stdin."
)
@click.option("--notes-from", metavar="URL", help="With these two, read the verdicts of a fork too.")
@click.option(
    "--require", type=click.Choice(["signed"]), help="Count only verdicts in notes with a good SSH signature."
)
@click.option("--hook", metavar="NAME", help="The git hook that asks.")
@click.option("--remote", metavar="NAME", help="The remote that a pre-push hook pushes to.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict on a terminal too.")
def command(**options: Any) -> int:
    """Measure a version of machine NAME (its work tree, else its newest candidate), or the candidates on
    stdin, against the live one on held-out cases. Exit 0 better, 1 refused, 125 cannot be judged."""
    if options["staged"] or options["range_"] is not None:
        from libmachine.cmd import _change

        if options["name"] is not None:
            raise UsageError("--staged and --range judge every machine that changed; leave NAME out")
        return _change.main(**options)
    from libmachine.cmd import _gate

    return _gate.main(**options)


main = _cli.entry(command)
