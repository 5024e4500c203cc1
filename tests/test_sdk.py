"""The Python face: what the commands do, by the same functions, for a program that does not want a shell."""

from __future__ import annotations

import asyncio
import doctest
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libmachine import (
    Counterpart,
    Machine,
    Workspace,
    check,
    console,
    errors,
    judge,
    machine,
    sdk_options,
    sdk_train,
)
from libmachine.budget.ledger import BudgetReached
from libmachine.canon import hash_of
from libmachine.cmd import export as export_command
from libmachine.cmd import gate as gate_command
from libmachine.cmd import optimize as optimize_command
from libmachine.cmd import suite as suite_command
from libmachine.cmd import train as train_command
from libmachine.sft import elsewhere

ROOT = Path(__file__).resolve().parent.parent
CALL = {"name": "read", "arguments": {"path": "a.txt"}}
SAY = {
    "machine.py": """from libmachine import Machine, check


def good(run):
    return "good" in run.output, "looked for good"


machine = Machine(intent="Say something good.", graders={"good": check(good)})
""",
    "rubric.toml": '[good]\ndescription = "It says good."\n',
    "instructions.md": "Say something.\n",
    "model.json": '{"model": "say.rules", "harness": "scripted"}\n',
    "cases.jsonl": '"one"\n"two"\n',
    "holdout.jsonl": "".join(f'"exam {number}"\n' for number in range(8)),
}
RULES = [
    {"match": "", "instructions": "good", "replies": ["a good day"]},
    {"match": "", "replies": ["a day"]},
]


def rules(path: Path, *given: Any) -> str:
    path.write_text("".join(json.dumps(rule) + "\n" for rule in given))
    return str(path)


def git(where: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A committed project with the machine `say`, the current directory."""
    for name in list(os.environ):
        if name.startswith(("MACHINE_", "GIT_")) or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    for name, value in {"HOME": str(tmp_path / "home"), "MACHINE_FSYNC": "0"}.items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "project"
    (root / "machines/say").mkdir(parents=True)
    for name, text in SAY.items():
        (root / "machines/say" / name).write_text(text)
    rules(root / "say.rules", *RULES)
    monkeypatch.chdir(root)
    git(root, "init", "-q", "-b", "main")
    git(root, "config", "user.name", "tester")
    git(root, "config", "user.email", "tester@localhost")
    (root / ".gitignore").write_text(".machine/\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    yield root
    console.talk_to(None)


def shell(root: Path, line: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", line], cwd=root, env=variables, capture_output=True, text=True, check=False
    )


# running --------------------------------------------------------------------------------


def test_a_run_is_the_one_of_machine_run(project: Path) -> None:
    with machine.load("say") as say:
        run = say.run("hello").sync()
        assert (run.output, run.status, run.bought, run.score) == ("a day", "ok", True, None)
        assert run.version == git(project, "rev-parse", "HEAD:machines/say/")[:0] + say.version
        again = say.run_sync("hello", grade=True)
        assert (again.id, again.bought, again.score, again.passed) == (run.id, False, 0, False)
        fresh = say.run_sync("hello", resume=False)
        assert fresh.bought and fresh.record["trial"] == 2 and fresh.id != run.id
    done = shell(project, "machine-run say hello --json")
    assert json.loads(done.stdout)["id"] == run.id, "the shell replays what the program bought"
    assert "1 stored, 0 run" in done.stderr


def test_it_is_watched_and_awaited(project: Path) -> None:
    say = machine.load("say")

    async def watch() -> tuple[list[str], Any, Any]:
        running = say.run("hello", metadata={"n": 1})
        seen = [(event.type, event.text) async for event in running]
        run = await running
        return seen, run, await asyncio.gather(*(say.run(f"hello {n}") for n in range(6)))

    seen, run, more = asyncio.run(watch())
    assert seen == [("message", "a day"), ("result", "a day")]
    assert run.record["case"]["metadata"] == {"n": 1}
    assert sorted(one.input for one in more) == [f"hello {n}" for n in range(6)]
    replayed = list(say.run("hello"))
    assert [event.type for event in replayed] == ["message", "result"]
    assert replayed[-1].run is not None and replayed[-1].run.id == run.id and not replayed[-1].run.bought


def test_messages_come_before_the_run_is_over(project: Path) -> None:
    slow = [{"tool_calls": [{"name": "hold"}]}, "done"]
    held, free = threading.Event(), threading.Event()

    def hold() -> str:
        """Hold the run."""
        held.set()
        return "free" if free.wait(60) else "nobody came"

    model = {"model": rules(project / "r", {"match": "", "replies": slow}), "harness": "scripted"}
    running = machine.define("slow", Machine(intent="Wait.", tools=[hold], model=model)).run("go").start()
    events = iter(running)
    first = next(events)
    assert (first.type, first.name, first.text) == ("tool_call", "hold", "{}")
    assert held.wait(60)
    assert running._run is None
    free.set()
    assert [(e.type, e.name, e.text) for e in events] == [
        ("tool_result", "hold", "free"),
        ("message", None, "done"),
        ("result", None, "done"),
    ]


def test_what_goes_wrong_is_an_exception_or_a_failed_run(project: Path) -> None:
    with pytest.raises(machine.MachineError, match="no machine 'sya'; did you mean 'say'"):
        machine.load("sya")
    with pytest.raises(TypeError):
        machine.load("say", temperature=1)
    say = machine.load("say")
    with pytest.raises(machine.MachineError, match="unknown field 'heat'"):
        say.run("x", heat=1)  # type: ignore[call-arg]
    with pytest.raises(machine.MachineError, match="outside its directory"):
        say.run("x", files={"../x": "y"})
    (project / "none.rules").write_text('{"match": "never", "replies": ["x"]}\n')
    failed = machine.load("say", model="none.rules", harness="scripted").run_sync("hello", grade=True)
    assert failed.status == "failed" and "no rule" in (failed.error or "") and failed.scorecard is None
    with pytest.raises(machine.MachineError, match="no file of rules"):
        machine.load("say", model="gone.rules", harness="scripted").run("x")


def test_money_runs_out_as_an_exception(project: Path) -> None:
    dear = rules(project / "dear", {"match": "", "replies": [{"content": "good", "cost_usd": 0.4}]})
    say = machine.load("say", model=dear, harness="scripted", budget=0.5)
    assert say.run_sync("one").output == "good"
    assert say.spent_usd == pytest.approx(0.4)
    with pytest.raises(BudgetReached):
        say.run_sync("two")
    assert [run.input for run in say.runs()] == ["one"]


def test_tools_act_on_files_and_what_is_left_can_be_opened(project: Path) -> None:
    wrote = {"name": "put", "arguments": {"text": "new"}}
    model = rules(project / "r", {"match": "", "replies": [{"tool_calls": [wrote]}, "done"]})
    run = machine.define("scribe", scribe(model)).run_sync("go", files={"a.txt": "old", "d/b": "kept"})
    assert run.tool_calls[0].result == "was old"
    with run.workspace() as left:
        assert (left.read("a.txt"), left.read("d/b")) == (b"new", b"kept")


def put(text: str, workspace: Workspace) -> str:
    """Replace a.txt."""
    was = workspace.read("a.txt").decode() if workspace.exists("a.txt") else "absent"
    workspace.write("a.txt", text)
    return f"was {was}"


def scribe(model: str) -> Machine:
    return Machine(intent="Write.", tools=[put], model={"model": model, "harness": "scripted"})


def test_a_conversation_is_told_turn_by_turn(project: Path) -> None:
    words = {"desk": "How can I help?", "caller": "It is broken."}
    models = {
        name: {"model": rules(project / name, {"match": "", "replies": [text]}), "harness": "scripted"}
        for name, text in words.items()
    }
    machine.define("caller", Machine(intent="Complain.", model=models["caller"]))
    rule = Counterpart("caller", max_turns=2)
    desk = machine.define("desk", Machine(intent="Help.", model=models["desk"], counterpart=rule))
    seen = [(e.type, e.side, e.text) for e in desk.run("secretly, the fuse")]
    both = [("message", "counterpart", words["caller"]), ("message", "machine", words["desk"])]
    assert seen == [*both, *both, ("result", "machine", words["desk"])]
    assert [(e.type, e.side, e.text) for e in desk.run("secretly, the fuse")] == seen, "replayed"
    # in a session the person is the other side
    with desk.session() as chat:
        assert chat.send("Hello?").sync().output == words["desk"]
        assert chat.runs[0].turns == []


# sessions -------------------------------------------------------------------------------


def test_a_session_carries_on_in_one_directory(project: Path) -> None:
    def reply(match: str, text: str) -> dict[str, Any]:
        call = {"tool_calls": [{"name": "put", "arguments": {"text": text}}]}
        return {"match": match, "replies": [call, f"wrote {text}"]}

    model = rules(project / "r", reply("two$", "2"), reply("one$", "1"))
    handle = machine.define("scribe", scribe(model))
    with handle.session(files={"a.txt": "0"}) as chat:
        first, second = chat.send("one").sync(), chat.send("two").sync()
        directory = chat._exchanges.workspace
        assert directory is not None and directory.read("a.txt") == b"2"
    assert not directory.directory.exists()
    assert [run.tool_calls[-1].result for run in (first, second)] == ["was 0", "was 1"]
    assert [m["role"] for m in second.messages] == ["user", "assistant", "tool", "assistant"] * 2
    assert second.messages[:4] == first.messages
    assert second.record["workspace"]["before"] == first.record["workspace"]["after"]
    assert [run.record["case"]["metadata"] for run in (first, second)] == [
        {"session": chat.id, "exchange": n} for n in (1, 2)
    ]
    assert [run.id for run in handle.runs()] == [second.id, first.id]
    with pytest.raises(machine.MachineError, match="closed"):
        chat.send("three").sync()
    with handle.session(proceed=True) as more:
        third = more.send("one").sync()
        assert more.id == chat.id and third.record["case"]["metadata"]["exchange"] == 3
        assert third.tool_calls[-1].result == "was 2", "and its files are there again"
    # only its own answer is a target, whatever stands before it
    assert [m["weight"] for m in _example(third) if m["role"] == "assistant"] == [0, 0, 0, 0, 1, 1]


def _example(run: Any) -> list[dict[str, Any]]:
    from libmachine import export

    graded = {**run.record, "scorecard": {"score": 1, "passed": True}}
    (row,) = export.rows([graded], "openai", False, False, export.Dropped())
    return list(row["messages"])


def test_a_session_in_a_directory_of_the_user(project: Path, tmp_path: Path) -> None:
    call = {"tool_calls": [{"name": "put", "arguments": {"text": "mine"}}]}
    handle = machine.define("scribe", scribe(rules(project / "r", {"match": "", "replies": [call, "x"]})))
    here = tmp_path / "here"
    here.mkdir()

    async def talk() -> tuple[str, str]:
        async with handle.session(cwd=here) as chat:
            one = await chat.send("go")
            (here / "a.txt").write_text("by hand")
            two = await chat.send("go")
            return str(one.tool_calls[-1].result), str(two.tool_calls[-1].result)

    assert asyncio.run(talk()) == ("was absent", "was by hand")
    assert (here / "a.txt").read_text() == "mine", "and it stays"
    with pytest.raises(machine.MachineError, match="no directory"):
        handle.session(cwd=here / "gone")
    with pytest.raises(machine.MachineError, match="the store is inside"):
        handle.session(cwd=project)
    with pytest.raises(machine.MachineError, match="no session with 'say'"):
        machine.load("say").session(proceed=True)


def test_sessions_are_graded_never_replayed_and_forget_failures(project: Path) -> None:
    model = rules(
        project / "r",
        {"match": "fail", "trial": 1, "replies": [{"error": "down"}]},
        {"match": "", "replies": ["good"]},
    )
    say = machine.load("say", model=model, harness="scripted")
    ids = set()
    for _ in range(2):
        with say.session(auto_grade=True) as chat:
            run = chat.send("hello").sync()
            ids.add(run.id)
            assert (run.bought, run.score) == (True, 1)
    assert len(ids) == 2 and say.pending() == []
    with say.session() as chat:
        assert chat.send("fail").sync().status == "failed"
        again = chat.send("well?").sync()
        assert [m["content"] for m in again.messages if m["role"] == "user"] == ["well?"]
        assert again.record["case"]["metadata"]["exchange"] == 1
    assert [run.id for run in say.pending()] == [again.id]


# grades ---------------------------------------------------------------------------------


def test_grade_asks_what_is_due_and_nothing_else(project: Path) -> None:
    say = machine.load("say")
    runs = list(say.run_all(trials=2))
    assert len(runs) == 4 and {run.id for run in say.pending()} == {run.id for run in runs}
    first = say.grade()
    assert [run.score for run in first] == [0] * 4 and say.pending() == [] and say.grade() == []
    assert [run.scorecard for run in say.grade(first)] == [run.scorecard for run in first], "known"
    card = say.mark(first[0], good=True, note="it is charming")
    assert card["grades"][0]["reason"] == "it is charming" and say.pending() == []
    (project / "machines/say/rubric.toml").write_text('[good]\ndescription = "It says good, twice."\n')
    say.reload()
    assert len(say.pending()) == 4, "another rubric"
    (project / "machines/say/rubric.toml").write_text(SAY["rubric.toml"])
    say.reload()
    assert say.pending() == []


def test_suite_and_export(project: Path) -> None:
    say = machine.load("say")
    found = say.suite(trials=2)
    assert (found["type"], found["runs"], found["mean"]) == ("suite", 4, 0)
    (project / "machines/say/instructions.md").write_text("Say good.\n")
    say.reload()
    assert say.suite()["mean"] == 1
    rows = list(say.export())
    assert [row["messages"][-1]["content"] for row in rows] == ["a good day"] * 2
    with pytest.raises(machine.MachineError, match="no form 'xml'"):
        list(say.export("xml"))
    with pytest.raises(machine.Untestable):
        machine.define("bare", Machine(intent="x", model="echo"), harness="echo").suite()


# changing -------------------------------------------------------------------------------


def test_a_change_by_hand_waits_for_the_gate(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "libmachine")
    say = machine.load("say")
    live, head = say.version, git(project, "rev-parse", "HEAD")
    candidate = say.update(instructions="Say good.\n")
    assert say.version == live and git(project, "status", "--porcelain") == ""
    with pytest.raises(machine.CommitRefused, match="no_verdict"):
        candidate.commit()
    assert git(project, "rev-parse", "HEAD") == head
    assert candidate.gate()["decision"] == "promote" and candidate.passed
    assert "mean 0.00 -> 1.00" in candidate.format_report()
    made = candidate.commit("say: better")
    assert made.version == candidate.version == say.version
    assert git(project, "log", "-1", "--format=%s") == "say: better"
    assert say.run_sync("one").output == "a good day"
    assert [(v.number, v.live) for v in say.versions()] == [(1, False), (2, True)]
    assert say.revert().version == live == say.version
    assert (project / "machines/say/instructions.md").read_text() == SAY["instructions.md"]
    with pytest.raises(machine.MachineError, match="no earlier version"):
        say.revert()
    assert any("say v2 is live" in record.message for record in caplog.records)


def test_what_the_gate_refuses_goes_live_by_force_alone(project: Path) -> None:
    say = machine.load("say")
    candidate = say.update(model="other.rules")
    rules(project / "other.rules", {"match": "", "replies": ["a dull day"]})
    assert candidate.gate(trials=1)["decision"] == "refuse"
    with pytest.raises(machine.CommitRefused, match="not_higher") as refused:
        candidate.commit()
    assert refused.value.exit_code == errors.NO
    assert candidate.commit(force="to see").decision == "forced"
    with pytest.raises(machine.MachineError, match="nothing to update"):
        say.update()
    other = say.update(instructions="Again.\n")
    assert say.candidate().version == other.version
    other.discard()
    with pytest.raises(machine.MachineError, match="no candidate"):
        say.candidate()


def test_optimize_gives_a_candidate_that_can_be_committed(project: Path) -> None:
    shutil.copytree(ROOT / "machines/optimizer", project / "machines/optimizer")
    (project / "machines/say/cases.jsonl").write_text("".join(f'"case {n}"\n' for n in range(8)))
    told = "<instructions>\nSay good.\n</instructions>"
    author = {"author": rules(project / "author", {"match": "", "replies": [told]}), "rounds": 1}
    say = machine.load("say")
    candidate = say.optimize(author_harness="scripted", trials=2, **author)
    assert candidate.report["decision"] == "keep" and candidate.passed
    assert (project / "machines/say/instructions.md").read_text() == "Say something.\n", "nothing is live yet"
    assert "Kept: candidate" in candidate.format_report()
    candidate.commit()
    assert (project / "machines/say/instructions.md").read_text() == "Say good.\n"
    nothing = say.optimize(author_harness="scripted", trials=2, **author)
    assert nothing.version is None and not nothing.passed
    with pytest.raises(machine.CommitRefused, match="nothing_fails"):
        nothing.commit()


# training -------------------------------------------------------------------------------


def test_training_in_another_python(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that is started there: its words, its talk, its record, its exit code."""
    say = machine.load("say", seed=4)
    live, candidate = say.version, say.update(instructions="Say good.\n")
    report = {"type": "training", "version": candidate.version, "verdict": {"decision": "refuse"}}
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -I ] && exit 0\nprintf "%s\\n" "$@" >{tmp_path}/words\n'
        f"echo talk >&2; cat {tmp_path}/says >&2; cat {tmp_path}/answer; exit $(cat {tmp_path}/code)\n"
    )
    python.chmod(0o700)
    monkeypatch.setenv("MACHINE_PYTHON", str(python))
    monkeypatch.setattr(elsewhere, "NEEDED", ("no_such_module",))

    def answers(code: int, said: str = "", answer: object = None) -> None:
        for name, text in (("code", str(code)), ("says", said), ("answer", answer and json.dumps(answer))):
            (tmp_path / name).write_text(text or "")

    answers(1, answer=report)
    trained = say.train(budget=2, samples=3, trials=5, passing=False, epochs=7)
    assert trained.version == candidate.version and not trained.passed and say.version == live
    with pytest.raises(machine.CommitRefused):
        trained.commit()
    words = (tmp_path / "words").read_text().splitlines()
    assert words[1:6] == ["train", "machine-train", "-C", str(project), "say"]
    asked = train_command.command.make_context("machine-train", ["say", *words[6:]]).params
    assert asked["budget"] == "2.000000" and asked["as_json"] is True
    wanted = {"samples": 3, "trials": 5, "passing": False, "epochs": 7, "seed": 4}
    assert {name: asked[name] for name in wanted} == wanted
    assert {k: v for k, v in asked.items() if k in sdk_options.TRAIN and k not in wanted} == {
        k: v for k, v in sdk_options.TRAIN.items() if k not in wanted
    }
    for code, kind in ((125, machine.Untestable), (4, BudgetReached), (130, errors.Interrupted)):
        answers(code, "fatal: so it is\n")
        with pytest.raises(kind, match=r"^so it is$"):
            say.train()
    answers(1)
    with pytest.raises(machine.MachineError, match="nothing to learn from"):
        say.train()
    with pytest.raises(TypeError, match="'epoch'"):
        say.train(epoch=1)  # type: ignore[call-arg]
    with pytest.raises(machine.MachineError, match="defined in this program"):
        machine.define("code", Machine(intent="x", model="echo")).train()
    monkeypatch.delenv("MACHINE_PYTHON")
    with pytest.raises(machine.MachineError, match="training needs"):
        say.train()


