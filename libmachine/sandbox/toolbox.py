"""Tools that act on the files of a run, for a machine to offer.

    from libmachine.sandbox.toolbox import edit_file, read_file, run

    machine = Machine(intent="...", tools=[read_file, edit_file, run])

What goes wrong is raised and so told to the model. A result that was cut says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from libmachine.console import count, cut_middle
from libmachine.errors import MachineError
from libmachine.githash import blob_id
from libmachine.sandbox.base import MIB, Result
from libmachine.sandbox.files import Entry
from libmachine.sandbox.workspace import Cut, Workspace

MOST_TEXT = 20_000
"""Characters of a file, and of each stream of a command, that a result shows."""
MOST_ENTRIES = 500
MOST_MATCHES = 200
_LINE = 300
_NAMED = 20
_HASHED = 8 * MIB


def read_file(path: str, workspace: Workspace, first_line: int = 1, lines: int = 1000) -> str:
    """Read a text file, or some lines of it. What is left out is said at the end.

    path: relative to the working directory
    first_line: the first line to show, counted from 1
    lines: how many lines to show at most
    """
    data = workspace.read(path)
    if b"\0" in data[:8000]:
        raise MachineError(f"'{path}' is a binary file of {len(data)} bytes")
    if first_line < 1 or lines < 1:
        raise MachineError("first_line and lines are 1 or more")
    text = data.decode("utf-8", "replace")
    all_lines = text.splitlines(keepends=True)
    if first_line > max(1, len(all_lines)):
        raise MachineError(f"'{path}' has {count(len(all_lines), 'line')}; there is no line {first_line}")
    shown = "".join(all_lines[first_line - 1 : first_line - 1 + lines])
    last = min(len(all_lines), first_line - 1 + lines)
    short, is_cut = cut_middle(shown, MOST_TEXT)
    if is_cut:
        return Cut(short)
    if last < len(all_lines):
        return Cut(
            f"{shown}[lines {first_line} to {last} of {len(all_lines)}; first_line={last + 1} shows more]"
        )
    return shown


def write_file(path: str, text: str, workspace: Workspace) -> str:
    """Write a text file: a new one, or all of one that is there. Directories are made.

    path: relative to the working directory
    text: all of the file
    """
    is_new = not workspace.exists(path)
    workspace.write(path, text)
    return (
        f"{'wrote' if is_new else 'replaced'} {path}: {count(len(text.encode('utf-8', 'replace')), 'byte')}"
    )


def edit_file(path: str, old: str, new: str, workspace: Workspace) -> str:
    """Replace one exact snippet of a text file. The snippet must occur exactly once: give enough of the
    text around it. Otherwise nothing is changed.

    path: relative to the working directory
    old: the snippet as it stands in the file, with its blanks and line ends
    new: what stands there instead
    """
    if not old:
        raise MachineError("nothing was changed: the snippet is empty; write_file writes whole files")
    if old == new:
        raise MachineError("nothing was changed: old and new are equal")
    data = workspace.read(path)
    snippet = old.encode("utf-8", "replace")
    places = _places(data, snippet)
    if not places:
        hint = "; the file has Windows line ends (\\r\\n)" if b"\r\n" in data and b"\n" in snippet else ""
        raise MachineError(f"nothing was changed: the snippet occurs 0 times in '{path}'{hint}")
    if len(places) > 1:
        at = ", ".join(str(data.count(b"\n", 0, place) + 1) for place in places[:_NAMED])
        raise MachineError(
            f"nothing was changed: the snippet occurs {len(places)} times in '{path}' (lines {at}); give "
            "more of the text around the one that is meant"
        )
    start = places[0]
    workspace.write(path, data[:start] + new.encode("utf-8", "replace") + data[start + len(snippet) :])
    line = data.count(b"\n", 0, start) + 1
    return f"edited {path} at line {line}"


def list_files(workspace: Workspace, path: str = ".") -> str:
    """List the files of a directory and below it, with their sizes in bytes.

    path: a directory, relative to the working directory
    """
    entries = workspace.listing(path, MOST_ENTRIES + 1)
    lines = [_row(entry) for entry in entries[:MOST_ENTRIES]]
    if not lines:
        return "(empty)"
    if len(entries) > MOST_ENTRIES:
        return Cut("\n".join([*lines, f"[only the first {MOST_ENTRIES} are shown]"]))
    return "\n".join(lines)


def search_files(text: str, workspace: Workspace, path: str = ".", ignore_case: bool = False) -> str:
    """Find every line that has a text, in all files of a directory and below it. Shows path:line: text.

    text: what to look for, as it stands; not a pattern
    path: a directory or file, relative to the working directory
    ignore_case: find it in capitals and small letters alike
    """
    if not text or "\n" in text:
        raise MachineError("the text to look for is part of one line, and not empty")
    found: list[str] = []
    for name, number, line in workspace.search(text, path, ignore_case):
        if len(found) == MOST_MATCHES:
            return Cut(
                "\n".join([*found, f"[only the first {MOST_MATCHES} are shown; look for more of the text]"])
            )
        found.append(f"{name}:{number}: {line if len(line) <= _LINE else line[:_LINE] + '[...]'}")
    return "\n".join(found) or "(found nowhere)"


def run(command: str, workspace: Workspace, timeout_s: int = 60, stdin: str = "") -> str:
    """Run a shell command in the working directory and show its exit status and what it printed.

    It runs in a sandbox: no network, nothing outside the working directory can be changed, and what it
    leaves running in the background ends with it. The shell is bash with pipefail.

    command: the line for the shell
    timeout_s: seconds after which it is stopped, at most 60
    stdin: what the command reads from its input
    """
    if not command.strip() or "\0" in command:
        raise MachineError("the command is empty or has a zero byte")
    if timeout_s < 1:
        raise MachineError("timeout_s is 1 or more")
    before = _contents(workspace)
    result = workspace.run(command, stdin=stdin.encode("utf-8", "replace"), timeout_s=timeout_s)
    after = _contents(workspace)
    return told(result, sorted(path for path, was in before.items() if after.get(path) != was))


def told(result: Result, changed: Sequence[str] = ()) -> str:
    """How a command ended and what it printed, as libmachine.sandbox.commands reads it again.

    changed: files that were there before and that it changed
    """
    lines = [f"exit {result.code}" if result.limit is None else f"stopped: over the limit of {result.limit}"]
    if changed:
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        lines.append(f"changed: {', '.join(changed[:_NAMED])}{more}")
    text, is_cut = _streams(result)
    shown = "\n".join([*lines, "", text]) if text else "\n".join([*lines, "(it printed nothing)"])
    return Cut(shown) if is_cut else shown


def _streams(result: Result) -> tuple[str, bool]:
    """What a command printed, errors after the rest, and whether it was cut."""
    out, out_cut = cut_middle(result.stdout.decode("utf-8", "replace"), MOST_TEXT)
    err, err_cut = cut_middle(result.stderr.decode("utf-8", "replace"), MOST_TEXT)
    parts = [out] if out else []
    parts += [f"[stderr]\n{err}"] if err else []
    if result.truncated:
        total = result.stdout_total + result.stderr_total
        parts.append(f"[it printed {total} bytes in all, of which the middle was not kept]")
    return "\n".join(part.rstrip("\n") for part in parts), out_cut or err_cut or result.truncated


def _row(entry: Entry) -> str:
    name = entry.path.decode("utf-8", "backslashreplace").replace("\n", "\\n")
    if entry.kind == "directory":
        return f"{name}/"
    if entry.kind == "file":
        return f"{name}  {entry.size}"
    return f"{name}  ({entry.kind})"


def _places(data: bytes, snippet: bytes) -> list[int]:
    """Where a snippet occurs, overlapping ones included."""
    found = []
    at = data.find(snippet)
    while at >= 0:
        found.append(at)
        at = data.find(snippet, at + 1)
    return found


def _contents(workspace: Workspace) -> dict[str, str | int]:
    """Path -> hash of a file's content; its size where hashing all would take long."""
    found: dict[str, str | int] = {}
    left = _HASHED
    for entry in workspace.listing():
        if entry.kind == "file":
            left -= entry.size
            name = entry.path.decode("utf-8", "backslashreplace")
            found[name] = blob_id(workspace.read(entry.path)) if left >= 0 else entry.size
    return found
