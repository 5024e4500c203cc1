"""The unmodified cookbook trains against the fake engine, evaluates, is killed and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from libmachine.tinkerd import daemon

RUN = Path(__file__).with_name("cookbook_run.py")
WAIT_S = 180


def lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def start(tmp_path: Path, log: Path, steps: int) -> subprocess.Popen[bytes]:
    url, key = daemon.connect(str(tmp_path / "store"), "fake")
    variables = os.environ | {"TINKER_BASE_URL": url, "TINKER_API_KEY": key, "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, str(RUN), str(log), str(tmp_path / "data.jsonl"), str(steps)]
    output = open(tmp_path / "output", "ab")  # noqa: SIM115  (the child's)
    return subprocess.Popen(words, env=variables, cwd=tmp_path, stdout=output, stderr=output)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Say {n}."},
                {"role": "assistant", "content": f"It is {n}."},
            ]
        }
        for n in range(10)
    ]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_version() -> None:
    assert metadata.version("tinker-cookbook") == "0.5.8"


def test_trains_evaluates_and_resumes(tmp_path: Path, data: Path) -> None:
    log = tmp_path / "log"
    try:
        first = start(tmp_path, log, 1_000_000)
        deadline = time.monotonic() + WAIT_S
        while len(lines(log / "checkpoints.jsonl")) < 2:
            assert first.poll() is None, (tmp_path / "output").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        saved = lines(log / "checkpoints.jsonl")[-1]
        reached = saved["batch"] + 4 * saved.get("epoch", 0)
        assert start(tmp_path, log, reached + 4).wait(WAIT_S) == 0, (tmp_path / "output").read_text()[-2000:]
    finally:
        daemon.stop(str(tmp_path / "store"), "fake")
    assert "Resumed training from" in (tmp_path / "output").read_text()
    ends = lines(log / "checkpoints.jsonl")
    assert ends[-1]["name"] == "final", (ends, (tmp_path / "output").read_text()[-2000:])
    assert ends[-1]["state_path"].startswith("tinker://")
    assert ends[-1]["state_path"].split("/")[2] != saved["state_path"].split("/")[2], "another run went on"
    rows = [row for row in lines(log / "metrics.jsonl") if "train_mean_nll" in row]
    # the killed one may have come to this step too, or not yet
    began = max(number for number, row in enumerate(rows) if row["step"] == reached)
    assert [row["step"] for row in rows[began:]] == list(range(reached, reached + 4))
    for number, row in enumerate(rows):
        # The fake's loss falls by a fifth a step, so a loss tells how many steps the weights have had.
        # The cookbook saves `batch 4` when it has submitted batches 4 and 5 (submit_ahead=1), and after
        # a resume trains them again: its checkpoints are two steps ahead of their names.
        steps = row["step"] + (2 if number >= began else 0)
        assert row["train_mean_nll"] == pytest.approx(3.0 * 0.8**steps, rel=0.1), row
        if "test/nll" in row:
            assert row["test/nll"] == pytest.approx(3.0 * 0.8**steps, rel=0.1), row
    assert sum("test/nll" in row for row in rows[began:]) == 2