@pytest.mark.parametrize("given", [{}, {"passing": False, "reuse_live": False, "go_on": True, "rank": 3}])
def test_words_mean_the_options(given: dict[str, Any]) -> None:
    options = {**sdk_options.TRAIN, **given}
    params = train_command.command.make_context("x", ["say", *sdk_train.words_of(options)]).params
    assert {name: params[name] for name in options} == options


@pytest.mark.parametrize(
    ("command", "defaults"),
    [
        (train_command.command, sdk_options.TRAIN),
        (gate_command.command, sdk_options.GATE),
        (optimize_command.command, sdk_options.OPTIMIZE),
        (export_command.command, sdk_options.EXPORT),
        (suite_command.command, sdk_options.SUITE),
    ],
)
def test_options_are_the_commands_own(command: Any, defaults: dict[str, Any]) -> None:
    params = command.make_context("x", ["say"]).params
    assert {name: params[name] for name in defaults} == defaults


# machines in code -----------------------------------------------------------------------


def good(run: Any) -> bool:
    return "good" in run.output


def said(instructions: str, **more: Any) -> Machine:
    rubric = {"good": {"description": 'It says "good".', "weight": 2, "levels": ["no", "yes"]}}
    model = {"model": "say.rules", "harness": "scripted"}
    given = {"graders": {"good": check(good)}, "rubric": rubric, "model": model, **more}
    return Machine(intent="Say good.", instructions=instructions, **given)


