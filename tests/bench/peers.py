"""The same small job in other programs of the field, measured in the same run.

tests/bench/run peers      (or: peers.py DIRECTORY, to keep what is installed there for another time)

1,000 cases through an echo of a model and one check each, end to end: cases from a file, results stored.
Inspect AI with its mock model, promptfoo with its echo provider; each is installed into an environment of
its own, by pip and npm. Neither waits for the disk, so ours is measured both ways. What cannot be
installed is said and left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cost import PYTHON, RUNS, Cost, measure, median, project, stages, table, whole, write_cases

ROUNDS = 3

INSPECT_TASK = """
import json
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def bench():
    with open("cases") as file:
        cases = [json.loads(line) for line in file]
    samples = [Sample(id=case["id"], input=case["input"], target="Default") for case in cases]
    return Task(dataset=samples, solver=generate(), scorer=includes())
"""


class Peer(NamedTuple):
    """A program: how it says its version, starts for nothing, and does the job in a fresh directory."""

    name: str
    version: str
    start: list[str]
    job: list[list[str]]
    variables: dict[str, str]


def ours(fsync: str) -> Peer:
    version = subprocess.run(
        [PYTHON, "-c", "import libmachine; print(libmachine.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    job = [words[:1] + [word for word in words[1:] if word not in ("-C", ".")] for words in stages(Path("."))]
    name = "run | grade | select" + (", FSYNC=0" if fsync == "0" else "")
    return Peer(name, version.stdout.strip(), ["machine-run", "--help"], job, {"MACHINE_FSYNC": fsync})


def inspect(place: Path) -> Peer | None:
    """Inspect AI in a virtual environment."""
    program = place / "inspect/bin/inspect"
    if not program.exists():
        python = [sys.executable, "-m", "venv", str(place / "inspect")]
        pip = [str(place / "inspect/bin/pip"), "install", "-q", "inspect-ai", "openai"]
        if not (installed(python) and installed(pip)):
            return None
        subprocess.run([str(place / "inspect/bin/python"), "-m", "compileall", "-q", str(place)], check=False)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    words = ["eval", "bench.py", "--model", "mockllm/model", "--log-dir", "logs", "--display", "none"]
    return Peer(
        "inspect eval, mock model",
        version.stdout.strip(),
        [str(program), "--help"],
        [[str(program), *words]],
        {},
    )


def promptfoo(place: Path) -> Peer | None:
    """promptfoo from npm."""
    folder = place / "promptfoo"
    program = folder / "node_modules/.bin/promptfoo"
    if not program.exists():
        folder.mkdir(exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        if not installed(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "promptfoo"]):
            return None
    package = json.loads((folder / "node_modules/promptfoo/package.json").read_text())
    # its log files, too: under load it writes to them after it has closed them, and dies of that
    quiet = ("TELEMETRY", "UPDATE", "REMOTE_GENERATION", "SHARING", "DEBUG_LOG", "ERROR_LOG")
    variables = {
        **{f"PROMPTFOO_DISABLE_{name}": "true" for name in quiet},
        "PROMPTFOO_CONFIG_DIR": str(place / "promptfoo-home"),
    }
    words = ["eval", "-c", "bench.json", "--no-cache", "--no-progress-bar", "--no-table"]
    return Peer(
        "promptfoo eval, echo",
        package["version"],
        [str(program), "--help"],
        [[str(program), *words]],
        variables,
    )


def installed(command: Sequence[str]) -> bool:
    """Run an installer; say so if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"left out: {command[0]}: {error}", file=sys.stderr)
        return False
    if done.returncode:
        print(
            f"left out: {' '.join(command)}: {(done.stderr or done.stdout).strip()[-300:]}", file=sys.stderr
        )
    return done.returncode == 0


def fresh() -> Path:
    """A directory with the job's files as each program wants them."""
    folder = project()
    write_cases(folder / "cases", RUNS)
    (folder / "bench.py").write_text(INSPECT_TASK)
    cases = [json.loads(line) for line in (folder / "cases").read_text().splitlines()]
    tests = [
        {"vars": {"text": case["input"]}, "assert": [{"type": "contains", "value": "Say"}]} for case in cases
    ]
    config = {"prompts": ["Say something good. {{text}}"], "providers": ["echo"], "tests": tests}
    (folder / "bench.json").write_text(json.dumps(config))
    return folder


def job(peer: Peer) -> Cost:
    """The cost of the job, done once."""
    folder = fresh()
    with open(folder / "cases", "rb") as cases:
        costs = measure(peer.job, cases, subprocess.DEVNULL, cwd=folder, **peer.variables)
    return whole(costs)


def main(place: Path | None = None) -> None:
    """Measure all, in turns."""
    made = None if place else Path(tempfile.mkdtemp(prefix="machine-peers-"))
    place = place or made
    assert place is not None
    try:
        peers = [p for p in (ours("1"), ours("0"), inspect(place), promptfoo(place)) if p is not None]
        starts: dict[str, list[float]] = {peer.name: [] for peer in peers}
        bare: list[float] = []
        jobs: dict[str, list[Cost]] = {peer.name: [] for peer in peers}
        for turn in range(ROUNDS + 1):
            for peer in peers:
                cost = measure([peer.start], subprocess.DEVNULL, subprocess.DEVNULL, **peer.variables)[0]
                if turn:  # the first one warms the caches
                    starts[peer.name].append(cost.cpu)
                    jobs[peer.name].append(job(peer))
            bare.append(measure([[PYTHON, "-c", "pass"]], subprocess.DEVNULL, subprocess.DEVNULL)[0].cpu)
        first = peers[0].name
        rows = [
            ["", "version", "--help ms", "x python", "1,000 cases s", "x ours", "wall s", "x", "peak MB", "x"]
        ]
        for peer in peers:
            start = median(starts[peer.name])
            cpu, wall, peak = (median([cost[i] for cost in jobs[peer.name]]) for i in range(3))
            base = [median([cost[i] for cost in jobs[first]]) for i in range(3)]
            figures = [
                f"{1000 * start:.0f}",
                f"{start / median(bare):.0f}",
                f"{cpu:.1f}",
                f"{cpu / base[0]:.1f}",
            ]
            figures += [f"{wall:.1f}", f"{wall / base[1]:.1f}", f"{peak:.0f}", f"{peak / base[2]:.1f}"]
            rows.append([peer.name, peer.version, *figures])
        table(rows)
        print("ms and s are of CPU, wall apart; peak MB is of the largest process")
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None)
