"""One runner for both kinds of test: each t*.sh is a pytest item, run with a private HOME and project."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 900

os.environ["MACHINE_LOCAL_DAEMON"] = "0"  # no server is left behind; a test that wants one says so

# A loaded machine is no fault of the code: no example has a deadline.
hypothesis.settings.register_profile("ours", deadline=None)
hypothesis.settings.load_profile("ours")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect tNNNN-verb.sh."""
    if file_path.suffix == ".sh" and file_path.name[:2].strip("0123456789") == "t":
        return ShellFile.from_parent(parent, path=file_path)
    return None


class ShellFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield ShellTest.from_parent(self, name=self.path.stem)


class ShellTest(pytest.Item):
    def runtest(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            ["bash", str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise ShellFailure(done.stdout.decode("utf-8", "replace"))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> str:
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


class ShellFailure(Exception):
    """What a shell test printed before it failed."""
