"""Inspect AI's files in: datasets of samples (JSON, JSON lines, CSV) and eval logs (.json, .eval)."""

from __future__ import annotations

import base64
import binascii
import io
import json
import os
import string
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from libmachine.canon import Record, RecordError, canonical, loads
from libmachine.errors import MachineError
from libmachine.interchange.rows import Columns, Row, Unfit, json_lines, mapping, put, sequence, table

_ZSTD = 93
_LARGEST = 1 << 28
"""Bytes of a sample: what is packed small may be made to fill the memory."""
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    struct.error,
)
"""What zipfile raises for a file that is damaged, encrypted or not made by Inspect."""
_SETTING = ("setup", "sandbox")


def read(data: bytes, columns: Columns, directory: str | None, as_table: bool) -> Iterator[Row]:
    """Cases of a dataset or a log. directory: where the files are that samples name; None: nowhere.

    Raises MachineError for a log that cannot be read.
    """
    if data[:2] == b"PK":
        rows: Iterator[Row] = _zipped(data)
    elif as_table:
        rows = table(data)
    else:
        log = _log(data)
        rows = json_lines(data) if log is None else iter(log)
    for row in rows:
        if row.error is not None:
            yield row
            continue
        try:
            value = row.value
            if as_table and isinstance(value, dict):
                value = {name: _cell(cell) for name, cell in value.items()}
            yield Row(row.number, _case(value, columns, directory))
        except Unfit as error:
            yield Row(row.number, None, str(error))


def _log(data: bytes) -> list[Row] | None:
    """The samples of a log that is one JSON object; None if the file is none."""
    if not data.lstrip().startswith(b"{") or b'"samples"' not in data:
        return None
    try:
        log = loads(data)
    except RecordError:
        return None
    if not isinstance(log, dict) or "eval" not in log:
        return None
    if not log.get("samples"):
        raise MachineError("the log has no samples; inspect log dump shows a whole one")
    return [Row(number, _first(sample)) for number, sample in enumerate(_once(log["samples"]), 1)]


def _once(samples: Any) -> list[Any]:
    """Samples without their further epochs."""
    if not isinstance(samples, list):
        raise MachineError("the samples of the log are no list; inspect log dump shows a whole one")
    return [s for s in samples if not isinstance(s, dict) or s.get("epoch", 1) == 1]


def _first(sample: Any) -> Any:
    """Of a sample in a log, what its dataset held."""
    if not isinstance(sample, dict):
        return sample
    names = ("id", "input", "choices", "target", "metadata", "files", *_SETTING)
    return {name: sample[name] for name in names if sample.get(name) is not None}


def _zipped(data: bytes) -> Iterator[Row]:
    """The samples of a .eval file, in its order."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (*_DAMAGE, OSError) as error:
        raise MachineError(f"the log is no whole zip: {error}") from None
    unpack = _unpacker(data)
    samples = [entry for entry in archive.infolist() if entry.filename.startswith("samples/")]
    if not samples:
        raise MachineError("the log has no samples; was it written with --no-log-samples?")
    number = 0
    for entry in samples:
        try:
            found = loads(_text(entry, archive, unpack))
        except RecordError as error:
            number += 1
            yield Row(number, None, str(error))
            continue
        for sample in _once([found]):
            number += 1
            yield Row(number, _first(sample))


def _text(
    entry: zipfile.ZipInfo, archive: zipfile.ZipFile, unpack: Callable[[zipfile.ZipInfo], bytes]
) -> bytes:
    """What an entry holds. Raises RecordError if it is damaged, or too large to be a sample."""
    if entry.file_size > _LARGEST:
        raise RecordError(f"'{entry.filename}' has {entry.file_size} bytes; a sample has {_LARGEST} at most")
    try:
        return unpack(entry) if entry.compress_type == _ZSTD else archive.read(entry)
    except (*_DAMAGE, OSError) as error:
        raise RecordError(f"'{entry.filename}' of the log cannot be unpacked: {error}") from None


def _unpacker(data: bytes) -> Callable[[zipfile.ZipInfo], bytes]:
    """Reads entries in Zstandard, which zipfile knows from Python 3.14 on."""

    def unpack(entry: zipfile.ZipInfo) -> bytes:
        try:
            import zstandard
        except ImportError:
            raise MachineError(
                "this log is packed with Zstandard; pip install zstandard, or turn it into JSON: "
                "inspect log convert FILE --to json --output-dir DIR"
            ) from None
        # a local header is 30 bytes, then a name and extra data, each as long as it says
        head = entry.header_offset
        skip = sum(int.from_bytes(data[head + at : head + at + 2], "little") for at in (26, 28))
        packed = data[head + 30 + skip : head + 30 + skip + entry.compress_size]
        try:
            text: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
        except zstandard.ZstdError as error:
            raise RecordError(f"'{entry.filename}' of the log cannot be unpacked: {error}") from None
        return text

    return unpack


def _case(sample: Any, columns: Columns, directory: str | None) -> Record:
    if not isinstance(sample, dict):
        raise Unfit("a sample is an object with 'input' and 'target'")
    values = {name: value for name, value in sample.items() if value not in (None, "", [], {})}
    files = values.pop("files", None)
    case = put(values, columns)
    if not isinstance(case["input"], str | list):
        case["input"] = str(case["input"])
    if isinstance(case["input"], list):
        case["input"] = [_message(message) for message in case["input"]]
    choices = values.get("choices")
    if isinstance(choices, list):
        case["input"] = _with_choices(case["input"], choices)
    if files is not None:
        if not isinstance(files, dict):
            raise Unfit("it has files whose texts are not in the log; import its dataset")
        case["files"] = {path: _file(str(text), directory) for path, text in files.items()}
    return case


def _cell(value: Any) -> Any:
    """A CSV cell that holds a list or an object."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            found = json.loads(value)
        except ValueError:
            return value
        return found if isinstance(found, list | dict) else value
    return value


