"""What the tools cost: CPU, memory and bytes, each beside something plain measured in the same run.

    tests/bench/run [help|pipe|select|memory|store|peers]...      (no word: the first four)

help     CPU of `--help` of each command, as a multiple of `python -c pass`
pipe     1,000 echo runs through run | grade | select, beside a bare loop that parses and writes the same
select   machine-select over JSONL, beside `grep -c` and `jq -c .`
memory   peak memory at 10,000 runs of as many cases against 1,000 (`--best 2` holds what it may print)
store    four questions to a store of 100,000 runs, beside the start-up of the same command
peers    the same job in Inspect AI and promptfoo, which it installs (see peers.py)

CPU is user + system of a process and what it waited for (wait4). The ratios are what a busy machine
leaves standing; things compared take turns. This process stays small: a child's peak begins at ours.
Exit 0 whatever the figures are.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PYTHON = str(ROOT / ".venv/bin/python")
RUNS = 1000
STORED = 100_000
STORE_ROUNDS = 5
HELP_ROUNDS = 15
PIPE_ROUNDS = 3
BIG_MB, PART_MB = 200, 40
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # where files cost no disk
WORDS = ("the", "a", "of", "model", "answer", "tool", "file", "line", "case", "sum", "value", "list", "good")

MACHINE = """
from libmachine import Machine, check


def short(run):
    words = len(run.output.split())
    return words <= 60, f"{words} words"


def polite(run):
    return "good" in run.output


