"""The one list of commands. Help, completion, man pages and tests follow it."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """verb: the command is machine-VERB. kind: plumbing (stable, JSON lines) or porcelain (for people)."""

    verb: str
    kind: str
    summary: str


COMMANDS = (
    Command("run", "plumbing", "run a machine on cases"),
    Command("grade", "plumbing", "judge runs by their machine's graders"),
    Command("mark", "plumbing", "grade a run as a person"),
    Command("select", "plumbing", "keep the runs worth keeping"),
    Command("gate", "plumbing", "judge whether a version may go live"),
    Command("commit", "plumbing", "make a version live that the gate let through"),
    Command("propose", "plumbing", "make another model or other instructions a candidate"),
    Command("runs", "plumbing", "list stored runs"),
    Command("show", "plumbing", "show one stored record"),
    Command("list", "plumbing", "list machines"),
    Command("versions", "plumbing", "list the versions of a machine"),
    Command("spend", "plumbing", "sum what was spent"),
    Command("export", "plumbing", "turn graded runs into training examples"),
    Command("sft", "plumbing", "train a machine's model on its graded runs"),
    Command("train", "porcelain", "sample, train and gate a machine in one go"),
    Command("suite", "porcelain", "run and grade a machine's cases"),
    Command("compare", "porcelain", "compare two versions on the same cases"),
    Command("converse", "porcelain", "watch one conversation of a machine and its counterpart"),
    Command("optimize", "porcelain", "search for better instructions"),
    Command("agree", "porcelain", "measure how far graders can be trusted"),
    Command("tree", "porcelain", "show a family of machines"),
    Command("revert", "porcelain", "make an earlier version live again"),
    Command("sync", "porcelain", "share versions and verdicts with a remote"),
    Command("budget", "porcelain", "run a command under one budget"),
    Command("tinkerd", "porcelain", "serve and train the local model, for clients of OpenAI and Tinker"),
    Command("new", "porcelain", "make the folder of a new machine"),
    Command("cases", "porcelain", "bring cases in and split them for practice and exam"),
    Command("init", "porcelain", "make a project and its store"),
    Command("doctor", "porcelain", "say what works here and how to mend the rest"),
    Command("fsck", "porcelain", "check the store"),
    Command("gc", "porcelain", "pack the store"),
    Command("forget", "porcelain", "remove a run from the store for good"),
)