def _with_choices(given: Any, choices: list[Any]) -> Any:
    """The question with its choices, which Inspect's solver would add: A) ... B) ..."""
    lines = "\n".join(
        f"{letter}) {choice}" for letter, choice in zip(string.ascii_uppercase, choices, strict=False)
    )
    if len(choices) > len(string.ascii_uppercase):
        raise Unfit(f"it has {len(choices)} choices, more than letters")
    if isinstance(given, str):
        return f"{given}\n\n{lines}"
    return [*given, {"role": "user", "content": lines}]


def _message(message: Any) -> Record:
    """A chat message in OpenAI's form. Raises Unfit for what it has no place for."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise Unfit("a message of its input has no role")
    kept: Record = {"role": message["role"], "content": message.get("content")}
    if isinstance(message.get("content"), list):
        parts = [_part(part, kept) for part in message["content"]]
        texts = [part for part in parts if part is not None]
        plain = all(part["type"] == "text" for part in texts)
        kept["content"] = "\n".join(part["text"] for part in texts) if plain else texts
    if message.get("tool_calls"):
        kept["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": "function",
                "function": {
                    "name": call.get("function"),
                    "arguments": canonical(call.get("arguments") or {}).decode(),
                },
            }
            for call in (mapping(c, "a tool call") for c in sequence(message["tool_calls"], "'tool_calls'"))
        ]
    if message.get("tool_call_id"):
        kept["tool_call_id"] = message["tool_call_id"]
    return kept


def _part(part: Any, message: Record) -> Record | None:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text":
        return {"type": "text", "text": str(part.get("text", ""))}
    if kind == "reasoning":
        message["reasoning"] = str(part.get("reasoning", ""))
        return None
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": part.get("image")}}
    raise Unfit(f"a message of its input has {kind or 'no'} content; only text and images can come along")


def _file(text: str, directory: str | None) -> str:
    """The text of a sample's file: what it says, a data URL, or a file beside the dataset."""
    if text.startswith("data:"):
        head, _, body = text.partition(",")
        try:
            raw = (
                base64.b64decode(body, validate=True) if head.endswith(";base64") else unquote_to_bytes(body)
            )
            return raw.decode()
        except (binascii.Error, UnicodeDecodeError):
            raise Unfit("one of its files is no text") from None
    if directory is not None and "\n" not in text and len(text) < 1000 and "\0" not in text:
        top = os.path.realpath(directory)
        path = os.path.realpath(os.path.join(top, text))
        # only what lies beside the dataset: a stranger's dataset must not pick up a file of yours
        if path.startswith(f"{top}/") and os.path.isfile(path):
            try:
                with open(path, encoding="utf-8") as file:
                    return file.read()
            except UnicodeDecodeError:
                raise Unfit(f"its file '{text}' is no text") from None
    return text
