"""Programs that take all they can: what each must end with, bounded so that the machine lives even if a
limit does not hold. `generous`: the limit that is lifted to show that the program would pass it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from libmachine.sandbox.base import MIB, Limits, Result

SMALL = Limits(
    wall_s=15.0,
    cpu_s=10,
    memory=160 * MIB,
    processes=40,
    open_files=200,
    file=8 * MIB,
    disk=24 * MIB,
    files=400,
    tmp=4 * MIB,
    output=64 << 10,
)


class Attack(NamedTuple):
    """held: is this how it ends under SMALL with `limits` changed? lifted: the limits changed so that it
    passes ("" of a field: not lifted, where the test machine would suffer)."""

    program: str
    held: Callable[[Result], object]
    limits: Mapping[str, Any] = MappingProxyType({})
    lifted: Mapping[str, Any] = MappingProxyType({})
    stdin: bytes = b""


def _limit(name: str) -> Callable[[Result], object]:
    return lambda result: result.limit == name and result.code is None


def _says(text: str) -> Callable[[Result], object]:
    return lambda result: result.code == 0 and text in result.stdout.decode()


def _fails(*texts: str) -> Callable[[Result], object]:
    return lambda result: result.code not in (0, None) and any(t in result.stderr.decode() for t in texts)


# A fork bomb that stops at 300: more than the limit, less than hurts.
FORKS = """
import os, time
made = 0
try:
    for _ in range(300):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        made += 1
except OSError as error:
    print("refused", error.errno, made, flush=True)
    raise SystemExit(0)
print("made", made, flush=True)
time.sleep(%s)
"""

FILL = """
import os
block = b"x" * (1 << 20)
with open(%r, "wb") as file:
    for _ in range(%d):
        file.write(block)
print("filled")
"""

ATTACKS: dict[str, Attack] = {
    "forks": Attack(
        FORKS % 1,
        lambda r: r.limit == "processes" or (r.code == 0 and b"refused" in r.stdout),
        lifted={"processes": 400, "memory": 1 << 30},
    ),
    "threads": Attack(
        "import threading, time\n"
        "threading.stack_size(1 << 18)\n"
        "for n in range(120): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n"
        "print('made'); time.sleep(1)",
        lambda r: r.limit == "processes" or b"can't start new thread" in r.stderr,
        lifted={"processes": 200},
    ),
    "memory of one process": Attack(
        "x = bytearray(250 << 20); print('made')", _fails("MemoryError"), lifted={"memory": 400 * MIB}
    ),
    "memory of many processes": Attack(
        "import os, time\n"
        "for n in range(4):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(80 << 20); time.sleep(5); os._exit(0)\n"
        "time.sleep(1.5); print('made')",
        _limit("memory"),
        lifted={"memory": 500 * MIB},
    ),
    "memory that is shared": Attack(
        "import mmap, time\n"
        "m = mmap.mmap(-1, 250 << 20)\n"
        "for n in range(0, 250 << 20, 4096): m[n] = 1\n"
        "time.sleep(1); print('made')",
        _limit("memory"),
        lifted={"memory": 400 * MIB},
    ),
    "memory shared by fork is counted once": Attack(
        "import os, time\n"
        "x = bytearray(60 << 20)\n"
        "for n in range(6):\n"
        "    if os.fork() == 0: time.sleep(1); os._exit(0)\n"
        "time.sleep(1.2); print('fine')",
        _says("fine"),
    ),
    "/tmp": Attack(FILL % ("/tmp/x", 6), _fails("No space left"), lifted={"tmp": 32 * MIB}),
    "/dev/shm": Attack(FILL % ("/dev/shm/x", 6), _fails("No space left"), lifted={"tmp": 32 * MIB}),
    "one big file": Attack(FILL % ("x", 12), _fails("File too large"), lifted={"file": 32 * MIB}),
    "many big files": Attack(
        "for n in range(6):\n    with open(f'big{n}', 'wb') as f: f.write(b'x' * (7 << 20))\nprint('filled')",
        _limit("disk"),
        lifted={"disk": 80 * MIB},
    ),
    "many files": Attack(
        "for n in range(600): open(f'many{n}', 'w').close()\nprint('made')",
        _limit("disk"),
        lifted={"files": 1000},
    ),
    "directories in one another": Attack(
        "import os\nfor n in range(390): os.mkdir('d'); os.chdir('d')\nprint('made')", _limit("disk")
    ),
    "open files": Attack(
        "x = [open('/dev/null') for n in range(500)]\nprint('made')",
        _fails("Too many open files"),
        lifted={"open_files": 900},
    ),
    "time": Attack(
        "import time; time.sleep(1.5); print('slept')", _limit("time"), {"wall_s": 0.4}, {"wall_s": 9.0}
    ),
    "time, all signals ignored": Attack(
        "import signal, time\n"
        "for n in range(1, 64):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "time.sleep(30)",
        _limit("time"),
        {"wall_s": 0.4},
    ),
    "processor": Attack(
        "while True: pass", lambda r: r.code == 128 + 24, {"cpu_s": 1}, {"cpu_s": 90, "wall_s": 2.0}
    ),
    "endless output": Attack("while True: print('x' * 10000)", _limit("output")),
    "output beyond what is kept": Attack(
        "import sys; sys.stdout.write('begin' + 'x' * 500000 + 'end'); sys.stderr.write('y' * 300000)",
        lambda r: (
            r.code == 0
            and r.stdout.startswith(b"begin")
            and r.stdout.endswith(b"end")
            and len(r.stdout) <= SMALL.output
            and b"bytes left out" in r.stdout
            and (r.stdout_total, r.stderr_total) == (500008, 300000)
            and r.truncated
        ),
    ),
    "input that is not read": Attack("print('done')", _says("done"), stdin=b"x" * (5 << 20)),
    "input that is echoed": Attack(
        "import sys\n"
        "for block in iter(lambda: sys.stdin.buffer.read(4096), b''): sys.stdout.buffer.write(block)",
        lambda r: r.code == 0 and r.stdout_total == 3 << 20,
        stdin=b"y" * (3 << 20),
    ),
    "kills all it can": Attack(
        "import os, signal\nos.kill(-1, signal.SIGKILL)", lambda r: r.code is not None
    ),
}

# What a command leaves behind, each with a number by which it is found on the host.
SURVIVORS = {
    "background": "sleep {n} & exit 0",
    "holds the pipes": "(sleep {n}; echo late) & exit 0",
    "own session": "setsid sleep {n} & exit 0",
    "orphan": "(setsid sh -c 'sleep {n} & exit' &) ; exit 0",
    "nothing open": "(setsid sleep {n} <&- >&- 2>&- &) ; exit 0",
    "at a limit": "setsid sleep {n} & sleep 60",
    "signals ignored": "trap '' TERM HUP INT; setsid sleep {n} & sleep 60",
}
