"""julia/inline: programs of short functions: f(x) = ..., or @inline."""

from __future__ import annotations

from libmachine import Machine, Run, check

from ..answer import Verdict, judged
from ..program import LONG, Program


def only_inline(run: Run) -> Verdict:
    """The last program defines functions, each in the short form or with @inline."""
    return judged(run, verdict)


def verdict(program: Program) -> Verdict:
    """Arrow functions and do blocks are no definitions, and may be there."""
    named = [method for method in program.methods if method.name]
    faults = [
        f"line {method.line}: {'function' if method.form == LONG else '@noinline'} {method.name}".rstrip()
        for method in program.methods
        if "@noinline" in method.macros or (method.form == LONG and "@inline" not in method.macros)
    ]
    if faults:
        return False, "; ".join(faults[:5])
    return bool(named), f"{len(named)} methods, all short or @inline" if named else "no function is defined"


machine = Machine(
    intent="Write a small Julia program of short or @inline functions, run it, and report what it printed.",
    graders={"all_inline": check(only_inline)},
)
