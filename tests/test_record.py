"""Records and canonical JSON: ids that follow from content, whatever tool a line went through."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libmachine import jsonl
from libmachine.canon import MAX_DEPTH, OUTER_DEPTH, RecordError, canonical, dump_line, hash_of, loads, plain
from libmachine.case import identity, read_case
from libmachine.githash import blob_id, tree_id
from libmachine.record import VERSIONS, arrange, is_unchanged, read_record, record_id, upgrade
from libmachine.tables import TABLES

DATA = Path(__file__).parent / "data"
KINDS = ("run", "scorecard")

texts = st.text(st.characters(codec="utf-8"), max_size=12)
any_texts = st.text(st.characters(), max_size=12)  # lone surrogates too
integers = st.integers(-(2**53), 2**53)
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | integers | floats
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
wild = st.recursive(
    scalars | any_texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_texts, inner, max_size=4),
    max_leaves=20,
)


def golden(kind: str) -> Any:
    return json.loads((DATA / f"{kind}-v1.jsonl").read_bytes())


def shuffled(value: Any, order: random.Random) -> Any:
    """The same value with its fields in another order, and its integers as floats where one may."""
    if isinstance(value, dict):
        names = list(value)
        order.shuffle(names)
        return {name: shuffled(value[name], order) for name in names}
    if isinstance(value, list):
        return [shuffled(item, order) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and order.random() < 0.5:
        return float(value)
    return value


def reference(value: Any) -> str:
    """Canonical JSON by the letter, slowly: what orjson must agree with in every version of it."""
    if isinstance(value, dict):
        rows = sorted(value.items(), key=lambda row: row[0].encode())
        return "{" + ",".join(f"{reference(name)}:{reference(item)}" for name, item in rows) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(reference, value)) + "]"
    if isinstance(value, str):
        short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
        return '"' + "".join(short.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in value) + '"'
    if not isinstance(value, float) or (value.is_integer() and abs(value) <= 2**53):
        return json.dumps(value if not isinstance(value, float) else int(value))
    _, digits, exponent = Decimal(repr(abs(value))).normalize().as_tuple()
    figures, power = "".join(map(str, digits)), len(digits) + int(exponent)  # 0.figures * 10^power
    minus = "-" if value < 0 else ""
    if power > 16 or power < -4:
        return f"{minus}{figures[0]}{'.' * (len(figures) > 1)}{figures[1:]}e{power - 1}"
    if power <= 0:
        return f"{minus}0.{'0' * -power}{figures}"
    whole = figures.ljust(power, "0")
    return f"{minus}{whole[:power]}.{whole[power:] or '0'}"


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


# canonical JSON --------------------------------------------------------------------------


@given(values)
def test_canonical_is_stable_and_loses_nothing(value: Any) -> None:
    data = canonical(value)
    assert canonical(loads(data)) == data
    assert plain(loads(data)) == plain(value)
    assert json.loads(data) == plain(value)  # another reader sees the same
    assert b": " not in canonical({"a": 1}) and b"\n" not in data


@settings(max_examples=400)
@given(values | floats | floats.map(lambda number: {"e+": ["e+5", number]}))
def test_canonical_bytes_are_those_of_the_reference(value: Any) -> None:
    assert canonical(value).decode() == reference(value)


@given(values, st.randoms(use_true_random=False))
def test_order_and_kind_of_number_do_not_matter(value: Any, order: random.Random) -> None:
    assert canonical(shuffled(value, order)) == canonical(value)


@given(values, values)
def test_different_values_have_different_bytes(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == (
        plain(one) == plain(other) and _kinds(one) == _kinds(other)
    )


def _kinds(value: Any) -> Any:
    """Types, so that True and 1 count as different."""
    value = plain(value)
    if isinstance(value, dict):
        return {name: _kinds(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_kinds(item) for item in value]
    return type(value) is bool


@given(wild)
def test_lone_surrogates_are_replaced_and_nothing_else(value: Any) -> None:
    data = canonical(value)
    assert data.decode().isascii() or data.decode() == data.decode("utf-8", "strict")
    assert canonical(loads(data)) == data
    # the same by way of JSON text with escapes, as a case file has it
    assert canonical(loads(json.dumps(value).encode())) == data


def test_surrogates_by_hand() -> None:
    assert plain("a\ud800b") == "a\ufffdb"
    assert plain("\udc00\ud800") == "\ufffd\ufffd"
    assert plain("\ud83d\ude00") == "\U0001f600"
    assert loads(rb'"\ud83d\ude00 \ud83d x"') == "\U0001f600 \ufffd x"
    assert loads(rb'{"\udfff": "\uD800"}') == {"\ufffd": "\ufffd"}
    assert plain("\ufeffx\ud800") == "\ufeffx\ufffd"


def test_numbers_by_hand() -> None:
    assert canonical([1.0, -0.0, 1e3, 2.0**53, 1e17, 0.1, 5e-324]) == (
        b"[1,0,1000,9007199254740992,1e17,0.1,5e-324]"
    )
    assert canonical([True, 1]) == b"[true,1]"
    for number in (math.nan, math.inf, -math.inf, 2**53 + 1, -(2**53) - 1, 2**70):
        with pytest.raises(RecordError):
            canonical({"a": [number]})
    for text in (
        b"NaN",
        b"[Infinity]",
        b'["\\ud800", NaN]',
        b'["\\ud800", -Infinity]',
        b'["\\ud800", 1e999]',
    ):
        with pytest.raises(RecordError):
            loads(text)
    assert plain(2**53 + 2, exact=False) == 2.0**53 + 2
    with pytest.raises(RecordError):
        plain(2**64, exact=False)


@pytest.mark.parametrize("value", [{1: 2}, {None: 1}, object(), b"bytes", {1, 2}, 1j])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(RecordError):
        canonical([value])


def test_depth_is_bounded() -> None:
    assert loads(canonical(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 300, 900, 5000, 100_000):
        with pytest.raises(RecordError):
            canonical(nested(depth) if depth < 1000 else loads(b"[" * depth + b"]" * depth))
    read_case({"input": "x", "metadata": {"a": nested(OUTER_DEPTH - 2)}})
    with pytest.raises(RecordError):
        read_case({"input": "x", "metadata": {"a": nested(OUTER_DEPTH)}})


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_loads_takes_or_refuses_any_bytes(data: bytes) -> None:
    try:
        value = loads(data)
    except RecordError:
        return
    assert loads(dump_line(value)) == value


# ids are git's ---------------------------------------------------------------------------


@given(values)
def test_a_hash_is_the_blob_id_of_the_canonical_bytes(value: Any) -> None:
    data = canonical(value)
    assert hash_of(value) == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def test_git_computes_the_same_ids(tmp_path: Path) -> None:
    many = [golden("run"), golden("scorecard"), {"é": "\0", "n": [1.5, None, True]}, "", [], {}]
    blobs = [canonical(value) for value in many]
    paths = []
    for number, data in enumerate(blobs):
        (tmp_path / str(number)).write_bytes(data)
        paths.append(str(tmp_path / str(number)))
    told = _git(tmp_path, "hash-object", "--no-filters", "--stdin-paths", stdin="\n".join(paths).encode())
    assert told.split() == [blob_id(data) for data in blobs] == [hash_of(value) for value in many]


def test_git_computes_the_same_tree_ids(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    blob = _git(tmp_path, "hash-object", "-w", "--stdin", stdin=b"x").strip()
    sub = _git(tmp_path, "mktree", stdin=f"100644 blob {blob}\tz\n".encode()).strip()
    # git sorts a directory as if its name ended in a slash: a.b before a/, a0 after it
    names = [("100644", "a.b", blob), ("40000", "a", sub), ("100644", "a0", blob), ("100644", "é", blob)]
    listed = "".join(f"{m:0>6} {'tree' if m == '40000' else 'blob'} {o}\t{n}\n" for m, n, o in names)
    assert _git(tmp_path, "-c", "core.quotePath=false", "mktree", stdin=listed.encode()).strip() == tree_id(
        names
    )


def _git(folder: Path, *words: str, stdin: bytes = b"") -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], input=stdin, capture_output=True, check=True)
    return done.stdout.decode()


# lines through other tools ---------------------------------------------------------------


def test_ids_survive_jq() -> None:
    """One jq for many lines: generated values inside a run's free fields, and the golden lines."""
    lines: list[bytes] = []

    @settings(max_examples=300, database=None, derandomize=True)
    @given(values)
    def collect(value: Any) -> None:
        run = golden("run")
        run["sampling"] = {"any": value, "edges": [1e17, 2.0**60, -1e19, 1.5e300, 5e-324, 0.1 + 0.2]}
        run["messages"][0]["content"] = [{"type": "text", "text": str(value), "deep": value}]
        run = arrange("run", plain(run))
        run["id"] = record_id(run)
        run["case"]["target"], run["case"]["metadata"] = plain(value), {"any": plain(value), "big": 2.0**60}
        run["unknown"] = [plain(value)]
        lines.append(dump_line(run))

    collect()
    lines += [(DATA / f"{kind}-v1.jsonl").read_bytes() for kind in KINDS]
    assert len(lines) > 200
    done = subprocess.run(["jq", "-c", "."], input=b"".join(lines), capture_output=True, check=True)
    through = done.stdout.splitlines(keepends=True)
    assert len(through) == len(lines)
    assert through != lines  # jq writes some numbers in its own way, else this says nothing
    for line, passed in zip(lines, through, strict=True):
        was, now = json.loads(line), loads(passed)
        record = read_record(now, was["type"])
        assert record["id"] == was["id"]
        assert is_unchanged(record)
        if was["type"] == "run":  # what grading hashes beside the id
            assert hash_of(record["case"]["target"]) == hash_of(was["case"]["target"])
            assert hash_of(record["case"]["metadata"]) == hash_of(was["case"]["metadata"])
        dump_line(record)