def test_a_machine_in_code_has_versions_and_a_gate(project: Path) -> None:
    exam = [f"exam {number}" for number in range(8)]
    faq = machine.define("faq", said("Say something."), cases=["one"], holdout=exam)
    assert sorted(os.listdir(project / "machines")) == ["say"], "no folder"
    assert [run.score for run in faq.run_all(grade=True)] == [0]
    candidate = faq.update(instructions="Say good.")
    assert candidate.gate(trials=1)["decision"] == "promote"
    candidate.commit()
    assert faq.run_sync("one").output == "a good day"
    # begun again, the program's first text does not undo what was learned; a new one does
    again = machine.define("faq", said("Say something."), cases=["one"], holdout=exam)
    assert again.version == candidate.version and again.machine.instructions == "Say good."
    changed = machine.define("faq", said("Say anything."), cases=["one"], holdout=exam)
    assert changed.machine.instructions == "Say anything."
    assert [v.live for v in changed.versions()] == [False, False, True]
    assert changed.revert().version == candidate.version
    assert git(project, "status", "--porcelain") == "", "the project's own repository is not touched"
    assert shell(project, "machine-fsck").returncode == 0
    assert git(project, "log", "--format=%s") == "one"


def test_code_decides_who_grades(project: Path) -> None:
    def other(run: Any) -> bool:
        return "day" in run.output

    faq = machine.define("faq", said("Say something."), cases=["one"])
    (run,) = faq.run_all(grade=True)
    assert machine.define("faq", said("Say something."), cases=["one"]).pending() == []
    stale = machine.define(
        "faq", said("Say something.", graders={"good": check(other, "good")}), cases=["one"]
    )
    assert [due.id for due in stale.pending()] == [run.id]
    assert [graded.score for graded in stale.grade()] == [1]


