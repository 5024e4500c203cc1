"""Versions, candidates, promotions and notes to and from another repository.

Fetched beside ours (refs/notes/machine-remotes/REMOTE/, refs/machine-remotes/REMOTE/), merged here,
pushed with the values we saw there as a condition; from the start when it moved meanwhile. The
configuration is neither read for what to move nor written, so a plain fetch or push stays as it was.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections import Counter
from collections.abc import Mapping

from libmachine.errors import MachineError
from libmachine.git import notes
from libmachine.git.reconcile import Moves, candidates, live, versions
from libmachine.git.repository import Repository, list_refs, locked, move_all, read_ref

TRANSPORT = ("-c", "protocol.ext.allow=never", "-c", "gc.auto=0", "-c", "maintenance.auto=false")
_UNCHANGED = 3
_AT_ONCE = 500


def sync(
    repo: Repository, remote: str = "origin", attempts: int = 10, transport: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Bring this repository and a remote (its name, a URL, a path) to the same versions and notes.

    transport: variables that reach the remote (SSH_AUTH_SOCK, https_proxy, GIT_SSH_COMMAND ...).
    Returns counts: versions_in, versions_out, renumbered, candidates_in, candidates_out,
    promotions_in, promotions_out, notes_in, notes_out (lines), attempts.
    Raises MachineError if the remote cannot be reached, refuses, or moves faster than we try.
    """
    if not remote or remote.startswith("-"):
        raise MachineError(f"'{remote}' is no remote; git remote -v lists them")
    beside = beside_of(remote)
    variables = dict(transport or {})
    counts: Counter[str] = Counter()
    unchanged, seen = 0, None
    for attempt in range(1, attempts + 1):
        _fetch(repo, remote, beside, variables)
        theirs = _theirs(repo, beside)
        unchanged = unchanged + 1 if theirs == seen else 0
        seen = theirs
        with locked(repo):
            moves = _merge(repo, beside, theirs)
        counts.update(moves.incoming)
        refused = _push(repo, remote, moves.push, variables)
        if refused is None:
            if _push(repo, remote, moves.remove, variables) is not None:
                moves.remove.clear()  # it forbids deleting: asked again next time
            with locked(repo):
                _remember(repo, beside, moves)
            return {**dict.fromkeys(COUNTS, 0), **counts, **moves.outgoing, "attempts": attempt}
        if "declined" in refused or unchanged >= _UNCHANGED:
            raise MachineError(f"'{remote}' refused: {refused}")
        time.sleep(random.uniform(0, 0.05 * attempt))
    raise MachineError(f"'{remote}' moved on at each of {attempts} attempts; type: machine-sync {remote}")


COUNTS = (
    *("versions_in", "versions_out", "renumbered", "candidates_in", "candidates_out"),
    *("promotions_in", "promotions_out", "notes_in", "notes_out"),
)