@given(st.randoms(use_true_random=False))
def test_ids_survive_another_order_of_fields_and_floats_for_integers(order: random.Random) -> None:
    for kind in KINDS:
        line = golden(kind)
        moved = shuffled(line, order)
        record = read_record(moved, kind)
        assert record["id"] == line["id"]
        assert is_unchanged(record)


# golden lines ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_golden_lines_are_accepted_for_ever(kind: str) -> None:
    """Never edit tests/data/*-v1.jsonl: they are what users have on their disks."""
    raw = (DATA / f"{kind}-v1.jsonl").read_bytes()
    assert raw.count(b"\n") == 1 and raw.endswith(b"\n")
    record = read_record(loads(raw), kind)
    if VERSIONS[kind] == 1:
        assert record["id"] == json.loads(raw)["id"] == record_id(record)
        assert dump_line(arrange(kind, record)) == raw


def test_the_golden_run_carries_its_scorecard() -> None:
    run, card = golden("run"), golden("scorecard")
    assert run["scorecard"] == card
    assert card["run"] == run["id"]
    assert run["case"]["identity"] == identity(run["case"]["input"], {"notes/sky.txt": "clear\n"})
    assert card["target"] == hash_of([run["case"]["target"], run["case"]["metadata"]])
    assert {"workspace", "revision", "steps", "tools"} <= run.keys()


