"""Who holds a reservation, and whether it still lives: pid namespace, pid and start time of a process.

A pid alone would come again; a lock would be inherited by forks and lost when a file is closed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

UNKNOWN_S = 3600.0  # how long a holder counts as alive that this process cannot see


def holder() -> str:
    """This process as the holder of a reservation."""
    return _holder(os.getpid())


@lru_cache(maxsize=4)
def _holder(pid: int) -> str:
    return f"{_namespace()}-{pid}-{_started(pid)}"


def is_alive(row: Mapping[str, Any]) -> bool:
    """Does the process live that holds this reservation? One in another pid namespace counts as alive
    for an hour: its pid says nothing here."""
    if row.get("holder") == holder():
        return True
    namespace, _, rest = str(row.get("holder")).partition("-")
    pid, _, started = rest.partition("-")
    if namespace != str(_namespace()):
        try:
            return time.time() - datetime.fromisoformat(str(row.get("at"))).timestamp() < UNKNOWN_S
        except ValueError:
            return False
    return pid.isdigit() and _started(int(pid)) == started


@lru_cache(maxsize=1)
def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started(pid: int) -> str | None:
    """When a process began, in ticks since boot; None if it has ended, a zombie included."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
