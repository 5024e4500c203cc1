"""The difference of two trees of the store as a patch that git and patch(1) read.

Blobs are read and compared here: no git diff, whose filters and drivers a repository may name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator

from libmachine.canon import Record
from libmachine.githash import DIRECTORY
from libmachine.store.objects import tree_rows

Read = Callable[[str], bytes]
"""The bytes of an object by its id."""
File = tuple[str, str]
"""Mode and id of a file or symbolic link."""
_BINARY_LOOK = 8000
_MOST_COMPARED = 20_000
_ESCAPES = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}


def flat(tree: str, read: Read, above: str = "") -> dict[str, File]:
    """Path -> (mode, id) of everything in a tree but directories, names as surrogates where no UTF-8."""
    found: dict[str, File] = {}
    for mode, name, oid in tree_rows(read(tree)):
        if mode == DIRECTORY:
            found |= flat(oid, read, f"{above}{name}/")
        else:
            found[above + name] = (mode, oid)
    return found


def changes(before: str, after: str, read: Read) -> list[Record]:
    """What differs, by path: {path, was: (mode, id) or None, is: likewise}."""
    old, new = flat(before, read), flat(after, read)
    paths = sorted(old.keys() | new.keys())
    return [{"path": p, "was": old.get(p), "is": new.get(p)} for p in paths if old.get(p) != new.get(p)]


def patch(before: str, after: str, read: Read) -> Iterator[bytes]:
    """The patch, a piece a file. Binary files are named and not shown."""
    for change in changes(before, after, read):
        was, now = change["was"], change["is"]
        if was and now and was[0][:2] != now[0][:2]:  # a file became a link: one goes, the other comes
            yield _piece(change["path"], was, None, read)
            was = None
        yield _piece(change["path"], was, now, read)


def _piece(path: str, was: File | None, now: File | None, read: Read) -> bytes:
    old_name, new_name = _quoted("a/" + path), _quoted("b/" + path)
    lines = [f"diff --git {old_name} {new_name}\n".encode()]
    if was is None and now is not None:
        lines.append(f"new file mode {now[0]}\n".encode())
        old_name = "/dev/null"
    elif now is None and was is not None:
        lines.append(f"deleted file mode {was[0]}\n".encode())
        new_name = "/dev/null"
    elif was and now and was[0] != now[0]:
        lines.append(f"old mode {was[0]}\nnew mode {now[0]}\n".encode())
    old = read(was[1]) if was else b""
    new = read(now[1]) if now else b""
    if old == new:
        return b"".join(lines)
    if _is_binary(old) or _is_binary(new):
        return b"".join([*lines, f"Binary files {old_name} and {new_name} differ\n".encode()])
    lines += [f"--- {_ended(old_name)}\n".encode(), f"+++ {_ended(new_name)}\n".encode()]
    return b"".join([*lines, *_hunks(_lines(old), _lines(new))])


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    if len(old) + len(new) > _MOST_COMPARED:  # finding what is alike takes a time that grows with its square
        yield f"@@ -{_range(old)} +{_range(new)} @@\n".encode()
        lines = [b"-" + line for line in old] + [b"+" + line for line in new]
    else:
        was, now = ([line.decode("latin-1") for line in side] for side in (old, new))
        lines = [line.encode("latin-1") for line in list(difflib.unified_diff(was, now))[2:]]
    for line in lines:
        yield line
        if not line.endswith(b"\n"):
            yield b"\n\\ No newline at end of file\n"


def _range(lines: list[bytes]) -> str:
    """The lines of a whole file, as a hunk has them."""
    return f"{1 if lines else 0},{len(lines)}"


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends; only a newline ends one."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _is_binary(data: bytes) -> bool:
    return b"\0" in data[:_BINARY_LOOK]


def _ended(name: str) -> str:
    """A name with a blank in it ends in a tab, so that patch(1) sees where."""
    return f"{name}\t" if " " in name and not name.startswith('"') else name


def _quoted(path: str) -> str:
    """A path as git writes it: in quotes where it has quotes, control characters or bytes of no ASCII."""
    if all(char not in _ESCAPES and " " <= char <= "~" for char in path):
        return path
    text = ""
    for byte in path.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        if char in _ESCAPES:
            text += "\\" + _ESCAPES[char]
        else:
            text += char if " " <= char <= "~" else f"\\{byte:03o}"
    return f'"{text}"'
