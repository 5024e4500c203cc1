"""julia/fast: programs that are written for speed and time their work."""

from __future__ import annotations

from libmachine import Machine, Run, check, judge

from ..answer import Verdict, judged
from ..program import Program
from ..tokens import CLOSE, KEYWORD, MACRO, NAME, NEWLINE, OPEN, OPERATOR

MACROS = ("@time", "@timev", "@elapsed", "@timed", "@showtime", "@btime", "@benchmark", "@belapsed")
CLOCKS = ("time", "time_ns", "now")
_WORK = ("begin", "for", "while", "let")


def times_its_work(run: Run) -> Verdict:
    """The last program times a call or a block, with a macro or by the difference of two clock readings."""
    return judged(run, verdict)


def verdict(program: Program) -> Verdict:
    for at, token in enumerate(program.tokens):
        if token.kind == MACRO and token.text in MACROS and works(program, at + 1, after(program, at + 1)):
            return True, f"line {token.line}: {token.text}"
    read = [at for at in range(len(program.tokens)) if is_reading(program, at)]
    if len(read) > 1 and works(program, read[0] + 3, read[-1]):
        if any(token.kind == OPERATOR and token.text == "-" for token in program.tokens[read[0] :]):
            return True, f"lines {program.tokens[read[0]].line} and {program.tokens[read[-1]].line}: a clock"
        return False, "two readings of a clock are not subtracted"
    return False, "nothing that works is timed"


def after(program: Program, at: int) -> int:
    """Where what a macro is given ends: at the end of its brackets or of the line."""
    if at < len(program.tokens) and program.tokens[at].kind == OPEN and program.tokens[at].tight:
        return program.ends[at]
    while at < len(program.tokens) and program.tokens[at].kind not in (NEWLINE, CLOSE):
        at = program.ends.get(at, at) + 1
    return at


def works(program: Program, start: int, stop: int) -> bool:
    """Is there a call, other than of a clock, or a block between two places?"""
    found = program.tokens
    for at in range(start, min(stop, len(found))):
        if found[at].kind == KEYWORD and found[at].text in _WORK:
            return True
        opening = (
            at + 2
            if at + 1 < stop and (found[at + 1].kind, found[at + 1].text) == (OPERATOR, ".")
            else at + 1
        )
        is_call = opening < stop and found[opening].kind == OPEN and found[opening].text == "("
        if found[at].kind == NAME and is_call and found[opening].tight and found[at].text not in CLOCKS:
            return True
    return False


def is_reading(program: Program, at: int) -> bool:
    """Is a clock read here: time(), time_ns() or now()?"""
    words = [token.text for token in program.tokens[at : at + 3]]
    before = program.tokens[at - 1].text if at else ""
    return (
        program.tokens[at].kind == NAME
        and words[0] in CLOCKS
        and words[1:] == ["(", ")"]
        and before != "function"
    )


machine = Machine(
    intent="Write a small Julia program that is fast and times its work, run it, and report what it printed.",
    graders={"times_work": check(times_its_work), "for_speed": judge()},
)
