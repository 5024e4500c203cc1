"""Going live and going back: a commit of one machine's folder, with trailers, and a log of it.

Written through a temporary index, so that what else is staged stays staged; blobs are
written as they are, so that no filter of the repository runs.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping

from libmachine.canon import Record, canonical, loads, now, plain
from libmachine.errors import MachineError
from libmachine.folder import as_model
from libmachine.git import objects, refs, repository, trees
from libmachine.git.history import history
from libmachine.git.place import Place
from libmachine.git.repository import Repository
from libmachine.store.store import Store

VERDICT_TRAILER = "Machine-Verdict"
VERSION_TRAILER = "Machine-Version"
REVERT_TRAILER = "Machine-Revert-To"


def put_candidate(
    repo: Repository,
    name: str,
    changes: Mapping[str, bytes],
    source: str,
    base: Place,
    **more: object,
) -> Record:
    """Store the base's version with some files changed as a Candidate; returns its record (without id).

    changes: `instructions.md` and `model.json` -> bytes. Raises MachineError if nothing differs.
    """
    if unknown := set(changes) - {"instructions.md", "model.json"}:
        raise MachineError(f"a candidate changes instructions.md and model.json, not '{min(unknown)}'")
    place = trees.overlay(base, {f"{base.prefix}/{name}/{file}": data for file, data in changes.items()})
    base_version, version = base.version(name), place.version(name)
    if version == base_version:
        raise MachineError(f"this version of '{name}' is live already; propose another model or text")
    refs.record_version(repo, name, base)
    refs.record_version(repo, name, place)
    record: Record = plain(
        {
            "v": 1,
            "type": "candidate",
            "machine": name,
            "source": source,
            "base_version": base_version,
            "version": version,
            "files": {file: data.decode("utf-8", "replace") for file, data in changes.items()},
            "made_at": now(),
            **more,
        }
    )
    refs.put_candidate(repo, name, record, dict(changes))
    return record


def propose(
    repo: Repository, store: Store, name: str, model: str | None = None, instructions: bytes | None = None
) -> Record:
    """Store HEAD's version with another model or other instructions as a pending candidate; its record.

    Raises MachineError if HEAD has no such machine, or nothing differs.
    """
    base = trees.commit(repo, "HEAD")
    if not base.has(name):
        raise MachineError(
            f"HEAD has no machine '{name}'; commit it first: git add machines/{name} && git commit"
        )
    changes: dict[str, bytes] = {}
    if model is not None:
        old = base.read(f"{base.prefix}/{name}/model.json")
        before = loads(old) if old else {}
        fields = {**(before if isinstance(before, dict) else {}), "model": model}
        as_model(fields, "--model")
        if fields != before:  # another order of the same fields is no other model
            changes["model.json"] = canonical(fields) + b"\n"
    if instructions is not None:
        changes["instructions.md"] = instructions
    return store.add_record(put_candidate(repo, name, changes, "propose", base))


def newest_pending(repo: Repository, name: str, live: str | None) -> str | None:
    """Id of the newest candidate that is not the live version, or None."""
    pending = [stored.id for stored in refs.candidates(repo, name) if not (live or "").startswith(stored.id)]
    return pending[-1] if pending else None


def commit_folder(repo: Repository, name: str, place: Place, message: str) -> str:
    """Commit a machine's folder as a place has it, on HEAD; write its files and stage them. The commit's id.

    Other staged work is left alone. Raises MachineError if HEAD moved meanwhile.
    """
    parent = repository.head(repo)
    work = trees.work_tree(repo.directory, place.prefix)
    committed = (
        trees.commit(repo, parent).own(name) if parent and trees.commit(repo, parent).has(name) else []
    )
    wanted = [path for path in place.own(name) if place.is_file(path)]
    contents = place.read_many(wanted)
    ids = objects.write_blobs(repo, [contents[path] for path in wanted])
    rows = b""
    for path, oid in zip(wanted, ids, strict=True):
        mode = "100755" if place.mode(path) == "100755" else "100644"
        rows += f"{mode} {oid} 0\t{repo.inside}{path}\0".encode("utf-8", "surrogateescape")
    for path in sorted(set(committed) - set(wanted)):
        rows += f"0 {'0' * 40} 0\t{repo.inside}{path}\0".encode("utf-8", "surrogateescape")
    with tempfile.TemporaryDirectory() as scratch:
        extra = {"GIT_INDEX_FILE": f"{scratch}/index"}
        repo.ask("read-tree", parent or "--empty", extra=extra)
        repo.ask("update-index", "-z", "--index-info", stdin=rows, extra=extra)
        tree = repo.ask("write-tree", extra=extra).decode().strip()
    made = objects.write_commit(repo, tree, [parent] if parent else [], message)
    first = message.partition("\n")[0]
    done = repo.run("update-ref", "-m", f"commit: {first}", "HEAD", made, parent or "0" * 40)
    if done.code:
        raise MachineError(f"HEAD moved meanwhile ({done.reason()}); run the command again")
    repo.ask("update-index", "-z", "--index-info", stdin=rows)
    for path in wanted:
        if work.read(path) != contents[path]:
            _write(os.path.join(repo.directory, path), contents[path])
    return made


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.machine-tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def message_of(name: str, number: int, version: str, verdict: Record, words: str | None = None) -> str:
    """The commit message of a promotion, with its trailers."""
    subject = words or f"{name}: promote v{number}"
    lines = [subject, "", _told(verdict), ""] if not words else [subject, ""]
    lines += [f"{VERSION_TRAILER}: {name} v{number} {version}", f"{VERDICT_TRAILER}: {_short(verdict)}", ""]
    return "\n".join(lines)


def _told(verdict: Record) -> str:
    if verdict.get("mean_diff") is None:
        return "; ".join(verdict["reasons"]) or verdict["decision"]
    return (
        f"Held-out mean {verdict['mean_live']:.3f} -> {verdict['mean_cand']:.3f} over {verdict['n']} cases, "
        f"{verdict['trials']} trials each: {verdict['wins']} better, {verdict['losses']} worse."
    )


def _short(verdict: Record) -> str:
    words = [verdict["decision"]]
    if verdict.get("z") is not None:
        words.append(f"z={verdict['z']:.1f}")
    if verdict.get("n"):
        words.append(f"n={verdict['n']}x{verdict['trials']}")
    return " ".join(words)


def previous_versions(repo: Repository, name: str, live: str) -> list[str]:
    """The versions that were live before the live one, oldest first, reverts undone.

    The log of promotions is walked as a stack; where it does not end at the live version, the
    history of HEAD is asked.
    """
    stack: list[str] = []
    for promotion in reversed(refs.live_log(repo, name)):
        back = re.search(rf"^{REVERT_TRAILER}: ([0-9a-f]{{40}})$", promotion.message, re.MULTILINE)
        if back and back[1] in stack:
            while stack[-1] != back[1]:
                stack.pop()
        elif not stack or stack[-1] != promotion.tree:
            stack.append(promotion.tree)
    if stack and stack[-1] == live:
        return stack[:-1]
    past = [p.version for p in reversed(history(repo, name)) if p.version is not None]
    found: list[str] = []
    for version in past:
        if not found or found[-1] != version:
            found.append(version)
    if found and found[-1] == live:
        found.pop()
    return found


def log_live(repo: Repository, name: str, message: str, place: Place, old: tuple[Place, str] | None) -> None:
    """Log a promotion. old: place and version of what was live, logged first if the log is empty."""
    if old is not None and not refs.live_log(repo, name):
        refs.record_version(repo, name, old[0])
        refs.advance_live(repo, name, f"{name}: live before the first promotion\n", old[1])
    refs.advance_live(repo, name, message, place.version(name))
