"""The work behind machine-gate --staged and --range: a look-up of verdicts, for hooks and servers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from libmachine import console, jsonl
from libmachine.canon import dump_line, plain
from libmachine.cmd import _cli
from libmachine.cmd._git import transport
from libmachine.errors import NO, OK, UNTESTABLE, UsageError
from libmachine.gate import change as gate_change
from libmachine.gate import ranges as gate_range
from libmachine.gate.change import Answer, Around
from libmachine.gate.noted import Noted, fetch
from libmachine.gate.policy import policy_of
from libmachine.gate.proof import Policy
from libmachine.gate.ranges import Pushed, Update
from libmachine.gate.report import meaning
from libmachine.git import notes, trees
from libmachine.git.history import history
from libmachine.git.place import Place
from libmachine.git.repository import NOTHING, Repository, head, open_repository
from libmachine.record import arrange

_QUARANTINE = ("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH")


def main(staged: bool, range_: str | None, as_json: bool, hook: str | None, **options: Any) -> int:
    """Judge every machine that a commit, a push or a range changes; the worst answer is the exit code."""
    if staged and range_ is not None:
        raise UsageError("--staged and --range are two questions; ask one")
    repo = _repository(options["workspace"])
    policy = policy_of(repo, options["strict"], options["min_z"], options["require"] == "signed")
    output = _cli.Output(threading.Event())
    codes = [OK]
    for update, answer in _answers(repo, policy, staged, range_, hook, options):
        codes.append(answer.code)
        if hook == "commit-msg":
            if answer.verdict is not None:
                output.text(f"Machine-Verdict: {answer.machine} {_figures(answer)}")
            continue
        _say(answer, update, hook is None and console.is_terminal(2) and answer.decision != "same")
        if as_json:
            output.write(dump_line(_record(answer, update)))
    return OK if hook == "commit-msg" else max(codes, key=[OK, NO, UNTESTABLE].index)


def _answers(
    repo: Repository,
    policy: Policy,
    staged: bool,
    range_: str | None,
    hook: str | None,
    options: dict[str, Any],
) -> Iterator[tuple[Update | None, Answer]]:
    lines = _lines() if range_ == "-" else []
    sources = [notes.REF]
    if options["notes_from"]:
        sources.append(fetch(repo, options["notes_from"], transport()))
    along = gate_range.pushed_notes(repo, lines)
    noted = Noted(repo, sources, [along] if along else [], policy.signed)
    if staged:
        for answer in _staged(repo, noted, policy):
            yield None, answer
        return
    remote = (options["remote"] or "origin") if hook == "pre-push" else None
    updates = (
        gate_range.updates(repo, lines, remote)
        if range_ == "-"
        else [gate_range.of_range(repo, range_ or "")]
    )
    for update in updates:
        for answer in _ranged(repo, update, noted, policy):
            yield update, answer


def _staged(repo: Repository, noted: Noted, policy: Policy) -> Iterator[Answer]:
    """The answers on what `git commit` would take, against HEAD."""
    commit = head(repo)
    merged = gate_range.merging(repo)
    file = os.environ.get("GIT_INDEX_FILE")
    states = []
    for inside in _staged_projects(repo, commit, file):
        here = _project(repo, inside)
        states.append(_State(here, trees.commit(here, commit) if commit else None, trees.index(here, file)))
    yield from _judged(states, commit, merged, noted, policy, Around(staged=True))


def _ranged(repo: Repository, update: Update, noted: Noted, policy: Policy) -> Iterator[Answer]:
    """The answers on the tips of an update."""
    if update.old == update.new:
        return
    found = {*trees.projects(repo, update.new)}
    if update.old is not None:
        found.update(trees.projects(repo, update.old))
    states = []
    for inside in sorted(found):
        here = _project(repo, inside)
        base = trees.commit(here, update.old) if update.old is not None else None
        states.append(_State(here, base, trees.commit(here, update.new)))
    merged = [parent for parent in update.parents if parent != update.old]
    yield from _judged(states, update.old, merged, noted, policy, Around(base_name=(update.old or "")[:12]))


class _State(NamedTuple):
    """One project of the repository, before and after."""

    repo: Repository
    base: Place | None
    new: Place


def _judged(
    states: Sequence[_State],
    commit: str | None,
    merged: Sequence[str],
    noted: Noted,
    policy: Policy,
    around: Around,
) -> Iterator[Answer]:
    """The answers on each project. commit: that of the bases. A machine may move from one to another."""
    gone = [
        (state.base, name)
        for state in states
        if state.base is not None
        for name in state.base.machines()
        if not state.new.has(name)
    ]
    for state in states:
        here = replace(
            around,
            past=_past(state.repo, commit),
            merged=[trees.commit(state.repo, parent) for parent in merged],
            gone=gone,
        )
        yield from gate_change.changed(state.base, state.new, noted, policy, here)


def _past(repo: Repository, commit: str | None) -> gate_change.Past:
    def past(name: str) -> list[str | None]:
        return [found.version for found in history(repo, name, commit)] if commit else []

    return past


# where ----------------------------------------------------------------------------------


def _repository(workspace: str | None) -> Repository:
    """The repository around, read as the hook that started us sees it: with its quarantine."""
    extra = {name: os.environ[name] for name in _QUARANTINE if os.environ.get(name)}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY"):
        if value := os.environ.get(name):
            extra[name] = os.path.abspath(value)
    return open_repository(workspace or os.getcwd(), extra=extra)


def _project(repo: Repository, inside: str) -> Repository:
    return open_repository(repo.directory, inside=inside, extra=repo.extra)


def _staged_projects(repo: Repository, commit: str | None, file: str | None) -> list[str]:
    """The directories whose machines the index or HEAD holds."""
    extra = {"GIT_INDEX_FILE": os.path.abspath(file)} if file else {}
    where = (":(top,glob)machines/**/machine.py", ":(top,glob)**/machines/**/machine.py")
    listed = repo.ask("ls-files", "--stage", "--full-name", "-z", "--", *where, extra=extra)
    rows = listed.decode("utf-8", "surrogateescape").split("\0")
    paths = ["/" + row.partition("\t")[2] for row in rows if row]
    found = {path.split("/machines/", 1)[0].strip("/") for path in paths}
    return sorted(found | ({*trees.projects(repo, commit)} if commit else set()))


def _lines() -> list[Pushed]:
    """The lines of the hook on stdin; or what the pre-commit framework says in its own way."""
    _cli.refuse_terminal("the lines of a hook", "write OLD..NEW")
    lines = gate_range.read_lines(b"".join(jsonl.split_lines(0)))
    new = os.environ.get("PRE_COMMIT_TO_REF")
    if not lines and new:
        ref = os.environ.get("PRE_COMMIT_REMOTE_BRANCH") or "refs/heads/"
        lines = [Pushed(ref, os.environ.get("PRE_COMMIT_FROM_REF") or NOTHING, new)]
    return lines


# words ----------------------------------------------------------------------------------


def _say(answer: Answer, update: Update | None, asked: bool) -> None:
    """One line for what is refused or warned of; of every change where a person asked, not a hook."""
    label = {NO: "refused", UNTESTABLE: "cannot be judged"}.get(answer.code)
    if label is None:
        label = answer.decision if answer.decision in ("forced", "rubric_only") or asked else ""
        if not answer.warnings and not label:
            return
    where = f" ({update.ref})" if update is not None and update.ref else ""
    text = "; ".join([*map(meaning, answer.reasons), *(f"warning: {warning}" for warning in answer.warnings)])
    remedy = f"; type: {answer.remedy}" if answer.remedy else ""
    text = f": {text}" if text else ""
    console.say(f"{label or answer.decision}: {answer.machine}{where}{text}{remedy}")


def _figures(answer: Answer) -> str:
    verdict = answer.verdict or {}
    z = verdict.get("z")
    words = [answer.decision, *([f"z={z:.1f}"] if isinstance(z, int | float) else [])]
    return " ".join([*words, f"n={verdict.get('n')}x{verdict.get('trials')}"])


def _record(answer: Answer, update: Update | None) -> dict[str, Any]:
    """An answer as a line of JSON, in a verdict's fields."""
    verdict = answer.verdict or {}
    where = {"base_commit": update.old, "commit": update.new, "ref": update.ref} if update else {}
    return arrange(
        "verdict",
        plain(
            {
                "v": 1,
                "type": "verdict",
                "machine": answer.machine,
                "baseline": answer.base,
                "candidate": answer.version,
                "decision": answer.decision,
                "reasons": list(answer.reasons),
                "warnings": list(answer.warnings),
                "code": answer.code,
                "remedy": answer.remedy,
                **{name: verdict[name] for name in ("z", "n", "trials", "decided_at") if name in verdict},
                **where,
            }
        ),
    )
