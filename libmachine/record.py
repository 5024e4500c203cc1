"""Records: their ids, and the checks a reader makes.

An id is the git blob id of the canonical JSON of the stored fields that version `v`
defines (libmachine.tables). A reader refuses a newer `v`, upgrades an older one through
UPGRADES, and recomputes the id: a line that was changed on its way is a bad line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import EllipsisType, NoneType
from typing import Any, NamedTuple

import orjson

from libmachine.canon import OUTER_DEPTH, Record, RecordError, called, encode, plain
from libmachine.githash import blob_id
from libmachine.tables import TABLES
from libmachine.tables_reports import Field

VERSIONS = {
    **{"run": 1, "scorecard": 1, "candidate": 1, "verdict": 1},
    **{"suite": 1, "comparison": 1, "agreement": 1, "optimization": 1},
}
UPGRADES: dict[tuple[str, int], Callable[[Record], Record]] = {}
"""(type, v) -> function that turns a record of that v into the next. Entries are never removed."""

STATUSES = ("ok", "limit", "failed")
SLACK = 1e-9
"""What a score may fall short of a mark by and still reach it."""
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "object": (dict,),
    "list": (list,),
    "any": (str, int, float, bool, dict, list, NoneType),
}


class _Shape(NamedTuple):
    """A field as the readers below use it, once for each line of a stream: the types its value may have
    (Ellipsis stands for an absent one), the table of what is in it, and words for what it must be."""

    name: str
    types: frozenset[type]
    table: str | None
    wanted: str


def _shape(field: Field) -> _Shape:
    kind = field.kind.strip("-?")
    table = kind.removesuffix("[]")
    if table in TABLES:
        types: tuple[type, ...] = (dict,) if table == kind else (list,)
        wanted = "not an object" if table == kind else "not a list"
    else:
        types, wanted = _KINDS[kind], f"not of kind {kind}"
    types += (NoneType,) if field.kind.endswith("?") else ()
    types += (EllipsisType,) if field.kind.startswith("-") else ()
    return _Shape(field.name, frozenset(types), table if table in TABLES else None, wanted)


_SHAPES = {table: tuple(map(_shape, fields)) for table, fields in TABLES.items()}
_STORED = {table: tuple(f.name for f in fields if f.stored) for table, fields in TABLES.items()}
_HASHED = {table: frozenset(names) - {"case"} for table, names in _STORED.items()}
# _SHAPES for who only asks whether all is well: name -> types, table, 1 if it must be there.
_FIELDS = {
    table: {name: (types, inner, int(EllipsisType not in types)) for name, types, inner, _ in shapes}
    for table, shapes in _SHAPES.items()
}
_NEEDED = {table: sum(needed for _, _, needed in fields.values()) for table, fields in _FIELDS.items()}
_SIMPLE = frozenset((str, int, float, bool, NoneType))


def stored_fields(kind: str, record: Mapping[str, Any]) -> Record:
    """What of a record is stored: the fields its table marks so, the case of a run likewise."""
    kept = {name: record[name] for name in _STORED[kind] if name in record}
    if kind == "run":
        case = record["case"]
        kept["case"] = {name: case[name] for name in _STORED["run_case"] if name in case}
    return kept


def record_bytes(record: Mapping[str, Any]) -> bytes:
    """The canonical bytes whose blob id is the record's id. The record must be `plain` already."""
    return encode(stored_fields(record["type"], record))


def record_id(record: Mapping[str, Any]) -> str:
    """The record's id (40 hex), from its content."""
    return blob_id(record_bytes(record))


def arrange(table: str, record: Mapping[str, Any]) -> Record:
    """The record with its fields in the table's order, so that a replayed run is the line it was."""
    arranged: Record = {}
    for name, _, inner, _ in _SHAPES[table]:
        if name in record:
            value = record[name]
            arranged[name] = value if type(value) in _SIMPLE else _arranged(inner, value)
    if len(arranged) < len(record):
        for name in sorted(record.keys() - arranged.keys()):
            arranged[name] = _arranged(None, record[name])
    return arranged


