"""Starts a command without bubblewrap, and ends all that is left of it. Run as a script, alone.

It reads a plan (JSON) from the descriptor it is given, gives itself Landlock's rules, limits and the filter
of system calls, and starts the command. What the command leaves behind becomes its child, and is killed
before it ends: on its own when the command ends, at SIGTERM, and when the process that started it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

NOT_STARTED = 125
SAYS = b"machine: the command did not start: "

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 36, 38, 22
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # Landlock, alike on every architecture
_READ, _WRITE_FILE, _READ_FILE, _TRUNCATE = 0b1101, 1 << 1, 1 << 2, 1 << 14
_OF_FILES = 0b111 | _TRUNCATE
_MAKE_DEVICES = 1 << 6 | 1 << 11


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def main() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(int(sys.argv[1]), encoding="utf-8") as file:
        plan: dict[str, Any] = json.load(file)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda number, frame: _leave())
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        _become(plan, libc)
    code = _wait_for(child)
    _sweep()
    return code


def _become(plan: dict[str, Any], libc: ctypes.CDLL) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir(plan["directory"])
        for kind, value in plan["limits"]:
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            late = value + 2 if kind == resource.RLIMIT_CPU else value
            resource.setrlimit(kind, (value, late if hard == resource.RLIM_INFINITY else min(late, hard)))
        with contextlib.suppress(OSError):
            os.nice(5)
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        restrict(libc, plan["readable"], plan["writable"], plan["devices"])
        code = bytes.fromhex(plan["filter"])
        if code:
            buffer = ctypes.create_string_buffer(code, len(code))
            program = _Program(len(code) // 8, ctypes.addressof(buffer))
            if libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0):
                raise OSError(ctypes.get_errno(), "the filter of system calls was refused")
        words = [os.fsencode(word) for word in plan["argv"]]
        try:
            os.execvpe(words[0], words, plan["environment"])
        except OSError as error:
            os.write(2, b"%s: %s\n" % (words[0], (error.strerror or "").encode()))
            os._exit(126 if isinstance(error, PermissionError) else 127)
    except BaseException as error:
        os.write(2, SAYS + str(error).encode("utf-8", "replace") + b"\n")
    finally:
        os._exit(NOT_STARTED)


def restrict(libc: ctypes.CDLL, readable: list[str], writable: list[str], devices: list[str]) -> int:
    """Close the file system to this process but for these paths. Landlock's version, 0 if there is none."""
    version = libc.syscall(_CREATE_RULESET, None, 0, 1)
    if version < 1:
        return 0
    # each version knows more rights: rename over directories, truncate, (sockets,) ioctl on devices
    handled = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    rules = _Ruleset(handled, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(rules), size, 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock refused the rules")
    for path in readable:
        _allow(libc, ruleset, path, _READ & handled)
    for path in writable:
        _allow(libc, ruleset, path, handled & ~_MAKE_DEVICES)
    for path in devices:
        _allow(libc, ruleset, path, (_READ_FILE | _WRITE_FILE) & handled)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "Landlock refused to begin")
    os.close(ruleset)
    return int(version)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):
        rights &= _OF_FILES
    rule = _Beneath(rights, descriptor)
    if libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0):
        raise OSError(ctypes.get_errno(), f"Landlock refused the rule for {path}")
    os.close(descriptor)


def _wait_for(child: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _leave() -> None:
    _sweep()
    os._exit(128 + signal.SIGTERM)


def _sweep() -> None:
    """Kill all that is below, stopped first so that none can fork while the others die."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        below = _below()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in below:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        try:
            while os.waitpid(-1, 0 if below else os.WNOHANG)[0]:
                below = []
        except ChildProcessError:
            return


def _below() -> list[int]:
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                waiting += children
    return found


if __name__ == "__main__":
    sys.exit(main())
