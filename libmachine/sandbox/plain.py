"""Commands without bubblewrap: an empty environment, Landlock where the kernel has it, limits. No isolation.

Other processes stay visible by number, the network is only refused where the filter of system calls is
known, and a fast enough forker may escape the kill. So `isolated` is always false.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from libmachine.errors import MachineError
from libmachine.sandbox import files, launch, seccomp, usage, view, watch
from libmachine.sandbox import limits as rlimits
from libmachine.sandbox.base import DEFAULT, Isolation, Limits, Result

_KILL_S = 5.0
_MISSING = (
    *("process namespace", "network namespace", "ipc namespace", "user namespace"),
    *("bounded /tmp", "a kill that nothing can run away from"),
)


class Plain:
    """The provider where nothing better works."""

    name = "plain"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._measured: Isolation | None = None

    def isolation(self) -> Isolation:
        with self._lock:
            if self._measured is None:
                self._measured = self._measure()
            return self._measured

    def run(
        self,
        directory: Path,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        limits: Limits = DEFAULT,
        mounts: Sequence[Path] = (),
        environment: Sequence[tuple[str, str]] = (),
    ) -> Result:
        view.checked_command(argv)
        place = view.checked_directory(directory)
        extra = view.checked_mounts(mounts)
        # not in the directory: what is there belongs to the command, and is looked at afterwards
        with _scratch() as scratch:
            values = {**view.variables(place, environment), "TMPDIR": scratch}
            values["XDG_CACHE_HOME"] = f"{scratch}/.cache"
            plan = {
                "argv": list(argv),
                "directory": place,
                "environment": values,
                "limits": _limits(limits),
                "readable": [*view.programs(), *view.etc(), "/etc/passwd", "/etc/group", "/proc", *extra],
                "writable": [place, scratch],
                "devices": [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")],
                "filter": _filter(),
            }
            return self._attend(plan, place, limits, stdin)

    def _attend(self, plan: dict[str, Any], place: str, limits: Limits, stdin: bytes) -> Result:
        with contextlib.ExitStack() as stack:
            plan_end = seccomp.memfd(json.dumps(plan).encode())
            stack.callback(os.close, plan_end)
            inside = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, inside)
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-B", str(launch.__file__), str(plan_end)],
                    stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    cwd="/",
                    start_new_session=True,
                    pass_fds=[plan_end],
                )
            except OSError as error:
                raise MachineError(f"the command did not start: {error}") from error
            ended = watch.attend(process, process.pid, lambda: _end(process), inside, limits, stdin)
        if ended.code == launch.NOT_STARTED and ended.stderr.startswith(launch.SAYS):
            raise MachineError(ended.stderr[len(launch.SAYS) :].decode("utf-8", "replace").strip())
        return ended.result(128 - ended.code if ended.code < 0 else ended.code)

    def _measure(self) -> Isolation:
        """Try what is promised here: a file outside, the caller's environment."""
        notes = []
        with tempfile.TemporaryDirectory(prefix="machine-probe-") as place:
            inside, secret = Path(place, "inside"), Path(place, "secret")
            inside.mkdir()
            secret.write_text("secret")
            try:
                result = self.run(inside, ["/bin/sh", "-c", f'cat "{secret}"; env'])
            except MachineError as error:
                return Isolation(False, (str(error), *_MISSING))
            if result.stdout.startswith(b"secret"):
                notes.append("files outside the directory can be read: no Landlock in this kernel")
            else:
                notes.append("files outside the directory are closed by Landlock")
        if not _filter():
            notes.append("the network is open: no filter of system calls for this processor")
        return Isolation(False, _MISSING, tuple(notes))


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    place = tempfile.mkdtemp(prefix="machine-tmp-")
    try:
        yield os.path.realpath(place)
    finally:
        with files.Root(place) as root:
            root.clear()
        os.rmdir(place)


def _filter() -> str:
    program = seccomp.program(os.uname().machine, sockets=False)
    return "" if program is None else program.hex()


def _limits(limits: Limits) -> list[tuple[int, int]]:
    """(kind, value). Not the number of processes: without a namespace the kernel counts all of the user's."""
    return [(kind, value) for kind, value in rlimits.table(limits).items() if kind != rlimits.PROCESSES]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what runs below: the launcher does it when told, and we do it if it cannot."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    until = time.monotonic() + _KILL_S
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    if process.poll() is None:
        for pid in usage.descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
