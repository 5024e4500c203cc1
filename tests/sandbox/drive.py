"""Run every probe as whoever starts this, in whole sandboxes and in those with a part taken away.

    python3 drive.py SOURCE  ->  one JSON object: {identity: {isolation, whole, weak, facts, attacks, ...}}

SOURCE: the directory libmachine is in. Run by the system's python3, so that an ordinary user can.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])

import attacks
import probes

from libmachine.sandbox import seccomp, view
from libmachine.sandbox.base import Limits
from libmachine.sandbox.bubblewrap import Bubblewrap

FILTER, USERNS = probes.FILTER, probes.USERNS
CANARY = "canary-9f3b1c"
PROGRAM = Path(probes.__file__).read_bytes()
PYTHON = "/usr/bin/python3"


class Weakened(Bubblewrap):
    """The same with parts taken away or turned into what they keep out."""

    def __init__(self, like: Bubblewrap, without: frozenset[str]) -> None:
        super().__init__(like.program)
        self._measured, self._stage, self.without = like._measured, like._stage, without
        if probes.OUTER in without:
            self.outer = dict(os.environ)

    def parts(self, *arguments: Any) -> list[view.Part]:
        parts = super().parts(*arguments)
        if probes.WHOLE in self.without:
            gone = {*view.programs(), "few files of /etc", "files of its own in /etc", "/var"}
            parts = [part for part in parts if part.name not in gone]
            first = next(n for n, part in enumerate(parts) if part.name == "/proc of its own")
            parts.insert(first, view.Part("all", ("--ro-bind", "/", "/")))
        open_ = {
            "/usr": ("--bind", "/usr", "/usr"),
            "/dev of its own": ("--dev-bind", "/dev", "/dev"),
        }
        kept = []
        for part in parts:
            if part.name not in self.without:
                kept.append(part)
            elif part.name == "mounts":
                kept.append(view.Part(part.name, tuple(w.replace("--ro-bind", "--bind") for w in part.words)))
            elif part.name in open_:
                kept.append(view.Part(part.name, open_[part.name]))
        return kept


class Host:
    """What there is to find on the host: files, servers, a process, and what says which it is."""

    def __init__(self, top: Path, stack: contextlib.ExitStack) -> None:
        self.run, self.mount, self.hooks = top / "run", top / "mount", top / "run" / "hooks"
        for place in (self.run, self.mount, self.hooks):
            place.mkdir()
            place.chmod(0o777)
        beside = top / "beside"
        beside.write_text(CANARY)
        self.stack = stack
        in_tmp, in_shm = self._file("/tmp"), self._file("/dev/shm")
        self._unix(str(self.run / "socket"))
        self._unix(str(self.mount / "socket"))
        abstract = f"\0machine-probe-{os.getpid()}"
        self._unix(abstract)
        port = self._listen(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        sleeper = subprocess.Popen(["sleep", "86399.5"])
        stack.callback(sleeper.wait)
        stack.callback(sleeper.kill)
        os.environ["MACHINE_PROBE_API_KEY"] = CANARY
        self.facts: dict[str, Any] = {
            **{"canary": CANARY, "beside": str(beside), "in_tmp": in_tmp, "in_shm": in_shm, "port": port},
            **{"mount": str(self.mount), "mount_in_it": str(self.hooks), "socket": str(self.run / "socket")},
            **{"abstract": abstract, "pid": sleeper.pid, "sleeper": "86399.5", "host": socket.gethostname()},
            "calls": seccomp.calls(os.uname().machine),
            "sysv": self._segment(),
        }

    def _file(self, folder: str) -> str:
        if not os.path.isdir(folder):
            return "/nonexistent"
        descriptor, path = tempfile.mkstemp(dir=folder)
        os.write(descriptor, CANARY.encode())
        os.fchmod(descriptor, 0o644)
        os.close(descriptor)
        self.stack.callback(os.unlink, path)
        return path

    def _unix(self, address: str) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        if not address.startswith("\0"):
            os.chmod(address, 0o777)
        server.listen()
        self._listen(server)

    def _listen(self, server: socket.socket) -> socket.socket:
        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=accept, daemon=True).start()
        self.stack.callback(server.close)
        self.stack.callback(server.shutdown, socket.SHUT_RDWR)  # wakes the one who accepts
        return server

    def _segment(self) -> int:
        libc = ctypes.CDLL(None)
        found = int(libc.shmget(0, 4096, 0o1600))
        self.stack.callback(libc.shmctl, found, 0, None)
        return found

    def has(self, need: str) -> bool:
        """Is this true of the machine, so that the attack could work?"""
        if need.startswith("/"):
            return os.path.lexists(need)
        if need.startswith("family "):
            with contextlib.suppress(OSError):
                socket.socket(int(need.split()[1]), socket.SOCK_DGRAM).close()
                return True
            return False
        if need.startswith("call "):
            return need.split()[1] in self.facts["calls"]
        return {
            "sysv": lambda: self.facts["sysv"] >= 0,
            "interfaces": lambda: any(name != "lo" for _, name in socket.if_nameindex()),
            "host name": lambda: self.facts["host"] != "sandbox",
            "not 1000": lambda: os.geteuid() != view.UID,
            "nested": lambda: True,
            "ia32": lambda: os.uname().machine == "x86_64" and os.path.exists("/proc/sys/abi/vsyscall32"),
            "": lambda: True,
        }[need]()


def batch(provider: Bubblewrap, host: Host, names: Sequence[str]) -> dict[str, str]:
    """name -> how the probe ended, all in one start."""
    result = provider.run(
        host.run,
        [PYTHON, "-", *names],
        stdin=PROGRAM,
        limits=Limits(wall_s=60.0),
        mounts=[host.mount, host.hooks],
        environment=[("PROBE", json.dumps(host.facts))],
    )
    found = {}
    for line in result.stdout.splitlines():
        with contextlib.suppress(ValueError):
            name, outcome = json.loads(line)
            found[name] = outcome
    if set(found) != set(names):
        raise SystemExit(f"{set(names) - set(found)}: {result.code} {result.limit} {result.stderr!r}")
    return found


def probe(provider: Bubblewrap, host: Host, identity: str) -> dict[str, Any]:
    weak: dict[str, str] = {}
    groups: dict[frozenset[str], list[str]] = {}
    for name, one in probes.PROBES.items():
        if one.without and identity in one.where and host.has(one.needs):
            groups.setdefault(one.without, []).append(name)
    for without, names in groups.items():
        weak |= batch(Weakened(provider, without), host, names)
    return {"whole": batch(provider, host, list(probes.PROBES)), "weak": weak}


# Parts that a command inside cannot tell from their absence, or that hold something else.
UNSEEN = {
    *("dies with us", "cgroup namespace", "mounts", "directory", "mounts in it", "files of its own in /etc"),
    *("/usr", "/var", "few files of /etc", "user namespace", "fixed environment", "starts in the directory"),
    *("/proc of its own", "/dev of its own", "no terminal"),
    *view.programs(),
}


def measure(provider: Bubblewrap, identity: str) -> dict[str, list[str]]:
    """Part taken away -> what isolation() says is missing then."""
    told = {}
    limits, values = Limits(), view.variables("/x", ())
    parts = provider.parts(lambda content: 0, "/x", (), {}, values, limits)
    # what another part covers can be seen to be missing only without that
    covers = {FILTER: {USERNS}, USERNS: {FILTER}, "empty environment": {probes.OUTER}}
    for name in {part.name for part in parts} - UNSEEN | {probes.OUTER, probes.WHOLE}:
        if name != probes.CAPS or identity == "root":  # others have none to lose
            weakened = Weakened(provider, frozenset({name} | covers.get(name, set())))
            told[name] = list(weakened._probe(()).missing)
    return told


def attack(provider: Bubblewrap, host: Host, lift: bool) -> dict[str, Any]:
    """Each attack under its limits, and (lift) without the one that stops it."""
    held, lifted = {}, {}
    for name, one in attacks.ATTACKS.items():
        limits = dataclasses.replace(attacks.SMALL, **one.limits)
        for kept, changed in ((held, limits), (lifted, dataclasses.replace(limits, **one.lifted))):
            if kept is lifted and not (lift and one.lifted):
                continue
            with tempfile.TemporaryDirectory(dir=host.run.parent) as place:
                argv = [PYTHON, "-c", one.program]
                result = provider.run(Path(place), argv, stdin=one.stdin, limits=changed)
                clear(place)
            told = dataclasses.asdict(result)
            shown = {
                key: value[-120:].decode("utf-8", "replace") if isinstance(value, bytes) else value
                for key, value in told.items()
            }
            kept[name] = [bool(one.held(result)), shown]
    return {"held": held, "lifted": lifted}


def clear(place: str) -> None:
    from libmachine.sandbox.files import Root

    with Root(place) as root:
        root.clear()


OURS = 100 * os.getpid() + 100_000
"""Seconds that the sleeps of this process have, which tell them from those of a test beside it."""


def survive(provider: Bubblewrap, host: Host) -> dict[str, list[str]]:
    """Processes of the host that a command left, looked for the moment it was over."""
    left = {}
    for number, (name, script) in enumerate(attacks.SURVIVORS.items(), start=OURS + 1):
        argv = ["/bin/sh", "-c", script.format(n=number)]
        provider.run(host.run, argv, limits=Limits(wall_s=0.5))
        left[name] = commands(f"sleep\0{number}\0")
    return left


def commands(text: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
            if text in file.read():
                found.append(pid)
    return found


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from libmachine.sandbox.bubblewrap import Bubblewrap
Bubblewrap().run(Path(sys.argv[2]), ["/bin/sh", "-c", "setsid sleep N & sleep N".replace("N", sys.argv[3])])
"""


