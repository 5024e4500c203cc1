"""What every provider owes its callers, asked of bubblewrap, the plain one, and a tiny one of this file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from libmachine.errors import MachineError, UsageError
from libmachine.sandbox import choose, measured, view
from libmachine.sandbox.base import DEFAULT, Isolation, Limits, Provider, Result
from libmachine.sandbox.bubblewrap import Bubblewrap
from libmachine.sandbox.plain import Plain

OURS = 100 * os.getpid() + 100_000
"""Seconds that the sleeps of this process have, which tell them from those of a test beside it."""


class Tiny:
    """A provider as another machine might be one: the directory goes there and comes back."""

    name = "tiny"

    def isolation(self) -> Isolation:
        return Isolation(False, ("everything",))

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
        with tempfile.TemporaryDirectory() as far:
            shutil.copytree(place, far, dirs_exist_ok=True, symlinks=True)
            result = self._there(far, argv, stdin, limits, view.variables(place, environment))
            for name in os.listdir(place):
                path = os.path.join(place, name)
                (shutil.rmtree if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
            shutil.copytree(far, place, dirs_exist_ok=True, symlinks=True)
        return result

    def _there(
        self, far: str, argv: Sequence[str], stdin: bytes, limits: Limits, values: dict[str, str]
    ) -> Result:
        process = subprocess.Popen(
            ["/bin/sh", "-c", 'cd "$0" && exec "$@"', far, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=values,
            start_new_session=True,
        )
        began, limit = time.monotonic(), None
        leader = threading.Thread(target=lambda: (process.wait(), _kill(process.pid)))
        leader.start()
        try:
            out, err = process.communicate(stdin, timeout=limits.wall_s)
        except subprocess.TimeoutExpired:
            limit = "time"
            _kill(process.pid)
            out, err = process.communicate()
        leader.join()
        code = None if limit else process.returncode if process.returncode >= 0 else 128 - process.returncode
        half = limits.output // 2
        kept = [x if len(x) <= limits.output else x[:half] + x[-half:] for x in (out, err)]
        return Result(code, *kept, len(out), len(err), time.monotonic() - began, limit)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


@pytest.fixture(scope="module", params=["bubblewrap", "plain", "tiny"])
def provider(request: pytest.FixtureRequest) -> Provider:
    if request.param == "tiny":
        return Tiny()
    found = choose.provider(request.param)
    if request.param == "bubblewrap" and not found.isolation().isolated:
        pytest.skip(f"bubblewrap does not work here: {found.isolation().missing}")
    return found


def sh(provider: Provider, place: Path, script: str, **more: object) -> Result:
    return provider.run(place, ["/bin/sh", "-c", script], **more)  # type: ignore[arg-type]


def test_says_what_it_isolates(provider: Provider) -> None:
    found = provider.isolation()
    assert found.isolated == (not found.missing)
    assert found.isolated == (provider.name == "bubblewrap")
    assert provider.isolation() == found


@pytest.mark.parametrize(
    ("script", "code"),
    [("true", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_says_how_it_ended(provider: Provider, tmp_path: Path, script: str, code: int) -> None:
    result = sh(provider, tmp_path, script)
    assert (result.code, result.limit, result.ok) == (code, None, code == 0)


def test_a_program_that_is_not_there(provider: Provider, tmp_path: Path) -> None:
    result = provider.run(tmp_path, ["no-such-program"])
    assert result.code == 127
    assert b"no-such-program" in result.stderr


def test_words_arrive_as_they_are(provider: Provider, tmp_path: Path) -> None:
    words = ["a b", "$HOME", "'", '"', "\n", "--", "-x", "", "*", "é", os.fsdecode(b"\xff")]
    result = provider.run(tmp_path, ["printf", "%s\\0", *words])
    assert result.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]


def test_runs_in_its_directory_and_keeps_what_it_writes(provider: Provider, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("given")
    result = sh(provider, tmp_path, "cat in; echo new > out; mkdir d; echo x > d/f; rm in")
    assert result.stdout == b"given"
    assert (tmp_path / "out").read_text() == "new\n"
    assert (tmp_path / "d/f").exists() and not (tmp_path / "in").exists()
    assert (tmp_path / "out").stat().st_uid == os.geteuid()


def test_environment_is_not_the_callers(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    result = sh(provider, tmp_path, "env", environment=[("ADDED", "yes, it\n is")])
    assert b"sk-canary" not in result.stdout and b"OPENAI" not in result.stdout
    assert b"ADDED=yes, it\n is\n" in result.stdout
    assert f"HOME={os.path.realpath(tmp_path)}\n".encode() in result.stdout


def test_mounts_can_be_read(provider: Provider, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "more").mkdir()
    (tmp_path / "more/file").write_text("read me")
    more = tmp_path / "more"
    result = sh(provider, tmp_path / "run", f"cat '{more}/file'", mounts=[more, more / "file"])
    assert (result.code, result.stdout) == (0, b"read me")


def test_input_is_given_and_may_be_left(provider: Provider, tmp_path: Path) -> None:
    assert provider.run(tmp_path, ["cat"], stdin=b"x\0\xff" * 70_000).stdout == b"x\0\xff" * 70_000
    assert provider.run(tmp_path, ["true"], stdin=b"x" * 500_000).code == 0
    assert provider.run(tmp_path, ["cat"]).stdout == b""


def test_time_is_limited(provider: Provider, tmp_path: Path) -> None:
    result = sh(provider, tmp_path, "echo begun; sleep 60", limits=Limits(wall_s=1.0))
    assert (result.code, result.limit, result.stdout, result.ok) == (None, "time", b"begun\n", False)
    assert 0.9 < result.duration_s < 50


def test_output_is_kept_to_its_ends(provider: Provider, tmp_path: Path) -> None:
    script = "printf begin; head -c 200000 /dev/zero; printf end; head -c 90000 /dev/zero >&2"
    result = sh(provider, tmp_path, script, limits=replace(DEFAULT, output=10_000))
    assert (result.stdout_total, result.stderr_total, result.truncated) == (200_008, 90_000, True)
    assert result.stdout.startswith(b"begin") and result.stdout.endswith(b"end")
    assert len(result.stdout) <= 10_000 and len(result.stderr) <= 10_000
    assert not sh(provider, tmp_path, "echo x").truncated


def test_what_is_left_running_ends_with_it(provider: Provider, tmp_path: Path) -> None:
    sh(provider, tmp_path, f"sleep {OURS} & exit 0")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"sleep {OURS}" not in listed.splitlines()


def test_what_cannot_start_is_an_error(provider: Provider, tmp_path: Path) -> None:
    for directory, argv in ((tmp_path / "none", ["true"]), (Path("/"), ["true"]), (tmp_path, [])):
        with pytest.raises(MachineError):
            provider.run(directory, argv)
    with pytest.raises(MachineError):
        provider.run(tmp_path, ["true"], environment=[("A=B", "x")])


def test_several_at_once(provider: Provider, tmp_path: Path) -> None:
    results: dict[int, Result] = {}
    places = [tmp_path / str(number) for number in range(4)]
    for place in places:
        place.mkdir()

    def work(number: int) -> None:
        results[number] = sh(provider, places[number], f"echo {number} > f; cat f")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[number].stdout for number in range(4)] == [b"%d\n" % number for number in range(4)]


# the choice, and what is measured -------------------------------------------------------


def test_the_choice_is_cached_and_named() -> None:
    assert choose.provider() is choose.provider()
    assert choose.provider("plain") is choose.provider("plain")
    assert isinstance(choose.provider("plain"), Plain)
    assert choose.provider().isolation().isolated == (choose.provider().name == "bubblewrap")
    with pytest.raises(UsageError, match="'docker' is no sandbox"):
        choose.provider("docker")


def test_a_bubblewrap_that_fails_is_not_isolated(tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    tmp_path.chmod(0o755)
    provider = Bubblewrap(str(broken))
    assert not provider.isolation().isolated
    with pytest.raises(MachineError, match="did not start"):
        provider.run(tmp_path, ["true"])


def test_a_probe_that_says_nothing_proves_nothing() -> None:
    assert measured.missing({}, measured.spaces(), "/x")
    only_the_end = measured.found(b"end=1\n")
    told = measured.missing(only_the_end, measured.spaces(), "/x")
    for part in (*measured.SPACES.values(), "no capabilities (CapEff)", "system call filter", "bounded /tmp"):
        assert part in told


INTERRUPTED = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from libmachine.sandbox import choose
signal.signal(signal.SIGINT, signal.default_int_handler)
script = "setsid sleep N & echo > begun; sleep N".replace("N", sys.argv[4])
choose.provider(sys.argv[2]).run(Path(sys.argv[3]), ["/bin/sh", "-c", script])
"""


@pytest.mark.parametrize("name", choose.NAMES)
def test_an_interrupt_ends_the_command(name: str, tmp_path: Path) -> None:
    if not choose.provider(name).isolation().isolated and name == "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    source = str(Path(view.__file__).parents[2])
    ours = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, source, name, str(tmp_path), str(OURS)], stderr=subprocess.PIPE
    )
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.02)
    ours.send_signal(signal.SIGINT)
    _, err = ours.communicate(timeout=60)
    assert b"KeyboardInterrupt" in err and ours.returncode
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"sleep {OURS}" not in listed.splitlines()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives itself up")
def test_root_is_kept_where_a_file_system_cannot_be_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Bubblewrap()
    if not provider.isolation().isolated or provider._stage is None:
        pytest.skip("root cannot be given up here at all")

    def refuse(directory: str, others: Sequence[str]) -> dict[str, str]:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(provider._stage, "mount", refuse)
    result = provider.run(tmp_path, ["/bin/sh", "-c", "id -u; echo x > f; cat f"])
    assert (result.code, result.stdout) == (0, b"1000\nx\n")
