"""The verdicts that a hook may read: ours, those pushed along, a fork's; or only what somebody signed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from libmachine.canon import Record
from libmachine.errors import MachineError, Untestable
from libmachine.git import notes
from libmachine.git.objects import read_commits
from libmachine.git.repository import Repository, read_ref
from libmachine.git.sync import TRANSPORT

_NONE = "no verdicts are here (no refs/notes/machine)"


class Noted:
    """Records of version trees. refs: refs of notes. commits: notes commits no ref holds yet."""

    def __init__(
        self, repo: Repository, refs: Sequence[str], commits: Sequence[str] = (), signed: bool = False
    ) -> None:
        self.repo, self.signed = repo, signed
        tips = [tip for ref in refs if (tip := read_ref(repo, ref)) is not None]
        self.tips = list(dict.fromkeys([*tips, *commits]))
        self.known: dict[str, list[Record]] = {}

    def __call__(self, tree: str) -> list[Record]:
        """The records on a version tree, oldest first. Raises Untestable if there are no notes at all."""
        if not self.tips:
            raise Untestable(_NONE)
        if tree not in self.known:
            lines = [line for tip in self.tips for line in self._lines_of(tip, tree)]
            self.known[tree] = notes.records_of(list(dict.fromkeys(lines)))
        return self.known[tree]

    def _lines_of(self, tip: str, tree: str) -> list[bytes]:
        if not self.signed:
            return _lines(self.repo, tip, tree)
        brought: list[bytes] = []
        words = ("rev-list", "--full-history", "--reverse", tip, "--", *_paths(tree))
        for commit in read_commits(self.repo, self.repo.ask(*words).decode().split()):
            old = {line for parent in commit.parents for line in _lines(self.repo, parent, tree)}
            new = [line for line in _lines(self.repo, commit.oid, tree) if line not in old]
            if new and _is_signed(self.repo, commit.oid):
                brought += new
        return brought


def fetch(repo: Repository, url: str, transport: Mapping[str, str]) -> str:
    """Fetch the notes of another repository into a ref of ours; its name. Raises Untestable."""
    if not url or url.startswith("-"):
        raise MachineError(f"'{url}' is no repository to read notes from; give its URL or path")
    ref = "refs/notes/machine-from/" + hashlib.sha1(url.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    words = ["--no-tags", "--refmap=", "--no-write-fetch-head", "--no-recurse-submodules", "--quiet"]
    words += ["--no-auto-maintenance", "--upload-pack=git-upload-pack"]
    done = repo.run(*TRANSPORT, "fetch", *words, "--", url, f"+{notes.REF}:{ref}", extra=transport)
    if done.code:
        raise Untestable(f"cannot read the notes of '{url}': {done.reason()}")
    return ref


def _is_signed(repo: Repository, commit: str) -> bool:
    """Has a commit a good SSH signature of somebody in gpg.ssh.allowedSignersFile?"""
    done = repo.run("verify-commit", commit)
    told = done.err + done.out.decode("utf-8", "replace")
    return not done.code and 'Good "git" signature' in told


def _paths(tree: str) -> list[str]:
    """Where a note may lie: flat, or under two-digit folders."""
    return [tree, *(re.sub("(..)", r"\1/", tree, count=depth) for depth in (1, 2, 3))]


def _lines(repo: Repository, commit: str, tree: str) -> list[bytes]:
    found = repo.objects([f"{commit}:{path}" for path in _paths(tree)])
    return notes.lines_of(blob.data for blob in found if blob and blob.kind == "blob")
