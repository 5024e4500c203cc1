"""Coverage-guided fuzzing of the readers in targets.py, by hand or in a nightly job.

    python -m pip install atheris
    python tests/chaos/fuzz.py [--seconds 60] [--corpus DIR] [TARGET...]

Every distinct fault (what was raised, and where) is printed once, with an input that shows it, and the run
goes on. Exit 1 if there was one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent.parent
SLOW_S = 1.0
"""Of processor time, for 100 KB."""


def main() -> int:
    """A process a target, as libFuzzer ends the one that it runs in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", default="")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    if options.one:
        return fuzz(options.targets[0], options.seconds, Path(options.corpus))
    import targets

    failed = 0
    names = options.targets or list(targets.TARGETS)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            corpus = Path(options.corpus or scratch, name)
            corpus.mkdir(parents=True, exist_ok=True)
            words = [
                sys.executable,
                __file__,
                "--one",
                "--corpus",
                str(corpus),
                "--seconds",
                str(options.seconds),
            ]
            done = subprocess.run([*words, name], capture_output=True, text=True, check=False, cwd=scratch)
            told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"fault"')]
            ran = [line for line in done.stderr.splitlines() if line.startswith("#")] or [done.stderr[-1500:]]
            print(f"{name}: {len(told)} faults; {' '.join(ran[-1].split())[:100]}", flush=True)
            for fault in told:
                print(f"  {fault['fault']}\n    {fault['at']}\n    {fault['input']!r}", flush=True)
            failed += len(told) + (not told and done.returncode not in (0, 77))
    return int(failed > 0)


def fuzz(name: str, seconds: int, corpus: Path) -> int:
    """Fuzz one target; its faults as JSON lines on stdout."""
    import atheris

    with atheris.instrument_imports(include=["libmachine", "targets"]):
        import targets
    from mutate import mutated, repeated

    target = targets.TARGETS[name]
    for number, seed in enumerate(target.seeds or [b""]):
        (corpus / f"seed-{number}").write_bytes(seed)
    dictionary = corpus.parent / f"{name}.dict"
    dictionary.write_text(
        "".join(f'"{"".join(f"{chr(92)}x{b:02x}" for b in w)}"\n' for w in target.words if w)
    )
    known: set[tuple[str, ...]] = set()

    def one(data: bytes) -> None:
        began = time.process_time()
        try:
            target.read(data)
        except targets.EXPECTED:
            pass
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [
                f"{os.path.relpath(f.filename, ROOT)}:{f.lineno}"
                for f in frames
                if "libmachine" in f.filename
            ]
            _tell(
                known,
                f"{type(error).__name__}: {str(error)[:200]}",
                (type(error).__name__, *ours[-1:]),
                ours[-4:],
                data,
            )
        took = time.process_time() - began
        if took > SLOW_S * max(1.0, len(data) / 100_000):
            _tell(known, f"{took:.1f} s for {len(data)} bytes", ("slow",), [], data)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.random() < 0.4:
            return bytes(atheris.Mutate(data, most))
        if chance.random() < 0.02:
            return repeated(target.words or [b"x"], chance, most)[:most]
        return mutated(data, target.words, chance, most)

    words = [sys.argv[0], f"-max_total_time={seconds}", f"-max_len={target.most}", f"-dict={dictionary}"]
    words += ["-timeout=120", "-rss_limit_mb=4000", "-print_final_stats=0", str(corpus)]
    atheris.Setup(words, one, custom_mutator=mutate)
    atheris.Fuzz()
    return 0


def _tell(
    known: set[tuple[str, ...]], what: str, key: tuple[str, ...], where: list[str], data: bytes
) -> None:
    if key in known:
        return
    known.add(key)
    shown = data if len(data) < 600 else data[:300] + b" ... " + data[-300:]
    print(
        json.dumps({"fault": what, "at": " < ".join(reversed(where)), "input": shown.decode("latin-1")}),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
