"""machine-run, 64 calls at once, against a mock endpoint that takes 300 ms: is the waiting in parallel?

    python tests/bench/endpoint.py [--calls N] [--width N] [--latency S] [--rounds N]

Beside it, taking turns in the same run: a bare loop of as many threads with http.client, which sends
the same bodies and drops the replies, and machine-run 1 call wide. Printed are ratios: the share of the
ideal rate (width / latency), from the first request to the last reply as the mock sees them; CPU a call
without start-up, as a multiple of the bare loop's; peak memory, and what each further call in flight
adds. Both clients and the mock share the machine, so a busy one lowers every share alike.
Exit 0 whatever the figures are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PYTHON = str(ROOT / ".venv/bin/python")

# The same calls with nothing around them.
BARE = """
import http.client, json, sys, threading, urllib.parse
url, calls, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
place = urllib.parse.urlsplit(url)
numbers = iter(range(calls))
lock = threading.Lock()
def work():
    link = http.client.HTTPConnection(place.hostname, place.port)
    kind = {"Content-Type": "application/json"}
    while True:
        with lock:
            number = next(numbers, None)
        if number is None:
            return
        body = {"model": "m", "messages": [{"role": "user", "content": f"case {number}"}]}
        link.request("POST", place.path + "/chat/completions", json.dumps(body), kind)
        json.loads(link.getresponse().read())
threads = [threading.Thread(target=work) for _ in range(width)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


class Mock:
    """A server with one thread, so that it takes little of the machine itself."""

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.now = self.most = self.served = 0
        self.first = self.last = 0.0

    async def serve(self) -> None:
        """Print the port, then a line of figures each time stdin has one; end with it."""
        server = await asyncio.start_server(self.link, "127.0.0.1", 0, backlog=512)
        print(server.sockets[0].getsockname()[1], flush=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            figures = {"served": self.served, "most": self.most, "seconds": self.last - self.first}
            print(json.dumps(figures), flush=True)
            self.most = self.served = 0

    async def link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                self.first = time.monotonic() if not self.served and not self.now else self.first
                self.now += 1
                self.most = max(self.most, self.now)
                await asyncio.sleep(self.latency)
                self.now -= 1
                self.served += 1
                self.last = time.monotonic()
                writer.write(REPLY)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


_BODY = json.dumps(
    {
        "model": "m",
        "choices": [{"message": {"role": "assistant", "content": "a good answer"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 5},
    }
).encode()
REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
    len(_BODY),
    _BODY,
)


class Took(NamedTuple):
    """cpu: seconds of the client. peak: its MB. rate: calls a second. most: the most at one time."""

    cpu: float
    peak: float
    rate: float
    most: int


class Bench:
    """The mock, and a fresh project for each run of machine-run."""

    def __init__(self, latency: float, folder: str) -> None:
        self.folder = folder
        self.mock = subprocess.Popen(
            [PYTHON, __file__, "--serve", str(latency)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.mock.stdout
        self.url = f"http://127.0.0.1:{int(self.mock.stdout.readline())}/v1"
        machine = Path(folder, "machines/say")
        machine.mkdir(parents=True)
        (machine / "machine.py").write_text(
            "from libmachine import Machine, check\n\n"
            'machine = Machine(intent="Say.", graders={"good": check(lambda run: "good" in run.output)})\n'
        )
        (machine / "rubric.toml").write_text('[good]\ndescription = "It says good."\n')

    def machine(self, calls: int, width: int) -> Took:
        """machine-run on so many cases, nothing stored before."""
        store = tempfile.mkdtemp(dir=self.folder)
        words = ["machine-run", "-C", self.folder, "say", "--harness", "openai", "--model", "m"]
        words += ["--base-url", self.url, "--concurrency", str(width)]
        cases = "".join(json.dumps(f"case {number}") + "\n" for number in range(calls))
        return self.client(words, cases, calls, MACHINE_DIR=f"{store}/store", MACHINE_FSYNC="0")

    def bare(self, calls: int, width: int) -> Took:
        """The bare loop."""
        return self.client([PYTHON, "-c", BARE, self.url, str(calls), str(width)], "", calls)

    def client(self, words: Sequence[str], stdin: str, calls: int, **variables: str) -> Took:
        """Run a client to its end; exits if it fails or calls more or less than it should."""
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith("MACHINE_") and not k.endswith("_KEY")
        }
        kept |= {"PATH": f"{ROOT}/bin:{kept['PATH']}", **variables}
        with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as talk:
            source.write(stdin.encode())
            source.seek(0)
            child = subprocess.Popen(words, stdin=source, stdout=subprocess.DEVNULL, stderr=talk, env=kept)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            talk.seek(0)
            told = talk.read(2000).decode("utf-8", "replace")
        seen = self.seen()
        if child.returncode or seen["served"] != calls:
            sys.exit(f"fatal: {words[0]}: exit {child.returncode}, {seen['served']} of {calls} calls; {told}")
        rate = calls / max(seen["seconds"], 1e-9)
        return Took(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, rate, int(seen["most"]))

    def seen(self) -> dict[str, float]:
        """What the mock has seen since the last look."""
        assert self.mock.stdin and self.mock.stdout
        self.mock.stdin.write("\n")
        self.mock.stdin.flush()
        figures: dict[str, float] = json.loads(self.mock.stdout.readline())
        return figures

    def close(self) -> None:
        """End the mock."""
        assert self.mock.stdin
        self.mock.stdin.close()
        self.mock.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=1280)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(Mock(options.serve).serve())
        return
    calls, width = options.calls, options.width
    ideal = width / options.latency
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.latency, folder)
        few = 4
        ours, bare = [], []
        start = bench.machine(few, 1)
        bare_start = bench.bare(few, 1)
        for _ in range(options.rounds):
            ours.append(bench.machine(calls, width))
            bare.append(bench.bare(calls, width))
        bench.close()

    def median(rows: list[Took], name: str) -> float:
        return statistics.median(getattr(row, name) for row in rows)

    cpu = (median(ours, "cpu") - start.cpu) / (calls - few)
    bare_cpu = (median(bare, "cpu") - bare_start.cpu) / (calls - few)
    share, bare_share = (median(rows, "rate") / ideal for rows in (ours, bare))
    peak = median(ours, "peak")
    print(f"{calls} calls, {width} at once, {options.latency:g} s each: ideal {ideal:.0f} calls a second")
    print(f"share of the ideal rate   machine-run {share:5.2f}   bare loop {bare_share:5.2f}")
    print(f"most at one time          machine-run {median(ours, 'most'):5.0f}   of {width}")
    print(
        f"CPU a call, ms            machine-run {1000 * cpu:5.1f}   bare loop {1000 * bare_cpu:5.1f}", end=""
    )
    print(f"   {cpu / bare_cpu:.1f} times" if bare_cpu > 0 else "")
    print(f"CPU of one core at the rate reached: {cpu * median(ours, 'rate'):.2f}")
    print(f"peak memory, MB           machine-run {peak:5.0f}   1 call wide {start.peak:5.0f}", end="")
    print(f"   {1024 * (peak - start.peak) / max(1, width - 1):.0f} KB a call in flight")


if __name__ == "__main__":
    main()
