"""What one sandboxed command costs, beside plain bubblewrap and a plain subprocess, taking turns.

    python tests/bench/sandbox.py [--rounds N]

Printed are medians in milliseconds and ratios to the plain subprocess of the same command: `true`, where all
is overhead, and python3, which is more like work. "bwrap" is bubblewrap with a read-only root and all
namespaces; "box" is ours, with its allowlist, filter, limits and watchdog; "plain" is ours without
bubblewrap. Also: what a run of the box costs in CPU of this process alone. Exit 0 whatever the figures are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from libmachine.sandbox.base import Provider
from libmachine.sandbox.bubblewrap import Bubblewrap
from libmachine.sandbox.plain import Plain

COMMANDS = {"true": ["/bin/true"], "python3 -c pass": ["/usr/bin/python3", "-c", "pass"]}


def subprocess_of(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True)


def provided(provider: Provider, place: Path) -> Callable[[Sequence[str]], None]:
    def run(argv: Sequence[str]) -> None:
        assert provider.run(place, argv).ok

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        box = Bubblewrap()
        began = time.perf_counter()
        found = box.isolation()
        measured = time.perf_counter() - began
        bare = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--bind", name, name, "--die-with-parent"]
        ways: dict[str, Callable[[Sequence[str]], None]] = {
            "subprocess": subprocess_of,
            "bwrap": lambda argv: subprocess_of([*bare, *argv]),
            "box": provided(box, Path(name)),
            "plain": provided(Plain(), Path(name)),
        }
        if not found.isolated:
            print(f"bubblewrap does not work here: {'; '.join(found.missing)}")
            del ways["bwrap"], ways["box"]
        print(
            f"isolation measured in {measured * 1000:.0f} ms, {rounds} rounds, load {os.getloadavg()[0]:.1f}"
        )
        for title, argv in COMMANDS.items():
            took: dict[str, list[float]] = {way: [] for way in ways}
            ours = 0.0
            for _ in range(rounds):
                for way, run in ways.items():
                    began, cpu = time.perf_counter(), time.process_time()
                    run(argv)
                    took[way].append(time.perf_counter() - began)
                    ours += (time.process_time() - cpu) * (way == "box")
            base = statistics.median(took["subprocess"])
            for way, times in took.items():
                middle = statistics.median(times)
                least = min(times) * 1000
                print(
                    f"{title:<16} {way:<11} {middle * 1000:7.1f} ms  min {least:6.1f}  x{middle / base:.1f}"
                )
            print(f"{title:<16} CPU of our own process in the box: {ours / rounds * 1000:.1f} ms")


if __name__ == "__main__":
    main()
