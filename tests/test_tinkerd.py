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
from hypothesis import given
from hypothesis import strategies as st

from libmachine.tinkerd import passes_torch
from libmachine.tinkerd.engine import Datum

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


data = st.lists(
    st.tuples(st.integers(0, 40), st.lists(st.integers(0, 1), min_size=1, max_size=12), st.integers(0, 50)),
    min_size=1,
    max_size=9,
)


@given(data)
def test_what_is_shared_is_alike_and_has_no_weight(made: list[tuple[int, list[int], int]]) -> None:
    """Of examples that begin with the same tokens for a while: as much as can be shared, and no more."""
    examples = []
    for same, own, weighted in made:
        tokens = [7] * same + own
        examples.append(Datum(tokens, tokens, [float(at >= weighted) for at in range(len(tokens))]))
    count = passes_torch.shared(examples)

    def fits(size: int) -> bool:
        heads = {tuple(datum.tokens[:size]) for datum in examples}
        bare = not any(any(datum.weights[:size]) for datum in examples)
        return len(heads) == 1 and bare and all(len(datum.tokens) > size for datum in examples)

    assert fits(count)
    if len(examples) > 1 and count:
        assert not fits(count + 1)
    if len(examples) == 1 or not count:
        assert count == 0 and (len(examples) == 1 or not fits(passes_torch._WORTH))


@given(st.lists(st.integers(1, 900), max_size=30), st.integers(0, 700))
def test_a_pass_is_bounded(sizes: list[int], shared: int) -> None:
    """Every example is in one pass; a pass of several fits, what they share counted once."""
    passes = passes_torch.batches([shared + size for size in sizes], shared)
    assert sorted(index for batch in passes for index in batch) == list(range(len(sizes)))
    for batch in passes:
        longest = max(sizes[index] for index in batch)
        assert len(batch) == 1 or shared + len(batch) * longest <= passes_torch.MOST_BATCH
