"""A project with a big store: graded runs of about 6 KB, ten machines, shared prompts, tool calls.

python tests/bench/generate.py DIRECTORY RUNS

Records and log lines are made by the store itself; only their objects go into a pack at once, not into
a file each, which would take as long again as all the rest. One machine in ten has files with its
cases; 2 runs in 100 failed and have no scorecard, 2 in 100 met a limit.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from libmachine.canon import dump_line, hash_of
from libmachine.case import read_case
from libmachine.githash import object_id
from libmachine.store.objects import Objects
from libmachine.store.store import Store
from tests.bench.graded_runs import card_of, run_of, text

MACHINES = 10
CASES = 50
_PACK_KINDS = {"commit": 1, "tree": 2, "blob": 3}

MACHINE = """
from libmachine import Machine, check


def short(run):
    return len(run.output.split()) <= 60


def polite(run):
    return "good" in run.output


machine = Machine(intent="Answer from the files.", graders={"short": check(short), "polite": check(polite)})
"""
RUBRIC = '[short]\ndescription = "At most 60 words."\n\n[polite]\ndescription = "It says good."\n'


class Packed(Objects):
    """Objects that are written into one pack, to be put in place by finish()."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory, fsync=False)
        self.known: set[bytes] = set()
        self.file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.file.write(b"PACK" + (2).to_bytes(4, "big") + bytes(4))

    def write(self, kind: str, data: bytes) -> str:
        oid = object_id(kind, data)
        if (name := bytes.fromhex(oid)) not in self.known:
            self.known.add(name)
            size = len(data) >> 4
            head = [_PACK_KINDS[kind] << 4 | len(data) & 15]
            while size:
                head[-1] |= 128
                head.append(size & 127)
                size >>= 7
            self.file.write(bytes(head) + zlib.compress(data, 1))
        return oid

    def finish(self) -> None:
        """Put the pack in place, by git."""
        self.file.seek(8)
        self.file.write(len(self.known).to_bytes(4, "big"))
        self.file.seek(0)
        digest = hashlib.sha1()
        while chunk := self.file.read(1 << 20):
            digest.update(chunk)
        self.file.write(digest.digest())
        self.file.seek(0)
        command = ["git", f"--git-dir={self.directory}", "index-pack", "--stdin"]
        subprocess.run(command, stdin=self.file, stdout=subprocess.DEVNULL, check=True)


def project(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Write the machines; returns name -> its cases."""
    made = {}
    for number in range(MACHINES):
        name = f"m{number}"
        machine = folder / "machines" / name
        machine.mkdir(parents=True)
        (machine / "machine.py").write_text(MACHINE)
        (machine / "rubric.toml").write_text(RUBRIC)
        (machine / "instructions.md").write_text(text(280) + "\n")
        (machine / "model.json").write_text('{"model": "echo", "harness": "echo"}\n')
        lines = []
        for case in range(CASES):
            lines.append({"id": f"c{case}", "input": f"{number} {case} {text(60)}", "target": text(3)})
            if number == MACHINES - 1:
                lines[-1]["files"] = {"notes/a.txt": text(40), "b.txt": f"{case % 5}"}
        (machine / "cases.jsonl").write_bytes(b"".join(map(dump_line, lines)))
        made[name] = [read_case(line) for line in lines]
    return made


def fill(folder: Path, cases: dict[str, list[dict[str, Any]]], runs: int) -> None:
    """Store runs of all machines, interleaved, each with its scorecard."""
    store = Store(str(folder / ".machine"), fsync=False)
    store.objects = objects = Packed(store.directory)
    prompts = {name: text(280) for name in cases}
    trees: dict[str, str] = {}
    for number in range(runs):
        name = f"m{number % MACHINES}"
        case = cases[name][number // MACHINES % CASES]
        trial = number // (MACHINES * CASES) + 1
        base = hash_of([name, case["identity"]])
        fields: dict[str, Any] = {"machine": name, "trial": trial, "key": hash_of([base, trial])}
        if number % 50 == 7:
            fields |= {"status": "limit", "stop_reason": "max_steps"}
        elif number % 50 == 13:
            error = {"where": "provider", "type": "ProviderError", "message": "503"}
            fields |= {"status": "failed", "stop_reason": "error", "error": error}
        parts = {}
        if "files" in case:
            tree = trees.get(case["id"]) or trees.setdefault(case["id"], store.files(case["files"]))
            parts = {"before": tree, "after": tree}
            fields["workspace"] = dict(parts)
        run = store.add_run(run_of(case, number, prompts[name], **fields), base, parts)
        if run["status"] != "failed":
            store.add_scorecard(card_of(run, number))
    store.close()
    objects.finish()


def main(directory: str, runs: int) -> None:
    """Make the project. The directory must not be there yet."""
    random.seed(1)
    folder = Path(directory)
    folder.mkdir()
    fill(folder, project(folder), runs)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