def _arranged(table: str | None, value: Any) -> Any:
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, dict):
        if table is not None:
            return arrange(table, value)
        return {name: _arranged(None, value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_arranged(table, item) for item in value]
    return value


def is_unchanged(record: Mapping[str, Any]) -> bool:
    """Does the record's id follow from its content, as it stands?"""
    try:
        return record_id(record) == record.get("id")
    except TypeError:  # nested deeper than any record is
        return False


def problems(table: str, value: Any, where: str = "") -> Iterable[str]:
    """What is wrong with a value, field by field, against a table."""
    if not isinstance(value, dict):
        yield f"'{where or table}' is {called(value)}, not an object"
        return
    for name, types, inner, wanted in _SHAPES[table]:
        item = value.get(name, ...)
        if type(item) not in types:
            path = f"{where}.{name}" if where else name
            yield f"'{path}' is missing" if item is ... else f"'{path}' is {called(item)}, {wanted}"
        elif inner is not None and item is not None and item is not ...:
            path = f"{where}.{name}" if where else name
            if isinstance(item, dict):
                yield from problems(inner, item, path)
            else:
                for number, element in enumerate(item):
                    yield from problems(inner, element, f"{path}[{number}]")


def _fits(table: str, value: Any) -> bool:
    """Has problems() nothing to say? Three times as fast, for the lines of a stream."""
    if not isinstance(value, dict):
        return False
    fields = _FIELDS[table]
    missing = _NEEDED[table]
    for name, item in value.items():
        field = fields.get(name)
        if field is None:
            continue
        types, inner, needed = field
        if type(item) not in types:
            return False
        missing -= needed
        if inner is not None and item is not None:
            for element in item if type(item) is list else (item,):
                if not _fits(inner, element):
                    return False
    return not missing


def odd_message(message: Mapping[str, Any]) -> str | None:
    """What of a message no chat has, beyond what the table says: in words, None if nothing."""
    if type(message.get("content")) not in _CONTENT:
        return f"content is {called(message['content'])}"
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(call.get("id"), str):
            return "tool_calls holds what is no call; a call has 'id' and 'function'"
        if not isinstance(function.get("name"), str) or not isinstance(function.get("arguments"), str):
            return "tool_calls has a function whose 'name' and 'arguments' are no texts"
    return None


_CONTENT = frozenset((str, list, NoneType))


def _odd(run: Record) -> str | None:
    """What of a run its readers would stumble over though the table has it."""
    for number, message in enumerate(run["messages"]):
        if problem := odd_message(message):
            return f"'messages[{number}]': {problem}"
    talk = run.get("conversation")
    for step in (*run["steps"], *(talk["steps"] if talk else ())):
        at = step["message"]
        if not 0 <= at < len(run["messages"]) or run["messages"][at]["role"] != "assistant":
            return f"a step is of message {at}, which is none of the assistant's"
    error = run.get("error")
    if "error" in run and not isinstance(error, dict):
        return "'error' is null"
    if error is not None and not isinstance(error.get("message"), str):
        return "'error.message' is missing"
    return None


def read_record(value: Any, kind: str) -> Record:
    """A record of a kind from a parsed line: known version, whole, and unchanged since it was stored.

    Raises RecordError with the first thing that is wrong.
    """
    if not isinstance(value, dict) or value.get("type") != kind:
        found = value.get("type") if isinstance(value, dict) else None
        raise RecordError(f"no {kind}: " + (f"its type is '{found}'" if found else "it has no 'type'"))
    try:
        return _checked(value, kind)
    except RecordError:
        # What comes from our own pipe is canonical already; the walk is for what passed other tools.
        return _checked(plain(value, exact=False), kind)


def _checked(value: Record, kind: str) -> Record:
    record: Record = upgrade(value, kind)
    if not _fits(kind, record):
        for problem in problems(kind, record):
            raise RecordError(f"{kind}: {problem}")
    if kind == "run" and record["status"] not in STATUSES:
        raise RecordError(f"run: 'status' is '{record['status']}', not one of {', '.join(STATUSES)}")
    card = record.get("scorecard") if kind == "run" else None
    if card is not None and card["type"] != "scorecard":
        raise RecordError(f"run: 'scorecard.type' is '{card['type']}'")
    if card is not None and not is_unchanged(upgrade(card, "scorecard")):
        raise RecordError(
            f"scorecard {str(card.get('id'))[:12]} changed since it was stored; grade the run again"
        )
    if not is_unchanged(record):
        short = str(record.get("id"))[:12]
        raise RecordError(f"{kind} {short} changed since it was stored; --adopt keeps it as a new {kind}")
    if kind == "run" and (odd := _odd(record)):
        raise RecordError(f"run: {odd}")
    return _carried(record, kind)


def _carried(record: Record, kind: str) -> Record:
    """The record, if what it carries beside its stored fields can be written out again too."""
    known = _HASHED[kind]
    if kind == "run":
        # target and metadata are hashed by whoever grades
        case = {name: plain(value, OUTER_DEPTH, exact=False) for name, value in record["case"].items()}
        record = {**record, "case": case}
        card = record.get("scorecard")
        # that a scorecard is unchanged was found by writing it out
        known = _RUN_AND_CARD if card is None or card.keys() <= _CARD else _RUN
    beside = [value for name, value in record.items() if name not in known and type(value) in _NESTED]
    try:
        orjson.dumps(beside)
    except TypeError:
        raise RecordError(f"{kind}: lists and objects are nested too deeply") from None
    return record


_NESTED = frozenset((dict, list))
_CARD = frozenset(_STORED["scorecard"]) | {"id"}
_RUN = _HASHED["run"] | {"case"}
_RUN_AND_CARD = _RUN | {"scorecard"}


def upgrade(value: Record, kind: str) -> Record:
    """The record in today's version of its type. Raises RecordError for a newer one."""
    version = value.get("v")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordError(f"{kind}: 'v' is missing")
    if version > VERSIONS[kind]:
        raise RecordError(
            f"{kind} is of v {version}; this program understands up to v {VERSIONS[kind]}: update it"
        )
    while version < VERSIONS[kind]:
        value = UPGRADES[kind, version](value)
        version += 1
    return value