def changes() -> list[tuple[str, Any]]:
    """Every stored field of the golden lines, one at a time."""
    found = []
    for kind in KINDS:
        line = golden(kind)
        found += [
            (kind, f.name)
            for f in TABLES[kind]
            if f.stored and f.name in line and f.name not in ("v", "type")
        ]
    return found


@pytest.mark.parametrize(("kind", "name"), changes())
def test_a_changed_field_is_a_bad_line(kind: str, name: str) -> None:
    line = golden(kind)
    line[name] = _other(line[name])
    with pytest.raises(RecordError, match=r"changed since it was stored|not one of"):
        read_record(line, kind)


def _other(value: Any) -> Any:
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return value[:-1] if value else [{}]
    if isinstance(value, dict):
        name = next(name for name in value if name != "id" and not isinstance(value[name], dict | list))
        return {**value, name: _other(value[name])}
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_field_is_named(kind: str) -> None:
    for field in TABLES[kind]:
        line = golden(kind)
        if field.kind.startswith("-") or field.name == "type":
            continue
        del line[field.name]
        with pytest.raises(RecordError, match=f"'{field.name}' is missing"):
            read_record(line, kind)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_no_value_in_any_field_breaks_the_reader(kind: str, data: st.DataObject) -> None:
    line = golden(kind)
    path = [line]
    while True:  # walk to some place inside and put something else there
        here: Any = path[-1]
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(here[key], dict | list) and here[key] and data.draw(st.booleans()):
            path.append(here[key])
            continue
        here[key] = data.draw(values)
        break
    try:
        record = read_record(line, kind)
    except RecordError as error:
        assert str(error)
    else:
        assert record_id(record) == record["id"]


