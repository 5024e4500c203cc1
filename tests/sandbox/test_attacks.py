"""Nothing a command tries gets out of the sandbox, and each part is shown to be what holds it.

drive.py does the work, once as whoever runs the tests and, if that is root, once as an ordinary user. Root
counts twice: given up (the command is nobody) and, where that does not work, kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "libmachine"
PYTHON = "/usr/bin/python3"
IDENTITIES = ("user", "nobody", "root") if os.geteuid() == 0 else ("user",)


def _works() -> str:
    """Why these tests cannot run here, "" if they can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    asked = [PYTHON, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    try:
        if subprocess.run(asked, check=False).returncode:
            return f"{PYTHON} is older than 3.11"
    except OSError:
        return f"there is no {PYTHON}"
    tried = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()


pytestmark = pytest.mark.skipif(bool(_works()), reason=_works())


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[str, Any]]:
    """identity -> what drive.py saw."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="mt-") as name:
        place = Path(name)
        # where an ordinary user can read it, whatever the checkout's own directory allows
        place.chmod(0o755)
        shutil.copytree(HERE, place / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        (place / "libmachine").mkdir()
        for part in ("__init__.py", "errors.py"):
            shutil.copy(PACKAGE / part, place / "libmachine")
        shutil.copytree(PACKAGE / "sandbox", place / "libmachine/sandbox")
        command = [PYTHON, "-B", str(place / "tests/drive.py"), str(place)]
        users: list[dict[str, Any]] = [{}]
        if os.geteuid() == 0:
            users.append({"user": 61234, "group": 61234, "extra_groups": []})
        started = [
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PATH": "/usr/bin:/bin"}, **user
            )
            for user in users
        ]
        found: dict[str, Any] = {}
        for one in started:
            out, err = one.communicate(timeout=600)
            assert one.returncode == 0, err.decode()
            found |= json.loads(out)
        yield found


@pytest.fixture(params=IDENTITIES)
def report(request: pytest.FixtureRequest, reports: dict[str, Any]) -> dict[str, Any]:
    if request.param not in reports:
        pytest.skip("root cannot be given up here")
    found: dict[str, Any] = {"identity": request.param, **reports[request.param]}
    return found


def test_isolation_is_measured(report: dict[str, Any]) -> None:
    assert report["isolation"]["missing"] == []
    assert report["isolation"]["isolated"] is True


def test_nothing_escapes(report: dict[str, Any]) -> None:
    assert [name for name, ended in report["whole"].items() if ended == "escaped"] == []
    assert len(report["whole"]) >= 120


def test_each_part_is_what_holds_it(report: dict[str, Any]) -> None:
    assert {name: ended for name, ended in report["weak"].items() if ended != "escaped"} == {}
    assert len(report["weak"]) >= 70


def test_a_part_taken_away_is_named(report: dict[str, Any]) -> None:
    assert [name for name, told in report["measured"].items() if not told] == []
    assert len(report["measured"]) >= 15


def test_limits_hold(report: dict[str, Any]) -> None:
    assert {name: seen for name, (held, seen) in report["held"].items() if not held} == {}


def test_a_lifted_limit_lets_it_pass(report: dict[str, Any]) -> None:
    assert {name: seen for name, (held, seen) in report["lifted"].items() if held} == {}
    assert report["identity"] == "root" or len(report["lifted"]) >= 10


def test_nothing_outlives_its_command(report: dict[str, Any]) -> None:
    assert {name: left for name, left in report["survivors"].items() if left} == {}
    assert report["orphaned"] == []


def test_descriptors_are_closed(report: dict[str, Any]) -> None:
    assert report["descriptors"] <= 20
