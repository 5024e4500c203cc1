"""The work behind machine-train's options."""

from __future__ import annotations

import os
import shlex
import threading
from typing import Any

import click

from libmachine import console
from libmachine.canon import dump_line
from libmachine.case import label
from libmachine.cmd import _cli
from libmachine.errors import NO, OK, MachineError
from libmachine.folder import Folder
from libmachine.gate.question import BETTER
from libmachine.load import find
from libmachine.purse import Purse
from libmachine.record import arrange
from libmachine.sft.folder import Training
from libmachine.train.page import page as page_of
from libmachine.train.report import report as report_of
from libmachine.train.work import train


def main(
    workspace: str | None, name: str, as_json: bool, page: str | None, commands: bool, **options: Any
) -> int:
    """Train, then print and keep the report."""
    project = _cli.project(workspace)
    if page is not None and not os.path.isdir(os.path.dirname(page) or "."):
        raise MachineError(f"no directory for '{page}'; make it first")
    purse = Purse(project, "train", options["budget"], options["price_as"])
    stop = threading.Event()
    failure: BaseException | None = None
    found = None
    try:
        with _cli.Interrupts(stop):
            found = train(project, name, options, purse, stop)
    except BaseException as error:
        failure = error
        raise
    finally:
        purse.told(f"train {name}: {found['decision'] if found else 'no verdict'}", failure)
    if found is None:
        return NO
    names = _case_names(Folder(f"{project.root}/machines", name))
    text = page_of(found, names)
    folder = Training(project.store, found["training"]["id"])
    try:
        _write(f"{folder.path}/report.html", text)
        console.say(f"report with loss curve and cases: {folder.path}/report.html")
    finally:
        folder.close()
    if page is not None:
        _write(page, text)
    output = _cli.Output(threading.Event())
    if as_json:
        output.write(dump_line(arrange("training", found)))
    else:
        output.text(report_of(found, names, console.width()))
    return OK if found["decision"] in BETTER else NO


def _write(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
        file.write(text)
    os.rename(temporary, path)


def _case_names(folder: Folder) -> dict[str, str]:
    for member in folder.family():
        if cases := member.cases("holdout.jsonl"):
            return {case["identity"]: label(case, 200) for case in cases}
    return {}


def show_commands(workspace: str | None, name: str, **options: Any) -> int:
    """-x: the pipe that does the same, to be run, read or changed."""
    cases = find(name, _cli.project(workspace).places).cases("cases.jsonl")
    sampled = len({case["identity"] for case in cases}) * options["samples"]
    at = ["-C", workspace] if workspace is not None else []
    pipe = " |\n  ".join(shlex.join([stage[0], *at, *stage[1:]]) for stage in stages(name, options, sampled))
    if options["budget"] is not None:
        pipe = f"machine-budget {shlex.quote(options['budget'])} bash -o pipefail -c {shlex.quote(pipe)}"
    else:
        pipe = f"set -o pipefail\n{pipe}"
    _cli.Output(threading.Event()).text(pipe)
    return OK


def stages(name: str, options: dict[str, Any], sampled: int) -> list[list[str]]:
    """The commands of the pipe, with the options that are not the usual ones. sampled: how many runs:
    any of them may fail, and the others are learned from."""
    from libmachine.cmd import gate, grade, run, runs, sft

    none = {"budget": "none"} if options["budget"] is not None else {}
    asked = {key: value for key, value in options.items() if key != "budget"} | none
    if options["samples"]:
        first = ["machine-run", name, "--cases", "cases.jsonl", "--trials", str(options["samples"])]
        names = ("seed", "harness", "concurrency", "budget", "price_as")
        first += _words(run.command, asked, names)
        first += ["--allow-failed", str(sampled)]
    else:
        first = ["machine-runs", name, *_words(runs.command, asked, ())]
    training = [
        p.name for p in sft.command.params if p.name not in ("workspace", "name", "dry_run", "as_json")
    ]
    judging = ("judge_model", "judge_effort", "concurrency", "budget", "price_as")
    gating = ("trials", "min_z", "strict", "no_confirm", "reuse_live", "harness", "seed", *judging)
    return [
        first,
        ["machine-grade", *_words(grade.command, asked, judging)],
        ["machine-sft", *_words(sft.command, asked, [n for n in training if n is not None])],
        ["machine-gate", *_words(gate.command, asked, gating)],
    ]


def _words(command: click.Command, options: dict[str, Any], names: Any) -> list[str]:
    """The words that give a command those options whose values are not its default."""
    words: list[str] = []
    for parameter in command.params:
        if not isinstance(parameter, click.Option) or parameter.name not in names:
            continue
        value = options.get(parameter.name)
        if value is None or value == parameter.default:
            continue
        if parameter.is_flag:
            words += parameter.opts[-1:] if value else parameter.secondary_opts[-1:]
        else:
            words += [parameter.opts[-1], f"{value:g}" if isinstance(value, float) else str(value)]
    return words