def test_a_definition_is_refused_like_a_folder(project: Path) -> None:
    for definition, why in (
        (said("x", graders={}), "has no grader"),
        (said("x", graders={"good": check(good), "goof": judge()}), "did you mean 'good'"),
        (said("x", model={"modle": "m"}), "unknown field 'modle'"),
        (said("x", rubric={"good": {"weight": 1}}), "no description"),
    ):
        with pytest.raises(machine.MachineError, match=why):
            machine.define("bad", definition)
    with pytest.raises(machine.MachineError, match="case 2: case has no 'input'"):
        machine.define("bad", said("x"), cases=["one", {"target": 1}])
    with pytest.raises(machine.MachineError, match="give the one in code another name"):
        machine.define("say", said("x"))
    with pytest.raises(machine.MachineError, match="no machine name"):
        machine.define("Not A Name", said("x"))
    with pytest.raises(machine.MachineError, match="define a Machine"):
        machine.define("bad", "x")  # type: ignore[arg-type]
    machine.define("faq", said("x"))
    with pytest.raises(machine.MachineError, match="no description"):
        machine.define("faq", said("x", rubric={"good": {"weight": 1}}))
    assert machine.define("faq", said("x")).machine.criteria[0].weight == 2, "the good one is still there"


# the same objects, nothing printed, typed -----------------------------------------------------

