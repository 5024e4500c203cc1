"""machine-versions' work: the recorded versions of a machine, and what went live when."""

from __future__ import annotations

from dataclasses import dataclass

from libmachine.git import notes, refs, repository, trees
from libmachine.git.repository import Repository
from libmachine.load import find
from libmachine.project import Project


@dataclass(frozen=True)
class Version:
    """A recorded version. version: its id. number: its label in this clone, vN. when: ISO 8601 UTC. live:
    HEAD holds it. work_tree: the folder holds it. verdicts: the decisions of the verdicts on it."""

    version: str
    number: int
    when: str
    live: bool
    work_tree: bool
    verdicts: tuple[str, ...]


def versions(project: Project, repo: Repository, name: str) -> list[Version]:
    """The recorded versions in order; what HEAD and the work tree hold is recorded first if it was not.

    Raises MachineError if there is no such machine.
    """
    live = work = None
    if repository.head(repo) is not None and trees.commit(repo).has(name):
        live = trees.commit(repo).version(name)
        refs.record_version(repo, name, trees.commit(repo))
    if not repo.bare and trees.work_tree(project.root).has(name):
        work = trees.work_tree(project.root).version(name)
        refs.record_version(repo, name, trees.work_tree(project.root))
    found = refs.versions(repo, name)
    if not found:
        find(name, project.places)
    return [
        Version(
            version=version.tree,
            number=version.number,
            when=version.when,
            live=version.tree == live,
            work_tree=version.tree == work,
            verdicts=tuple(
                str(v.get("decision")) for v in notes.read(repo, version.tree) if v.get("type") == "verdict"
            ),
        )
        for version in found
    ]
