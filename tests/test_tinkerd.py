"""The local trainer, tested by the official SDK and the unmodified cookbook.

Both need the extra `sft`. MACHINE_PYTHON names a Python that has it, and pytest (tests/run makes one);
without it this Python must. Each file of tests/tinkerd/check_*.py is run there by its own pytest, with
none of the caller's settings and keys.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CHECKS = sorted((ROOT / "tests" / "tinkerd").glob("check_*.py"))
LIMIT_S = 900
PYTHON = os.environ.get("MACHINE_PYTHON", sys.executable)
NEEDED = "import tinker, tinker_cookbook, torch, peft, gguf, pytest"


def environment(tmp_path: Path) -> dict[str, str]:
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE")
    cache = os.environ.get("TEST_CACHE", str(tmp_path / "cache"))
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "PYTHONPATH": str(ROOT),
        "MACHINE_CACHE": cache,
        "MACHINE_FSYNC": "0",
        "HF_HUB_OFFLINE": "1",
    }


def test_environment(tmp_path: Path) -> None:
    """Says once, plainly, what the failures below would say at length."""
    done = subprocess.run(
        [PYTHON, "-c", NEEDED], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (
        f"{PYTHON} lacks the extra 'sft'; set MACHINE_PYTHON to one with pip install -e '.[local,sft,test]': "
        + done.stderr.strip().rpartition("\n")[2]
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda path: path.stem)
def test_trainer(check: Path, tmp_path: Path) -> None:
    words = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(check.parent)]
    words += ["--confcutdir", str(check.parent), "-p", "no:cacheprovider", "--durations=5", "-W", "ignore"]
    done = subprocess.run(
        [PYTHON, *words, f"--basetemp={tmp_path / 'inner'}", str(check)],
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout
