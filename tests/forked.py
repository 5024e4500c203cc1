"""Commands without their start-up, for tests that need hundreds: one process imports, each call forks it.

    with Commands(cwd, {"MACHINE_FSYNC": "0"}) as commands:
        [done] = commands.pipe([["run", "say", "--json"]], b"...", {"MACHINE_FAULT": "kill:7"})
        done.code, done.out, done.err            -9 if it was killed

The fork happens in a process without threads. What runs in it is the command's own main().
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, tzinfo
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VERBS = ("run", "grade", "select", "converse", "runs", "show", "fsck", "gc", "forget", "sync")
KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


class Done(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: bytes
    err: str


class Commands:
    """A server that has imported the commands."""

    def __init__(self, cwd: Path, environment: dict[str, str], asks_models: bool = False) -> None:
        """asks_models: the SDK that asks endpoints is imported too, which takes its time."""
        settled = {name: os.environ[name] for name in KEPT if name in os.environ} | environment
        self.server = subprocess.Popen(
            [sys.executable, __file__, *(["models"] if asks_models else [])],
            cwd=cwd,
            env=settled,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __enter__(self) -> Commands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self.server.stdin and self.server.stdout
        self.server.stdin.close()
        self.server.wait(20)
        self.server.stdout.close()

    def pipe(
        self,
        stages: list[list[str]],
        stdin: bytes,
        environment: dict[str, str],
        kill: dict[int, float] | None = None,
    ) -> list[Done]:
        """Commands with a pipe between each two. kill: stage -> seconds after the start at which it gets
        kill -9. The output of a stage but the last is what its reader took, and empty here."""
        kills = [(0, stage, at, int(signal.SIGKILL)) for stage, at in (kill or {}).items()]
        return self.beside([(stages, stdin)], environment, kills)[0]

    def beside(
        self,
        pipes: list[tuple[list[list[str]], bytes]],
        environment: dict[str, str],
        kills: list[tuple[int, int, float, int]],
        terminal: str = "",
    ) -> list[list[Done]]:
        """Pipelines (stages, stdin) at the same time. kills: (pipeline, stage, seconds after the start,
        signal); one that has ended by then is left alone. terminal: path of one that all last stages print
        on, and all their stderr goes to."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            for number, (_, stdin) in enumerate(pipes):
                Path(folder, f"in{number}").write_bytes(stdin)
            asked = {"pipes": [stages for stages, _ in pipes], "env": environment, "folder": folder}
            asked["terminal"] = terminal
            assert self.server.stdin and self.server.stdout
            self.server.stdin.write(json.dumps({**asked, "kills": kills}).encode() + b"\n")
            self.server.stdin.flush()
            found = json.loads(self.server.stdout.readline())
            return [
                [
                    Done(
                        code,
                        Path(folder, f"out{number}").read_bytes()
                        if stage == len(codes) - 1 and not terminal
                        else b"",
                        Path(folder, f"err{number}.{stage}").read_text(errors="replace"),
                    )
                    for stage, code in enumerate(codes)
                ]
                for number, codes in enumerate(found)
            ]


def _serve(asks_models: bool) -> None:
    sys.path[:1] = [str(ROOT)]
    for verb in VERBS:
        import_module(f"libmachine.cmd.{verb}")
    for name in ("_run", "_grade", "_select", "_converse", "_runs", "_show", "_fsck", "_forget", "_sync"):
        import_module(f"libmachine.cmd.{name}")
    for name in (
        "store.repair",
        "store.share",
        "store.gc",
        "harness.scripted",
        "harness.echo",
        "project",
        "tools",
        "graders.check",
        "graders.judge",
        "harness.chat",
    ):
        import_module(f"libmachine.{name}")
    import pydantic  # noqa: F401
    import pygit2  # noqa: F401

    if asks_models:
        import openai  # noqa: F401

    for line in sys.stdin.buffer:
        codes = _run(json.loads(line))
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


def _run(asked: dict[str, Any]) -> list[list[int]]:
    pids = [_start(asked, number) for number in range(len(asked["pipes"]))]
    began = time.monotonic()
    for pipe, stage, seconds, number in sorted(asked["kills"], key=lambda kill: float(kill[2])):
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        os.kill(pids[pipe][stage], number)  # not waited for yet, so the pid is still its own
    return [[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in stages] for stages in pids]


def _start(asked: dict[str, Any], pipe: int) -> list[int]:
    folder, stages = asked["folder"], asked["pipes"][pipe]
    source = os.open(f"{folder}/in{pipe}", os.O_RDONLY)
    pids = []
    for number, words in enumerate(stages):
        last = number == len(stages) - 1
        following, sink = (
            (-1, os.open(f"{folder}/out{pipe}", os.O_WRONLY | os.O_CREAT)) if last else os.pipe()
        )
        error = os.open(f"{folder}/err{pipe}.{number}", os.O_WRONLY | os.O_CREAT)
        if asked["terminal"]:
            shown = os.open(asked["terminal"], os.O_RDWR | os.O_NOCTTY)
            os.dup2(shown, error)
            if last:
                os.dup2(shown, sink)
            os.close(shown)
        pid = os.fork()
        if pid == 0:
            for fd, place in ((source, 0), (sink, 1), (error, 2)):
                os.dup2(fd, place)
            os.closerange(3, 64)
            _become(words, asked["env"])
        pids.append(pid)
        for fd in (source, sink, error):
            os.close(fd)
        source = following
    return pids


def _become(words: list[str], environment: dict[str, str]) -> None:
    """Run a command in this fork, or `head`; never returns."""
    code = 255
    try:
        if words[0] == "head":
            code = _head()
            return
        _limit(environment)
        os.environ.update(environment)
        sys.argv = [f"machine-{words[0]}", *words[1:]]
        code = import_module(f"libmachine.cmd.{words[0]}").main()
    except BaseException as error:
        os.write(2, f"Traceback: {error!r}\n".encode())
    finally:
        os._exit(code)


def _head() -> int:
    """As `head -1`: one line, and the pipe is closed."""
    line = b""
    while not line.endswith(b"\n") and (letter := os.read(0, 1)):
        line += letter
    os.write(1, line)
    return 0


def _limit(environment: dict[str, str]) -> None:
    """TEST_FILE_BYTES: no file may grow beyond. TEST_CLOCK_S: the clock is off by so much."""
    if size := environment.get("TEST_FILE_BYTES"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))
    if shift := environment.get("TEST_CLOCK_S"):
        right = time.time
        time.time = lambda: right() + float(shift)

        class Off(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:
                return datetime.now(tz) + timedelta(seconds=float(shift))

        import_module("libmachine.canon").datetime = Off  # type: ignore[attr-defined]


if __name__ == "__main__":
    _serve("models" in sys.argv)