machine = Machine(intent="Say something good.", graders={"short": check(short), "polite": check(polite)})
"""
RUBRIC = '[short]\ndescription = "At most 60 words."\n\n[polite]\ndescription = "It says good."\n'

# The same work with nothing around it: parse each line, store two files of the same bytes, print it.
BARE = """
import json, os, sys
folder, fsync = sys.argv[1], sys.argv[2] == "1"
for number, line in enumerate(sys.stdin.buffer):
    run = json.loads(line)
    card = run.pop("scorecard")
    for name, record in (("run", run), ("card", card)):
        fd = os.open(f"{folder}/{name}{number}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, json.dumps(record).encode())
        if fsync:
            os.fsync(fd)
        os.close(fd)
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""


class Cost(NamedTuple):
    """What a pipeline took. cpu: seconds, of all its processes; peak: MB, of the largest."""

    cpu: float
    wall: float
    peak: float


def measure(
    commands: Sequence[Sequence[str]],
    stdin: IO[bytes] | int,
    stdout: IO[bytes] | int,
    cwd: Path | None = None,
    **variables: str,
) -> list[Cost]:
    """Run a pipeline; what each of its processes took. Exits if one fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MACHINE_", "GIT_"))}
    env |= {"PATH": f"{ROOT}/bin:{env['PATH']}", **variables}
    talk = tempfile.TemporaryFile()  # noqa: SIM115
    started = time.monotonic()
    children = []
    for number, command in enumerate(commands):
        last = number == len(commands) - 1
        out = stdout if last else subprocess.PIPE
        child = subprocess.Popen(command, stdin=stdin, stdout=out, stderr=talk, env=env, cwd=cwd)
        if number and not isinstance(stdin, int):
            stdin.close()
        stdin = child.stdout or subprocess.DEVNULL
        children.append(child)
    costs = []
    for child in children:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - started
        costs.append(Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024))
    if any(child.returncode for child in children):
        talk.seek(0)
        told = ", ".join(
            f"{words[0]}: {child.returncode}" for words, child in zip(commands, children, strict=True)
        )
        sys.exit(f"fatal: exit codes {told}; {talk.read(2000).decode('utf-8', 'replace')}")
    return costs


def whole(costs: Sequence[Cost]) -> Cost:
    """A pipeline as one."""
    return Cost(sum(c.cpu for c in costs), max(c.wall for c in costs), max(c.peak for c in costs))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([row[0].ljust(len(first)), *rest]).rstrip())


def mark(value: float, aim: float, least: bool = False) -> str:
    """The aim, and whether it is reached."""
    reached = value >= aim if least else value <= aim
    return f"{'>=' if least else '<='} {aim:g} {'ok' if reached else 'NO'}"


def project(parent: str | None = None) -> Path:
    """A new project with one machine, `bench`. It is removed at the end of all parts: for half a minute
    ext4 passes over each inode that was freed, and creating a file costs twenty times as much."""
    folder = Path(tempfile.mkdtemp(prefix="machine-bench-", dir=parent))
    atexit.register(shutil.rmtree, folder)
    machine = folder / "machines/bench"
    machine.mkdir(parents=True)
    (machine / "machine.py").write_text(MACHINE)
    (machine / "rubric.toml").write_text(RUBRIC)
    (machine / "instructions.md").write_text("Say something good. " * 20 + "\n")
    (machine / "model.json").write_text('{"model": "echo", "harness": "echo"}\n')
    return folder


def write_cases(path: Path, count: int) -> None:
    """Cases of about 240 bytes, each with a target and metadata."""
    with open(path, "w") as file:
        for number in range(count):
            text = " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(30))
            case = {
                "id": f"c{number}",
                "input": f"{number}: {text}",
                "target": text[:20],
                "metadata": {"group": number % 50},
            }
            file.write(json.dumps(case) + "\n")


def stages(folder: Path) -> list[list[str]]:
    where = ["-C", str(folder)]
    return [
        ["machine-run", *where, "bench"],
        ["machine-grade", *where],
        ["machine-select", "--best", "2"],
    ]


def bytes_on_disk(folder: Path) -> list[str]:
    """MB of the content and MB of the blocks of a directory's files."""
    stats = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    sizes = sum(s.st_size for s in stats), sum(512 * s.st_blocks for s in stats)
    return [f"{size / 1e6:.1f}" for size in sizes]


# parts -----------------------------------------------------------------------------------


def bench_help() -> None:
    listed = subprocess.run(
        [f"{ROOT}/bin/machine", "--list-cmds"], capture_output=True, text=True, check=True
    )
    verbs = listed.stdout.split()
    commands = {
        "python -c pass": [PYTHON, "-c", "pass"],
        "python -c 'import click'": [PYTHON, "-c", "import click"],
        "machine": ["machine", "--help"],
        **{f"machine-{verb}": [f"machine-{verb}", "--help"] for verb in verbs},
        "machine select --help": ["machine", "select", "--help"],
        "machine-select </dev/null": ["machine-select"],
    }
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(HELP_ROUNDS + 1):
        for name, command in commands.items():
            cost = measure([command], subprocess.DEVNULL, subprocess.DEVNULL)[0]
            if turn:  # the first one warms the caches
                cpu[name].append(cost.cpu)
    base = median(cpu["python -c pass"])
    rows = [["--help", "CPU ms", "x python", "aim"]]
    for name, values in cpu.items():
        ours = name.startswith("machine") and " " not in name
        ratio = median(values) / base
        rows.append([name, f"{1000 * median(values):.0f}", f"{ratio:.1f}", mark(ratio, 6) if ours else ""])
    table(rows)


def bench_pipe() -> None:
    head = ["1,000 echo runs", "CPU ms/run", "x bare", "peak MB", "wall s", "content MB", "on disk MB", "aim"]
    rows = [head]
    places = (("memory, FSYNC=0", MEMORY, "0"), ("disk, FSYNC=0", None, "0"), ("disk, FSYNC=1", None, "1"))
    for place, parent, fsync in places:
        takes: list[list[Cost]] = []
        bare: list[Cost] = []
        for _ in range(PIPE_ROUNDS):
            folder = project(parent)
            write_cases(folder / "cases", RUNS)
            with open(folder / "cases", "rb") as cases, open(folder / "out", "wb") as out:
                takes.append(measure(stages(folder), cases, out, MACHINE_FSYNC=fsync))
            if (lines := (folder / "out").read_bytes().count(b"\n")) != RUNS:
                sys.exit(f"fatal: {lines} of {RUNS} runs came out")
            (folder / "bare").mkdir()
            with open(folder / "out", "rb") as runs:
                command = [PYTHON, "-c", BARE, str(folder / "bare"), fsync]
                bare += measure([command], runs, subprocess.DEVNULL)
        base = median([cost.cpu for cost in bare])
        for number, name in enumerate(("  run", "  grade", "  select --best 2")):
            rows.append([name, *figures([take[number] for take in takes], base), *[""] * 3])
        totals = [whole(take) for take in takes]
        aims = f"{mark(median([t.cpu for t in totals]), 3)} ms, {mark(max(t.peak for t in totals), 60)} MB"
        rows.append([f"all, {place}", *figures(totals, base), *bytes_on_disk(folder / ".machine"), aims])
        rows.append(["bare loop, 2 files each", *figures(bare, base), *bytes_on_disk(folder / "bare"), ""])
    table(rows)


def figures(costs: Sequence[Cost], base: float) -> list[str]:
    """CPU a run, as a multiple of base, peak and wall of repeated takes."""
    cpu, wall = median([c.cpu for c in costs]), median([c.wall for c in costs])
    peak = max(c.peak for c in costs)
    return [f"{1000 * cpu / RUNS:.2f}", f"{cpu / base:.1f}", f"{peak:.0f}", f"{wall:.1f}"]


def bench_select() -> None:
    folder = project()
    big, part = folder / "big.jsonl", folder / "part.jsonl"
    subprocess.run([PYTHON, str(ROOT / "tests/bench/graded_runs.py"), str(big), str(BIG_MB)], check=True)
    with open(big, "rb") as source, open(part, "wb") as target:
        while target.tell() < PART_MB * 1_000_000:
            target.write(source.readline())
    loads = "import sys, json\nfor line in sys.stdin.buffer: json.loads(line)"
    variants: dict[str, tuple[list[str], Path]] = {
        "machine-select": (["machine-select"], big),
        "machine-select --passing": (["machine-select", "--passing"], big),
        "machine-select --best 2": (["machine-select", "--best", "2"], big),
        "grep -c passed": (["grep", "-c", "passed"], big),
        "jq -c .": (["jq", "-c", "."], part),
        "python json.loads": ([PYTHON, "-c", loads], part),
    }
    speeds: dict[str, list[float]] = {name: [] for name in variants}
    peaks: dict[str, float] = {}
    for _ in range(3):
        for name, (command, path) in variants.items():
            with open(path, "rb") as source:
                # into a pipe: grep that writes to /dev/null stops at the first match
                cost = measure([command, ["cat"]], source, subprocess.DEVNULL)[0]
            speeds[name].append(path.stat().st_size / 1e6 / cost.cpu)
            peaks[name] = max(peaks.get(name, 0), cost.peak)
    slow = median(speeds["jq -c ."])
    rows = [[f"{BIG_MB} MB of graded runs", "MB/s of CPU", "x jq", "peak MB", "aim"]]
    for name, values in speeds.items():
        speed = median(values)
        aim = mark(speed, 100, least=True) if name.startswith("machine") else ""
        rows.append([name, f"{speed:.0f}", f"{speed / slow:.1f}", f"{peaks[name]:.0f}", aim])
    table(rows)


def bench_memory() -> None:
    peaks: dict[int, list[float]] = {}
    for count in (RUNS, 10 * RUNS, 30 * RUNS):
        folder = project(MEMORY)
        write_cases(folder / "cases", count)
        with open(folder / "cases", "rb") as cases:
            costs = measure(stages(folder), cases, subprocess.DEVNULL, MACHINE_FSYNC="0")
        peaks[count] = [cost.peak for cost in costs]
    rows = [["peak MB", *(f"{count} runs" for count in peaks), "bytes a run, of the last 20,000"]]
    for number, name in enumerate(("run", "grade", "select --best 2")):
        told = [peak[number] for peak in peaks.values()]
        rows.append(
            [name, *(f"{one:.1f}" for one in told), f"{(told[2] - told[1]) * 2**20 / (20 * RUNS):.0f}"]
        )
    table(rows)


def bench_store() -> None:
    folder = Path(tempfile.mkdtemp(prefix="machine-bench-"))
    atexit.register(shutil.rmtree, folder)
    script, place = str(ROOT / "tests/bench/generate.py"), str(folder / "big")
    made = measure([[PYTHON, script, place, str(STORED)]], subprocess.DEVNULL, subprocess.DEVNULL)[0]
    where = ["-C", place]
    first = measure([["machine-runs", *where, "--last", "1"]], subprocess.DEVNULL, subprocess.DEVNULL)[0]
    oid = subprocess.run(
        [f"{ROOT}/bin/machine-runs", *where, "m3", "--brief", "--last", "1"], capture_output=True, check=True
    ).stdout
    starts = {"machine-runs": ["machine-runs", "--help"], "machine-show": ["machine-show", "--help"]}
    questions = {
        "one machine's runs, with scores": ["machine-runs", *where, "m3", "--brief"],
        "the best 2 of each of its cases, whole": ["machine-runs", *where, "m3", "--best", "2"],
        "the best 2 of every case": ["machine-runs", *where, "--best", "2", "--brief"],
        "one run by its id": ["machine-show", *where, json.loads(oid)["id"]],
        "all that fail": ["machine-runs", *where, "--failing", "--brief"],
        "one machine's runs, whole": ["machine-runs", *where, "m3"],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in (*starts, *questions)}
    lines = {}
    for _ in range(STORE_ROUNDS):
        for name, command in (starts | questions).items():
            with tempfile.TemporaryFile() as out:
                costs[name].append(measure([command], subprocess.DEVNULL, out)[0])
                out.seek(0)
                lines[name] = sum(1 for _ in out)
    rows = [[f"{STORED} runs", "lines", "CPU ms", "after start-up", "peak MB", "aim"]]
    rows.append(["made", "", f"{1000 * made.cpu:.0f}", "", f"{made.peak:.0f}", ""])
    rows.append(["index from nothing", "1", f"{1000 * first.cpu:.0f}", "", f"{first.peak:.0f}", ""])
    for name, command in (starts | questions).items():
        cpu, peak = median([c.cpu for c in costs[name]]), max(c.peak for c in costs[name])
        after = 1000 * (cpu - median([c.cpu for c in costs[command[0]]]))
        told = [
            f"{after:.0f}",
            f"{peak:.0f}",
            mark(after, 300) if "whole" not in name or "best" in name else "",
        ]
        rows.append(
            [name, str(lines[name]), f"{1000 * cpu:.0f}", *(told if name in questions else ["", "", ""])]
        )
    table(rows)


def bench_peers() -> None:
    from peers import main as compared

    compared()


PARTS: dict[str, Callable[[], None]] = {
    "help": bench_help,
    "pipe": bench_pipe,
    "select": bench_select,
    "memory": bench_memory,
    "store": bench_store,
    "peers": bench_peers,
}
ALONE = ("store", "peers")
"""Parts that take minutes, or install something: done only when named."""


def main() -> int:
    words = sys.argv[1:]
    if unknown := [word for word in words if word not in PARTS]:
        print(f"usage: tests/bench/run [{'|'.join(PARTS)}]...; no part '{unknown[0]}'", file=sys.stderr)
        return 129
    started = time.monotonic()
    for name in words or (name for name in PARTS if name not in ALONE):
        PARTS[name]()
        print(flush=True)
    load = os.getloadavg()[0]
    print(f"{time.monotonic() - started:.0f} s on {os.cpu_count()} cores, load {load:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
