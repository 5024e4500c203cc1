"""The one table of environment variables: name, default, meaning.

Only this module and libmachine.cmd read the environment, so that a library call
depends on its arguments alone. An option beats a variable; a machine's own files beat both
MACHINE_HARNESS and MACHINE_JUDGE_MODEL, which are for machines that name none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple


class Variable(NamedTuple):
    """One variable: its name, the value used when unset (None: none), one line of meaning."""

    name: str
    default: str | None
    meaning: str


VARIABLES = (
    Variable("MACHINE_WORKSPACE", None, "project directory, the one that holds machines/"),
    Variable("MACHINE_DIR", None, "store directory; default .machine in the project"),
    Variable("MACHINE_PATH", None, "further directories of machines, separated by colons"),
    Variable("MACHINE_HARNESS", None, "harness for machines that name none"),
    Variable(
        "MACHINE_ENDPOINTS", None, "further endpoints: NAME=URL, separated by spaces; NAME_API_KEY is the key"
    ),
    Variable("MACHINE_LEDGER", None, "ledger file of the machine-budget around this command"),
    Variable("MACHINE_JUDGE_MODEL", None, "model of the judges that name none"),
    Variable("MACHINE_COUNTERPART_MODEL", None, "model of counterparts, in place of their own"),
    Variable("OPENAI_API_KEY", None, "key of the openai endpoint"),
    Variable("OPENAI_BASE_URL", None, "address of the openai endpoint"),
    Variable("OPENROUTER_API_KEY", None, "key of the openrouter endpoint"),
    Variable("TINKER_API_KEY", None, "key of the tinker endpoint"),
    Variable("TYPESAFE_API_KEY", None, "key of the decision model that jev asks"),
    Variable("TYPESAFE_BASE_URL", None, "its address; default https://api.typesafe.ai"),
    Variable("MACHINE_LOCAL_MODEL", None, "GGUF file that local/... ids are served from"),
    Variable("MACHINE_LOCAL_THREADS", None, "threads of the local model; default: all cores, at most 4"),
    Variable("MACHINE_LOCAL_DAEMON", "1", "0: each command loads a local model itself; fake: none is loaded"),
    Variable("MACHINE_CACHE", None, "directory of unpacked weights; default ~/.cache/machine"),
    Variable("TINKER_BASE_URL", None, "address of the trainer; default the local one, else Tinker's"),
    Variable(
        "MACHINE_PYTHON", None, "a Python that has libmachine[sft], for training where this one has not"
    ),
    Variable("MACHINE_SANDBOX", None, "bubblewrap or plain: what runs commands; default the one that works"),
    Variable("MACHINE_FSYNC", "1", "0: do not wait for the disk (tests and bulk work)"),
    Variable("MACHINE_DEBUG", None, "1: show tracebacks"),
    Variable("NO_COLOR", None, "set: no colour on terminals"),
    Variable("COLUMNS", None, "width of tables where stdout is no terminal; default 80"),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}


def get(name: str) -> str | None:
    """The value of a variable of the table, or its default. An empty value counts as unset."""
    return os.environ.get(name) or _BY_NAME[name].default


def endpoints() -> dict[str, str]:
    """Name -> address of the endpoints in MACHINE_ENDPOINTS."""
    pairs = (word.partition("=") for word in (get("MACHINE_ENDPOINTS") or "").split())
    return {name: url for name, equals, url in pairs if equals and name and url}


def key_of(endpoint: str) -> str | None:
    """The API key of an endpoint: NAME_API_KEY."""
    return os.environ.get(f"{endpoint.upper().replace('-', '_')}_API_KEY") or None


def secrets() -> dict[str, str]:
    """Name -> value of every key in the environment: what no log, child or stored run may hold.

    Values shorter than 8 characters are placeholders, not secrets.
    """
    ends = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")
    return {name: value for name, value in os.environ.items() if name.endswith(ends) and len(value) >= 8}


def cache_dir() -> str:
    """Directory for unpacked weights and the like (created by who writes there)."""
    chosen = get("MACHINE_CACHE")
    if chosen:
        return chosen
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "machine")


def child_environment() -> dict[str, str]:
    """Environment for helper processes of ours: what a program needs to start, and no secrets."""
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME", "TERM", "SSL_CERT_FILE")
    return {name: os.environ[name] for name in keep if name in os.environ}


_PIP_NAMES = {
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR", "NETRC", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"),
}
_OPENMP = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}


def pip_environment() -> dict[str, str]:
    """Environment for pip: what it needs to reach the index it is set up for; no keys of ours."""
    extra = {k: v for k, v in os.environ.items() if k.startswith("PIP_") or k.upper() in _PIP_NAMES}
    return {**child_environment(), **extra}


@contextlib.contextmanager
def patient_openmp() -> Iterator[None]:
    """While an OpenMP library is loaded: its threads sleep while they wait, unless the user said otherwise.

    By default they spin, and on a shared processor that made two threads six times slower than one.
    """
    ours = {"OMP_WAIT_POLICY": "passive"} if not os.environ.keys() & _OPENMP else {}
    os.environ.update(ours)  # OpenMP reads it once, when it is loaded
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
