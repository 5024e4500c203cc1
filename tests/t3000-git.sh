#!/bin/bash
# The git layer: the four faults of plain notes, each shown to lose something, and ours that do not.
. "$(dirname "$0")/lib.sh"
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
# ours CODE ARGS...: a line of Python with the layer at hand; `repo` is the repository around us
ours() { code=$1; shift
  PYTHONPATH=$root "$python" -c "
import json, sys
from libmachine.git import notes, objects, refs, trees
from libmachine.git.repository import open_repository
from libmachine.git.sync import sync
repo = open_repository('.')
$code" "$@"; }
note_of() { ours 'print(json.dumps(notes.read(repo, refs.tree_of(repo, sys.argv[1]))))' "$1"; }
git init -q .
machine say
git add machines
git commit -qm first

# 1. lost updates: four writers at once. Plain git acknowledges and loses; ours keeps every one.
blobs=$(for n in $(seq 120); do echo "$n"; done | while read -r n; do echo "$n" | git hash-object -w --stdin; done)
plain() { echo "$blobs" | sed -n "$1~4p" | while read -r oid; do
  git notes --ref=plain add -m "{}" "$oid" 2>/dev/null && echo "$oid" >>"$work/acknowledged.$1"; done; }
writers=
for me in 1 2 3 0; do plain $me & writers="$writers $!"; done
wait $writers
acknowledged=$(cat "$work"/acknowledged.* | wc -l)
kept=$(git notes --ref=plain list | wc -l)
[ "$kept" -lt "$acknowledged" ] || die "plain notes lost none of $acknowledged: this test shows nothing"
writers=
for me in 1 2 3 4; do
  ours 'for oid in sys.argv[2:]: assert notes.append(repo, oid, {"by": int(sys.argv[1])})' $me \
    $(echo "$blobs" | head -20) & writers="$writers $!"
done
wait $writers
eq "$(ours 'print(sum(map(len, notes.read_all(repo).values())))')" 80
eq "$(git notes --ref=machine list | wc -l)" 20

# 2. libgit2 never folds: every note rewrites one flat tree. Ours folds above 256; git reads it all the same.
ours '
import pygit2
there, who = pygit2.Repository("."), pygit2.Signature("x", "x@x")
for oid in objects.write_blobs(repo, [b"%d" % n for n in range(300)]):
    there.create_note("{}", who, who, oid, "refs/notes/flat")
notes.append_all(repo, [(objects.tree_id([]), {}), *((f"{n:040x}", {"n": n}) for n in range(280))])
'
eq "$(git ls-tree refs/notes/flat | grep -c blob)" 300
eq "$(git ls-tree refs/notes/machine | grep -c blob)" 0
eq "$(git notes --ref=machine list | wc -l)" 301

# 3. a note keeps nothing alive; a recorded version does
bare=$(echo "only noted" | git hash-object -w --stdin)
git notes --ref=plain add -f -m "{}" "$bare"
tree=$(ours '
place = trees.overlay(trees.work_tree("."), {"machines/say/instructions.md": b"only recorded\n"})
refs.record_version(repo, "say", place)
notes.append(repo, place.version("say"), {"kept": True})
print(place.version("say"))')
git gc -q --prune=now
expect 1 git cat-file -e "$bare"
eq "$(git cat-file blob "$tree:instructions.md")" "only recorded"
eq "$(note_of say@v1)" '[{"kept": true}]'

# 4. what a note is on: a commit is lost by squash and cherry-pick, and lies after an amend; content is not and does not
git config notes.rewriteRef refs/notes/plain
git checkout -qb topic
echo "Say something better." >machines/say/instructions.md
git commit -qam better
git notes --ref=plain add -m promote HEAD
ours 'notes.append(repo, refs.tree_of(repo, "say@HEAD"), {"decision": "promote"})'
git checkout -q main
echo x >other
git add other
git commit -qm other
for how in "merge -q --squash" cherry-pick; do
  git checkout -qB try main
  expect 0 git $how topic
  git commit -qm done >/dev/null
  expect 1 git notes --ref=plain show HEAD
  eq "$(note_of say@HEAD)" '[{"decision": "promote"}]'
done
git checkout -q topic
echo "Say something worse." >machines/say/instructions.md
git commit -qa --amend -m worse
eq "$(git notes --ref=plain show HEAD)" promote
eq "$(note_of say@HEAD)" '[]'

# and they travel: beside what a plain push and clone carry, and back
git clone -q --bare . "$work/server.git"
git remote add origin "file://$work/server.git"
ours 'sync(repo)'
git clone -q "$work/server.git" "$work/clone"
cd "$work/clone" || exit 99
git checkout -q topic
eq "$(git for-each-ref refs/notes refs/machine | wc -l)" 0
cp .git/config "$work/config"
eq "$(ours 'print(sync(repo)["versions_in"])')" 1
same .git/config "$work/config"
eq "$(note_of say@v1)" '[{"kept": true}]'
ours 'notes.append(repo, refs.tree_of(repo, "say@HEAD"), {"decision": "refuse"}); sync(repo)'
cd "$work/project" || exit 99
ours 'sync(repo)'
eq "$(note_of say@topic)" '[{"decision": "refuse"}]'
