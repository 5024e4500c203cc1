"""One server per store: started on demand, shared, private, gone when nobody asks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from libmachine.errors import MachineError
from libmachine.tinkerd import daemon

BOOT = Path(__file__).resolve().parents[2] / "libmachine" / "boot.py"


def tinkerd(store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BOOT), "tinkerd", "machine-tinkerd", "--engine", "fake"]
    return subprocess.run(
        [*command, "--dir", str(store), *words], capture_output=True, text=True, timeout=60, check=False
    )


def gone(store: Path, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not daemon.is_locked(str(store / "tinkerd" / "fake" / "lock")):
            return True
        time.sleep(0.05)
    return False


def test_started_on_demand_and_shared(tmp_path: Path) -> None:
    found: list[tuple[str, str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(daemon.connect(str(tmp_path), "fake"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1
    assert found[0][1].startswith("tml-")
    assert found[0][0].startswith("http://127.0.0.1:")
    place = tmp_path / "tinkerd" / "fake"
    assert (place / "runtime.json").stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700
    told = tinkerd(tmp_path, "--status", "--json")
    assert told.returncode == 0
    assert json.loads(told.stdout)["base_url"] == found[0][0]
    assert found[0][1] not in told.stdout
    second = tinkerd(tmp_path)
    assert second.returncode == 128
    assert "runs in" in second.stderr
    assert tinkerd(tmp_path, "--stop").returncode == 0
    assert tinkerd(tmp_path, "--stop").returncode == 1
    assert tinkerd(tmp_path, "--status").returncode == 1
    assert not (place / "runtime.json").exists()


def test_keys_do_not_reach_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-the-server")
    daemon.connect(str(tmp_path), "fake")
    found = daemon.running(str(tmp_path), "fake")
    assert found is not None
    if os.path.exists("/proc"):
        assert b"sk-not-for" not in Path(f"/proc/{found['pid']}/environ").read_bytes()
    assert daemon.stop(str(tmp_path), "fake")


def test_ends_when_idle(tmp_path: Path) -> None:
    daemon.connect(str(tmp_path), "fake", idle_s=1.0)
    assert gone(tmp_path, 10)
    assert daemon.running(str(tmp_path), "fake") is None


def test_a_killed_server_is_replaced(tmp_path: Path) -> None:
    first = daemon.connect(str(tmp_path), "fake")
    found = daemon.running(str(tmp_path), "fake")
    assert found is not None
    os.kill(found["pid"], signal.SIGKILL)
    assert gone(tmp_path, 10)
    assert (tmp_path / "tinkerd" / "fake" / "runtime.json").exists(), "stale, as a crash leaves it"
    assert daemon.connect(str(tmp_path), "fake") != first
    assert daemon.stop(str(tmp_path), "fake")


def test_one_that_cannot_train_gives_way(tmp_path: Path) -> None:
    """As a command starts it whose Python has no packages for training."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'tinker' else find(name, package)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(BOOT), "tinkerd", "machine-tinkerd", "--engine", "fake", "--dir", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "without")},
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while (found := daemon.running(str(tmp_path), "fake")) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert found["pid"] == process.pid and "'tinker'" in found["trains_not"]
    daemon.connect(str(tmp_path), "fake")
    trains = daemon.running(str(tmp_path), "fake")
    assert trains is not None and trains["pid"] != process.pid and "trains_not" not in trains
    assert process.wait(10) == 0
    assert daemon.stop(str(tmp_path), "fake")


def test_a_signal_ends_it(tmp_path: Path) -> None:
    daemon.connect(str(tmp_path), "fake")
    found = daemon.running(str(tmp_path), "fake")
    assert found is not None
    os.kill(found["pid"], signal.SIGTERM)
    assert gone(tmp_path, 10)
    assert not (tmp_path / "tinkerd" / "fake" / "runtime.json").exists()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "tinkerd" / "fake").mkdir(parents=True)
    (tmp_path / "tinkerd" / "fake" / "checkpoints").write_text("in the way")
    with pytest.raises(MachineError, match=r"did not start: .*checkpoints"):
        daemon.connect(str(tmp_path), "fake")
    with pytest.raises(MachineError, match="no engine 'mlx'"):
        daemon.connect(str(tmp_path), "mlx")


def test_the_fake_engine_needs_no_torch() -> None:
    code = (
        "import sys, libmachine.tinkerd.serve, libmachine.tinkerd.engine_fake, libmachine.tinkerd.wire as w;"
        "w.messages(); print([m for m in ('torch', 'tinker', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_an_install_lends_this_python_nothing_but_itself(tmp_path: Path) -> None:
    """Run from a wheel's site-packages, which belong to another Python: nothing else there is ours."""
    site = tmp_path / "site-packages"
    shutil.copytree(BOOT.parent, site / "libmachine", ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("click", "orjson", "pydantic", "httpx", "numpy", "tinker", "google"):
        (site / f"{module}.py").write_text(f"raise SystemExit('{module} of another Python')\n")
    boot = str(site / "libmachine" / "boot.py")
    program = (
        "import runpy, sys\n"
        "sys.argv = [sys.argv[1], 'tinkerd', 'machine-tinkerd', '--status', '--dir', sys.argv[2]]\n"
        "try: runpy.run_path(sys.argv[0])\n"
        "except SystemExit: pass\n"
        "from libmachine.tinkerd import daemon\n"
        "print(daemon.__file__, daemon.connect(sys.argv[-1], 'fake', idle_s=30)[0])\n"
    )
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, boot, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=clean,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        where, url = done.stdout.splitlines()[-1].split()
        assert where.startswith(str(site)) and url.startswith("http://127.0.0.1:")
    finally:
        daemon.stop(str(tmp_path), "fake")
    for words in ([boot], ["-P", boot]):
        command = [sys.executable, *words, "select", "machine-select", "--help"]
        told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=clean)
        assert (told.returncode, told.stderr) == (0, "")
