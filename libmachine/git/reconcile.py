"""How the refs of two repositories become one: what to move here, what to push there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from libmachine.git import objects
from libmachine.git.repository import Repository, is_name

Change = tuple[str | None, str | None]
"""(new, old) of a ref; None is absent."""
Refs = Mapping[str, str]

_REF = re.compile(r"refs/machine/(?P<name>.+)/-/(?P<kind>v|candidate|live)(?:/(?P<leaf>[0-9a-f]+))?")
_AUTHOR = re.compile(r"(?P<name>.*?) ?<(?P<mail>[^>]*)> (?P<when>[0-9]+ [+-][0-9]{4})")


@dataclass
class Moves:
    """local: refs to move here. push: refs to move there; old is what was seen there. remove: refs to
    delete there. agreed: candidates on which both sides now agree (None: both have none).
    incoming, outgoing: how many of what, as sync counts them."""

    local: dict[str, Change] = field(default_factory=dict)
    push: dict[str, Change] = field(default_factory=dict)
    remove: dict[str, Change] = field(default_factory=dict)
    agreed: dict[str, str | None] = field(default_factory=dict)
    incoming: Counter[str] = field(default_factory=Counter)
    outgoing: Counter[str] = field(default_factory=Counter)


def _of_kind(refs: Iterable[str], kind: str) -> dict[str, tuple[str, str]]:
    """Ref -> (machine, leaf) of those of a kind; what has another form is left alone."""
    found = {}
    for ref in refs:
        parts = _REF.fullmatch(ref)
        if not parts or parts["kind"] != kind or (parts["leaf"] is None) != (kind == "live"):
            continue
        if is_name(parts["name"]):
            found[ref] = (parts["name"], parts["leaf"] or "")
    return found


def versions(repo: Repository, ours: Refs, theirs: Refs, moves: Moves) -> None:
    """The remote's numbers win; what only we have comes after them; the same tree keeps one number."""
    trees = _trees(repo, {*ours.values(), *theirs.values()})
    mine, his = _by_machine(ours), _by_machine(theirs)
    for name in {*mine, *his}:
        here, there = mine.get(name, {}), his.get(name, {})
        wanted = dict(there)
        known = {trees[oid] for oid in there.values()}
        for number, oid in sorted(here.items()):
            if trees[oid] in known:
                continue
            known.add(trees[oid])
            label = number if number > max(wanted, default=0) else max(wanted) + 1
            wanted[label] = oid
            moves.incoming["renumbered"] += label != number
            moves.push[f"refs/machine/{name}/-/v/{label}"] = (oid, None)
            moves.outgoing["versions_out"] += 1
        kept = {trees[oid] for oid in here.values()}
        moves.incoming["versions_in"] += len({trees[oid] for oid in there.values()} - kept)
        for number in {*here, *wanted}:
            if here.get(number) != wanted.get(number):
                ref = f"refs/machine/{name}/-/v/{number}"
                moves.local[ref] = (wanted.get(number), here.get(number))


def _by_machine(refs: Refs) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for ref, (name, leaf) in _of_kind(refs, "v").items():
        if re.fullmatch("[1-9][0-9]{0,8}", leaf):
            found.setdefault(name, {})[int(leaf)] = refs[ref]
    return found


def _trees(repo: Repository, commits: Iterable[str]) -> dict[str, str]:
    asked = list(commits)
    found = repo.find([f"{oid}^{{tree}}" for oid in asked])
    return {oid: tree or oid for oid, tree in zip(asked, found, strict=True)}


def candidates(ours: Refs, theirs: Refs, base: Refs, moves: Moves) -> None:
    """Three-way by ref: who changed it since both agreed (base) wins; if both did, the remote."""
    for ref in _of_kind({**ours, **theirs, **base}, "candidate"):
        here, there, before = ours.get(ref), theirs.get(ref), base.get(ref)
        if here == there:
            moves.agreed[ref] = here
        elif here is None and there == before:
            moves.remove[ref] = (None, there)
            moves.outgoing["candidates_out"] += 1
        elif there == before or (there is None and here != before):
            moves.push[ref] = (here, there)
            moves.outgoing["candidates_out"] += 1
        else:
            moves.local[ref] = (there, here)
            moves.agreed[ref] = there
            moves.incoming["candidates_in"] += 1


def live(repo: Repository, ours: Refs, theirs: Refs, moves: Moves) -> None:
    """One line of promotions: the remote's, then those only we have, written again on top of them."""
    for ref in _of_kind({**ours, **theirs}, "live"):
        here, there = ours.get(ref), theirs.get(ref)
        if here == there:
            continue
        news = _promotions(repo, there, here)
        own = _promotions(repo, here, there)
        tip = here if here and not news else there
        if here and there and news and own:
            seen = {(c.tree, c.message, c.author) for c in news}
            for promotion in own:
                if (promotion.tree, promotion.message, promotion.author) not in seen:
                    tip = _again(repo, promotion, tip)
        if tip != here:
            moves.local[ref] = (tip, here)
            moves.incoming["promotions_in"] += len(news)
        if tip != there:
            moves.push[ref] = (tip, there)
            moves.outgoing["promotions_out"] += len(own)


def _promotions(repo: Repository, tip: str | None, without: str | None) -> list[objects.Commit]:
    """The commits from a tip that another has not, oldest first."""
    if tip is None:
        return []
    words = ["rev-list", "--first-parent", "--reverse", tip, *([f"^{without}"] if without else [])]
    return objects.read_commits(repo, repo.ask(*words).decode().split())


def _again(repo: Repository, promotion: objects.Commit, parent: str | None) -> str:
    extra = objects.dated(promotion.when)
    author = _AUTHOR.fullmatch(promotion.author)
    if author:
        extra |= {"GIT_AUTHOR_NAME": author["name"], "GIT_AUTHOR_EMAIL": author["mail"]}
        extra["GIT_AUTHOR_DATE"] = f"@{author['when']}"
    parents = [parent] if parent else []
    return objects.write_commit(repo, promotion.tree, parents, promotion.message + "\n", extra)