def beside_of(remote: str) -> str:
    """The name under which a remote's refs are kept: its own, or a hash of a URL or path."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", remote):
        return remote
    return "url-" + hashlib.sha1(remote.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _fetch(repo: Repository, remote: str, beside: str, variables: Mapping[str, str]) -> None:
    # globs: a name spelt out would be fatal where the remote has none of ours yet
    specs = (
        f"+refs/notes/machine*:refs/notes/machine-remotes/{beside}/machine*",
        "^refs/notes/machine-remotes/*",
        f"+refs/machine/*:refs/machine-remotes/{beside}/*",
    )
    words = ["--no-tags", "--prune", "--refmap=", "--no-write-fetch-head", "--no-recurse-submodules"]
    words += ["--no-auto-maintenance", "--quiet", "--upload-pack=git-upload-pack"]
    for _ in range(_UNCHANGED):
        done = repo.run(*TRANSPORT, "fetch", *words, "--", remote, *specs, extra=variables)
        if not done.code:
            return
        if "lock" not in done.err:  # another sync of this repository is at the same refs
            break
        time.sleep(random.uniform(0, 0.2))
    raise MachineError(
        f"cannot fetch from '{remote}': {done.reason()}; git remote -v lists the remotes, git ls-remote "
        f"{remote} tries one"
    )


def _theirs(repo: Repository, beside: str) -> dict[str, str]:
    """Ref (by its name there) -> commit of what the remote has."""
    refs, noted = f"refs/machine-remotes/{beside}/", f"refs/notes/machine-remotes/{beside}/machine"
    found = {f"refs/machine/{ref.name[len(refs) :]}": ref.oid for ref in list_refs(repo, refs) if ref.tree}
    tip = read_ref(repo, noted)
    return found | ({notes.REF: tip} if tip else {})


def _merge(repo: Repository, beside: str, theirs: Mapping[str, str]) -> Moves:
    """Bring ours up to theirs, under the lock; what to push."""
    for _ in range(5):
        ours = {ref.name: ref.oid for ref in list_refs(repo, "refs/machine/", notes.REF)}
        base = {
            ref.name.replace(f"refs/machine-synced/{beside}/", "refs/machine/", 1): ref.oid
            for ref in list_refs(repo, f"refs/machine-synced/{beside}/")
        }
        moves = Moves()
        versions(repo, ours, theirs, moves)
        live(repo, ours, theirs, moves)
        candidates(ours, theirs, base, moves)
        _notes(repo, ours.get(notes.REF), theirs.get(notes.REF), moves)
        agreed = {
            _kept(beside, ref): (new, base.get(ref))
            for ref, new in moves.agreed.items()
            if new != base.get(ref)
        }
        if move_all(repo, {**moves.local, **agreed}, "machine: sync"):
            return moves
    raise MachineError("the refs of this repository keep changing; type machine-sync once more")


def _kept(beside: str, ref: str) -> str:
    """Where we keep what a ref was when both sides last had the same: what tells a deletion from news."""
    return ref.replace("refs/machine/", f"refs/machine-synced/{beside}/", 1)


def _notes(repo: Repository, ours: str | None, theirs: str | None, moves: Moves) -> None:
    if ours == theirs:
        return
    merged = notes.merge(repo, ours, theirs) if theirs else ours
    sizes = {
        tip: sum(len(lines) for lines in notes.all_lines(repo, tip).values()) if tip else 0
        for tip in (ours, theirs, merged)
    }
    if merged != ours:
        moves.local[notes.REF] = (merged, ours)
        moves.incoming["notes_in"] = sizes[merged] - sizes[ours]
    if merged != theirs:
        moves.push[notes.REF] = (merged, theirs)
        moves.outgoing["notes_out"] = sizes[merged] - sizes[theirs]


def _push(
    repo: Repository,
    remote: str,
    wanted: Mapping[str, tuple[str | None, str | None]],
    variables: Mapping[str, str],
) -> str | None:
    """Push ref -> (new or None, what the remote has), all or none; None if done, else why not."""
    # the command line has room for some thousand refs only
    for start in range(0, len(wanted), _AT_ONCE):
        part = dict(list(wanted.items())[start : start + _AT_ONCE])
        refused = _push_part(repo, remote, part, variables)
        if refused is not None:
            return refused
    return None


def _push_part(
    repo: Repository,
    remote: str,
    wanted: Mapping[str, tuple[str | None, str | None]],
    variables: Mapping[str, str],
) -> str | None:
    words = ["--porcelain", "--atomic", "--no-verify", "--no-follow-tags", "--recurse-submodules=no"]
    words += ["--no-signed", "--quiet", "--receive-pack=git-receive-pack"]
    words += [f"--force-with-lease={ref}:{old or ''}" for ref, (_, old) in wanted.items()]
    specs = [f"{new or ''}:{ref}" for ref, (new, _) in wanted.items()]
    done = repo.run(*TRANSPORT, "push", *words, "--", remote, *specs, extra=variables)
    if not done.code:
        return None
    told = [line for line in done.out.decode("utf-8", "replace").splitlines() if line.startswith("!")]
    if not told:
        raise MachineError(
            f"cannot push to '{remote}': {done.reason()}; what was fetched is kept: may you write there?"
        )
    # with --atomic, the refs that were fine are refused too: the others say why
    why = [line for line in told if "atomic" not in line] or told
    spoken = [line for line in done.err.splitlines() if line.startswith("remote:")]
    return "; ".join([why[0].split("\t")[-1], *(line.removeprefix("remote:").strip() for line in spoken)])


def _remember(repo: Repository, beside: str, moves: Moves) -> None:
    now = {ref.name: ref.oid for ref in list_refs(repo, f"refs/machine-synced/{beside}/")}
    pushed = {ref: new for ref, (new, _) in {**moves.push, **moves.remove}.items() if "/-/candidate/" in ref}
    wanted = {_kept(beside, ref): new for ref, new in pushed.items()}
    move_all(repo, {ref: (new, now.get(ref)) for ref, new in wanted.items() if now.get(ref) != new})