PIPE = """
machine-run say --cases cases.jsonl --trials 2 --ordered | machine-grade >/dev/null
machine-propose say --instructions better.md >/dev/null
machine-gate say >/dev/null
machine-commit say
machine-revert say
"""
CLOCKS = ("started_at", "duration_s", "graded_at", "decided_at", "made_at", "measured_at", "revision")


def contents(root: Path) -> list[str]:
    """Every record of a store, by its type, without what a clock or another record's clock says."""
    store = root / ".machine"
    found = []
    for line in (store / "records").read_text().splitlines():
        row = json.loads(line)
        record = json.loads(git(root, "--git-dir", str(store), "cat-file", "-p", row["id"]))
        found.append(json.dumps([row["type"], _timeless(record)], sort_keys=True))
    return sorted(found)


def _timeless(value: Any) -> Any:
    ids = (
        ("run", "evidence", "base_commit", "key") if isinstance(value, dict) and "graded_at" in value else ()
    )
    if isinstance(value, dict):
        drop = {*CLOCKS, "evidence", "base_commit", *ids}
        return {name: _timeless(item) for name, item in value.items() if name not in drop}
    if isinstance(value, list):
        # a grade's key has the run's id in it, and that its clock
        return [
            _timeless({k: v for k, v in item.items() if k != "key"} if _is_grade(item) else item)
            for item in value
        ]
    return value


