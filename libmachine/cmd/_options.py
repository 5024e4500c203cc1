"""Options that two commands share, so that they read and behave alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


def _all(decorators: Sequence[Decorator]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


training = _all(
    (
        click.option(
            "--best-of",
            metavar="K",
            type=click.IntRange(1),
            default=2,
            show_default=True,
            help="At most K runs of each case.",
        ),
        click.option(
            "--min-score", metavar="S", type=click.FloatRange(0, 1), help="Runs that score at least S."
        ),
        click.option(
            "--passing/--no-passing", default=True, show_default=True, help="Only runs that passed."
        ),
        click.option("--any-model", is_flag=True, help="Runs by other models than the live one too."),
        click.option("--drop-reasoning", is_flag=True, help="Leave captured reasoning out."),
        click.option(
            "--epochs",
            metavar="N",
            type=click.IntRange(1),
            default=4,
            show_default=True,
            help="Go through the data N times.",
        ),
        click.option(
            "--steps", metavar="N", type=click.IntRange(1), help="Instead of --epochs: N optimiser steps."
        ),
        click.option(
            "--batch-size",
            metavar="N",
            type=click.IntRange(1),
            default=8,
            show_default=True,
            help="Examples of one step.",
        ),
        click.option(
            "--rank",
            metavar="N",
            type=click.IntRange(1),
            help="Rank of the adapter. Default: 16 for local models, else 32.",
        ),
        click.option(
            "--learning-rate",
            metavar="RATE",
            type=click.FloatRange(0, 1, min_open=True),
            help="At the first step; it falls to 0.",
        ),
        click.option(
            "--effort", metavar="LEVEL", help="Reasoning effort to render at. Default: that of the runs."
        ),
        click.option(
            "--continue", "go_on", is_flag=True, help="Start from the live checkpoint, not from its base."
        ),
        click.option(
            "--renderer",
            metavar="NAME",
            help="Renderer of tinker-cookbook. Default: the one it recommends.",
        ),
        click.option(
            "--allow-render-mismatch",
            is_flag=True,
            help="Go on when over 5 % of the runs render otherwise.",
        ),
        click.option("--base-url", metavar="URL", help="Address of the trainer."),
    )
)
"""How machine-sft and machine-train choose runs and train on them."""