def test_fields_nobody_knows_travel_and_do_not_enter_the_id() -> None:
    line = golden("run") | {"note": {"mine": [1.0, 2**60]}}
    record = read_record(line, "run")
    assert record["note"] == {"mine": [1.0, 2**60]}
    assert record["id"] == golden("run")["id"]
    assert list(arrange("run", record))[-1] == "note"


def test_a_line_nested_too_deeply_is_a_bad_line() -> None:
    for place in ("note", "target"):
        line = golden("run")
        (line if place == "note" else line["case"])[place] = nested(400)
        with pytest.raises(RecordError, match="nested too deeply"):
            read_record(line, "run")


def test_versions() -> None:
    for kind in KINDS:
        for bad in (None, 0, -1, "1", True, 1.5):
            with pytest.raises(RecordError, match="'v' is missing"):
                upgrade(golden(kind) | {"v": bad}, kind)
        with pytest.raises(RecordError, match="update it"):
            upgrade(golden(kind) | {"v": VERSIONS[kind] + 1}, kind)


# cases and lines -------------------------------------------------------------------------


@given(values)
def test_any_value_is_a_case_or_refused(value: Any) -> None:
    for candidate in (
        value,
        {"input": value},
        {"input": "x", "files": value},
        {"input": "x", "metadata": value},
    ):
        try:
            case = read_case(candidate)
        except RecordError as error:
            assert str(error)
        else:
            again = read_case({k: v for k, v in case.items() if k != "identity"})
            assert again == case
            assert len(case["identity"]) == 40 and isinstance(case["id"], str)


def test_identity_is_of_input_and_files_alone() -> None:
    one = read_case({"id": "a", "input": "x", "target": 1, "metadata": {"k": 1}})
    other = read_case({"input": [{"content": "x", "role": "user"}]})
    assert one["identity"] == other["identity"] != read_case({"input": "x", "files": {"a": ""}})["identity"]
    assert other["id"] == other["identity"][:12]


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a/.git/config", ".git", "a\0b", "a/"]
)
def test_files_that_would_leave_their_directory(path: str) -> None:
    with pytest.raises(RecordError, match="outside its directory"):
        read_case({"input": "x", "files": {path: "text"}})


@pytest.mark.parametrize("files", [["a", "a/b"], ["a/b/c", "a/b"], ["a/b/c/d", "z", "a"]])
def test_a_path_that_is_file_and_directory_is_refused_before_a_call(files: list[str]) -> None:
    with pytest.raises(RecordError, match="both as a file and as a directory"):
        read_case({"input": "x", "files": dict.fromkeys(files, "text")})


@settings(deadline=None)
@given(
    st.lists(values, max_size=8), st.booleans(), st.booleans(), st.sampled_from([b"\n", b"\r\n", b"\n\n \n"])
)
def test_lines_and_arrays_read_the_same(items: list[Any], bom: bool, ends: bool, newline: bytes) -> None:
    wanted = [loads(canonical(item)) for item in items]
    wrapped = [{"value": item} for item in wanted]  # a first line that is a list would be an array
    text = newline.join(canonical(item) for item in wrapped) + (newline if ends else b"")
    assert _read(b"\xef\xbb\xbf" * bom + text) == wrapped
    assert _read(b"\xef\xbb\xbf" * bom + canonical(wrapped) + newline) == wrapped


def _read(text: bytes) -> list[Any]:
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    found = list(jsonl.read(reader))
    os.close(reader)
    assert not [line.error for line in found if line.error]
    return [line.value for line in found]


def test_bad_lines_are_numbered_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'\n{"a":1}\n{"a":\nnot json\n\xff\xfe\n{"a":2}')
    found = list(jsonl.read_file(str(path)))
    assert [line.number for line in found] == [2, 3, 4, 5, 6]
    assert [line.value for line in found] == [{"a": 1}, None, None, None, {"a": 2}]
    assert [bool(line.error) for line in found] == [False, True, True, True, False]
    for empty in (b"", b"\n", b" \n\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"):
        path.write_bytes(empty)
        assert list(jsonl.read_file(str(path))) == []