def _is_grade(item: Any) -> bool:
    return isinstance(item, dict) and "criterion" in item and "grader" in item


def test_a_pipeline_by_program_and_by_shell_leaves_the_same_objects(project: Path, tmp_path: Path) -> None:
    (project / "better.md").write_text("Say good.\n")
    twin = tmp_path / "twin"
    shutil.copytree(project, twin)
    with machine.load("say") as say:
        for _ in say.run_all(trials=2, ordered=True):
            pass
        say.grade()
        candidate = say.update(instructions="Say good.\n")
        candidate.gate()
        candidate.commit()
        say.revert()
    done = shell(twin, PIPE)
    assert done.returncode == 0, done.stderr
    mine, theirs = contents(project), contents(twin)
    assert [json.loads(one)[0] for one in mine].count("run") == 4 + 2 * 2 * 3 * 8, "two looks"
    assert mine == theirs
    refs = "for-each-ref", "--format=%(refname) %(tree)"
    assert git(project, *refs, "refs/machine", "refs/heads") == git(twin, *refs, "refs/machine", "refs/heads")
    assert (
        git(project, "--git-dir", ".machine", "for-each-ref", "--format=%(refname)")
        == "refs/runs/say/-/chain"
    )
    # and in one store the shell finds all of it done: the same keys, the same grades, the same verdict
    before = (project / ".machine/records").read_text()
    done = shell(project, PIPE.replace("machine-commit say\nmachine-revert say\n", ""))
    assert "2 cases: 4 stored, 0 run" in done.stderr and "0 graded, 4 known already" in done.stderr
    new = [
        json.loads(line) for line in (project / ".machine/records").read_text()[len(before) :].splitlines()
    ]
    assert [row["type"] for row in new] == ["candidate"], "that one says when it was made"


def test_nothing_is_printed_and_nothing_heavy_is_imported(project: Path) -> None:
    code = (
        "import sys\nfrom libmachine import machine\n"
        "heavy = {'httpx', 'openai', 'tinker', 'torch', 'pydantic', 'click'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
        "say = machine.load('say')\nlist(say.run_all(grade=True, temperature=0))\n"
        "say.update(instructions='x').gate()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # a command goes on talking on stderr, whatever its machine's code loads
    text = (project / "machines/say/machine.py").read_text()
    more = (
        "\nfrom libmachine import machine as face\nface.define('inner', Machine(intent='x', model='echo'))\n"
    )
    (project / "machines/say/machine.py").write_text(text + more)
    assert "1 case: 0 stored, 1 run" in shell(project, "machine-run say hello").stderr


def test_the_examples_run(project: Path) -> None:
    """Docstrings, and the program in the README."""
    import libmachine.sdk

    shutil.copytree(ROOT / "machines/brief", project / "machines/brief")
    (project / "machines/brief/model.json").write_text('{"model": "echo", "harness": "echo"}\n')
    failed, tried = doctest.testmod(libmachine.sdk)
    assert tried >= 5 and failed == 0
    readme = (ROOT / "README.md").read_text()
    (program,) = re.findall(r"^    from libmachine import machine\n(?:(?:    .*)?\n)+", readme, re.M)
    lines = [line[4:] for line in program.rstrip().splitlines()]
    assert len([line for line in lines if line.strip()]) <= 12
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[:2] == ["message None What is rain?", "result None What is rain?"]
    assert float(told[2]) <= 1 and len(json.loads(told[3])) == 2 * 40 + 1, (
        "the cases, and what was asked first"
    )


def test_a_digest_is_of_what_the_code_says() -> None:
    from libmachine.sdk_define import _digest

    def panel() -> Machine:
        from libmachine import judge_panel

        both = judge_panel(model="openrouter/x")
        return Machine(intent="x", graders={"a": both, "b": both, "c": judge().or_judge(judge("y/z"))})

    assert _digest(panel()) == _digest(panel()), "not of how many panels this process has made"
    assert _digest(panel()) != _digest(Machine(intent="x", graders={"a": judge()}))
    assert len(_digest(Machine(intent="x"))) == len(hash_of(1))


def test_it_is_typed_for_others() -> None:
    assert (ROOT / "libmachine/py.typed").exists(), "without it mypy believes none of our types"