def orphaned(host: Host) -> list[str]:
    """What is left when the one who runs the command is killed."""
    ours = subprocess.Popen([sys.executable, "-c", KILLED, sys.argv[1], str(host.run), str(OURS)])
    wanted = f"sleep\0{OURS}\0"
    until = time.monotonic() + 20
    while len(commands(wanted)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    began = len(commands(wanted))
    ours.kill()
    ours.wait()
    until = time.monotonic() + 5
    while commands(wanted) and time.monotonic() < until:
        time.sleep(0.02)
    return commands(wanted) if began == 2 else [f"{began} began"]


def providers() -> Iterator[tuple[str, Bubblewrap]]:
    best = Bubblewrap()
    best.isolation()
    if os.geteuid():
        yield "user", best
        return
    if best._stage is not None:
        yield "nobody", best
    kept = Bubblewrap()
    kept._measured = best.isolation()
    yield "root", kept


def main() -> None:
    report: dict[str, Mapping[str, Any]] = {}
    for identity, provider in providers():
        with contextlib.ExitStack() as stack:
            top = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="mp-")))
            top.chmod(0o755)
            host = Host(top, stack)
            report[identity] = {
                "isolation": dataclasses.asdict(provider.isolation()),
                **probe(provider, host, identity),
                "measured": measure(provider, identity),
                **attack(provider, host, lift=identity != "root"),
                "survivors": survive(provider, host),
                "orphaned": orphaned(host),
                "descriptors": len(os.listdir("/proc/self/fd")),
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
