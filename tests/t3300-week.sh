#!/bin/bash
# A team's week: two clones, a server with pre-receive, a fork. What must be refused is, whatever its author does.
. "$(dirname "$0")/lib.sh"
export PYTHONPATH=$root
for k in 0 1 2 3 4; do # the k-th level answers the first 6k of 24 exams well
  good=$(seq -s '|' $((6 * k))); [ $k = 0 ] && good=none
  printf '{"match": "exam (%s)$", "replies": ["good"]}\n{"match": "", "replies": ["bad"]}\n' "$good" >"l$k.rules"
done
exam() { for n in $(seq "$2"); do printf '{"id": "h%s", "input": "exam %s"}\n' "$n" "$n"; done >"machines/$1/holdout.jsonl"; }
level() { printf '{"model": "l%s.rules", "harness": "scripted"}\n' "$2" >"machines/$1/model.json"; }
edit() { echo "$2" >>"machines/$1/instructions.md"; }
judged() { machine-gate --trials 1 "$@" >/dev/null 2>"$work/gate" || { cat "$work/gate" >&2; die "gate $*"; }; }
commit() { git add -A && git commit -qm "$*"; }
bypass() { git add -A && git commit -qnm "$*"; }
pull() { git pull -q --no-edit "$@" 2>/dev/null && machine-sync >/dev/null 2>&1 || die "pull $*"; }
in_() { cd "$work/$1" || exit 1; }
reset() { git reset -q --hard "${1:-origin/main}"; git clean -fdq; }
server() { git --git-dir="$work/server" "$@"; }

# Monday: ann begins, bob clones; both and the server have the hooks
git init -q --bare ../server && expect 0 machine-init --hooks --server ../server
git init -q; git remote add origin "$work/server"; echo .machine >.gitignore
machine say; exam say 24; level say 0
expect 0 machine-init --hooks
commit "say"; expect 0 git push -q -u origin main
cd "$work" || exit 1; mv project ann; git clone -q server bob; in_ bob; expect 0 machine-init --hooks

# good: measured, committed, pushed; the verdict went first
in_ ann; level say 1; judged say; expect 0 commit "level 1"
expect 0 git push -q
server show-ref -q refs/notes/machine || die "no verdict on the server"
in_ bob; pull

# bad and bypassed: refused at every step, at last by the server
edit say "placebo"; expect 1 machine-gate say
expect 1 commit "placebo"
bypass "placebo"
expect 1 git push -q
has "$err" "refused: say (refs/heads/main): not_higher"
expect 1 git push -q --no-verify
has "$err" "remote: refused: say"
expect 1 git -c core.hooksPath=/dev/null push -q
expect 1 git push -q --no-verify origin HEAD:refs/heads/another
expect 1 git push -q --no-verify origin HEAD:refs/for/main
expect 0 git push -q --no-verify origin HEAD:refs/tags/mine
reset

# an orphan branch is compared with what is live, not taken for a new machine
git checkout -q --orphan island; level say 3; bypass "island"
expect 1 git push -q --no-verify origin island
has "$err" "refused: say"
git checkout -qf main; reset

# forced: in the clone, and on a server that allows it
level say 0; edit say "forced"; machine-gate say >/dev/null 2>&1
expect 0 machine-commit say --force "demo on Tuesday"
expect 1 git push -q
has "$err" "machine.allowForced"
expect 1 git push -q --no-verify
server config machine.allowForced true; git config machine.allowForced true
expect 0 git push -q
has "$err" "forced by tester: demo on Tuesday"
server config --unset machine.allowForced; git config --unset machine.allowForced

# back to the version before: an earlier one of the history
git checkout -q HEAD~1 -- machines/say; expect 0 commit "revert"
expect 0 git push -q
in_ ann; pull

# rubric-only and tools-only pass
sed -i 's/weight = 1/weight = 2/' machines/say/rubric.toml; expect 0 commit "rubric"
echo '# tools' >>machines/say/machine.py; expect 0 commit "tools"
expect 0 git push -q
has "$err" "rubric_only: say (refs/heads/main): reweighted good 1 -> 2"

# rebased and squashed: the verdict is on content, so it holds
in_ bob; pull; echo docs >README; commit "docs"; expect 0 git push -q
in_ ann; level say 2; edit say "level 2"; judged say; commit "level 2"; echo more >>machines/say/cases.jsonl
printf '{"input": "one more"}\n' >>machines/say/cases.jsonl; sed -i '/^more$/d' machines/say/cases.jsonl; commit "case"
git pull -q --rebase 2>/dev/null; git reset -q --soft HEAD~2; expect 0 git commit -qm "level 2, squashed"
expect 0 git push -q
in_ bob; pull

# concurrent: both better than what was live, the second is stale
level say 3; edit say "bob's"; judged say; commit "bob's level 3"
in_ ann; level say 3; edit say "ann's"; judged say; commit "ann's level 3"; expect 0 git push -q
in_ bob; expect 1 git push -q
has "$err" "machine-sync"
git fetch -q; machine-sync >/dev/null 2>&1 || die sync
git merge -q origin/main >/dev/null 2>&1; git checkout -q --ours machines/say; git add -A
git commit -qm "bob's way"; expect 1 git push -q
has "$err" "refused: say (refs/heads/main): stale"
expect 1 git push -q --no-verify
reset

# holdout changed together with the behaviour: measured on the new one, with a warning; strict refuses
level say 4; edit say "level 4"; judged say; exam say 26; bypass "level 4, other exam"
expect 1 git push -q
has "$err" "other_holdout"
expect 1 git push -q --no-verify
judged say --base origin/main; machine-sync >/dev/null 2>&1
server config machine.strict true
expect 1 git push -q --no-verify
has "$err" "strict: "
server config --unset machine.strict
expect 0 git push -q
has "$err" "warning: holdout_changed"

# renamed; renamed and worse; deleted, and back as something else
in_ ann; pull
git mv machines/say machines/speak; expect 0 commit "renamed"; expect 0 git push -q
git mv machines/speak machines/talk; level talk 0; bypass "renamed, worse"; expect 1 git push -q --no-verify
has "$err" "renamed from speak and changed"
reset
mkdir keep && cp -r machines/speak keep; git rm -rq machines/speak; git commit -qm "deleted"; expect 0 git push -q
mkdir -p machines && mv keep/speak machines && rmdir keep; edit speak "other"; bypass "back, other"
expect 1 git push -q --no-verify
has "$err" "it is back: its last version was"
git checkout -q HEAD~2 -- machines/speak; expect 0 commit "as it was"; expect 0 git push -q
expect 0 git mv machines/speak machines/say; expect 0 commit "renamed back"; expect 0 git push -q

# merged: a topic branch with its verdict; a mixture of two has none
machine two; exam two 24; level two 0; expect 0 commit "two"; expect 0 git push -q
git checkout -qb topic; level two 1; judged two; commit "two, level 1"; expect 0 git push -q origin topic
git checkout -q main; echo more >>README; commit "docs"; git merge -q --no-edit topic; expect 0 git push -q
git checkout -q topic; level two 2; edit two "topic"; judged two; commit "two, level 2"; expect 0 git push -q origin topic
git checkout -q main; edit two "main"; bypass "main"; git merge -q topic >/dev/null 2>&1
printf 'mixed\n' >machines/two/instructions.md; level two 2; bypass "mixed"
expect 1 git push -q --no-verify
has "$err" "refused: two"
reset
expect 0 git push -q origin :topic

# a fork: its verdicts are read from there; forged ones and unsigned ones can be told
git clone -q --bare "$work/server" "$work/fork"; git clone -q "$work/fork" "$work/carol"; in_ carol
level two 2; judged two --base HEAD; commit "from the fork"; git push -q origin HEAD:better refs/notes/machine 2>/dev/null || die
in_ ann; git fetch -q "$work/fork" better:carol
expect 1 machine-gate --range main..carol
has "$err" "no_verdict"
expect 0 machine-gate --range main..carol --notes-from "$work/fork"
expect 1 machine-gate --range main..carol --notes-from "$work/fork" --require signed
expect 125 machine-gate --range main..carol --notes-from "$work/nowhere"
ssh-keygen -q -t ed25519 -N '' -f "$work/key"
echo "tester@localhost $(cat "$work/key.pub")" >"$work/allowed"
for where in ann carol; do
  git -C "$work/$where" config gpg.format ssh; git -C "$work/$where" config user.signingKey "$work/key"
  git -C "$work/$where" config gpg.ssh.allowedSignersFile "$work/allowed"
done
in_ carol; tip=$(git rev-parse refs/notes/machine)
before=$(git rev-parse -q --verify "$tip^")
git update-ref refs/notes/machine "$(git commit-tree -S "$tip^{tree}" ${before:+-p $before} -m signed)"
git push -q -f origin refs/notes/machine 2>/dev/null || die
in_ ann
expect 0 machine-gate --range main..carol --notes-from "$work/fork" --require signed
: >"$work/allowed"
expect 1 machine-gate --range main..carol --notes-from "$work/fork" --require signed
# forged in the fork: a refusal that says promote
in_ carol; git checkout -q -b forged origin/main; edit two "forged"; machine-gate two >refused 2>/dev/null
"$root/.venv/bin/python" - <<'PY'
import json
from libmachine.git import notes, repository
record = json.loads(open("refused").readline())
del record["id"]
record |= {"decision": "promote", "reasons": [], "decided_at": "2999-01-01T00:00:00Z"}
repo = repository.open_repository(".")
from libmachine.git.repository import read_ref, move
move(repo, notes.REF, None, read_ref(repo, notes.REF))
notes.append(repo, record["candidate"], record)
PY
rm refused; git add -A; git commit -qnm forged
git push -q --no-verify -f origin forged refs/notes/machine 2>/dev/null || die
in_ ann; git fetch -q "$work/fork" forged:forged
expect 1 machine-gate --range main..forged --notes-from "$work/fork"
has "$err" "forged: the noted decision does not follow"

# without hooks in the clone: verdicts and branch in one push
git clone -q "$work/server" "$work/dan"; in_ dan; git fetch -q origin refs/notes/machine:refs/notes/machine
level two 3; judged two; commit "two, level 3"
expect 1 git push -q origin main
expect 0 git push -q origin main refs/notes/machine
in_ ann; git update-ref -d refs/notes/machine; reset; pull
expect 0 machine-gate --range HEAD~1..HEAD
server update-ref -d refs/notes/machine
edit two "notes gone"; bypass "gone"
expect 1 git push -q --no-verify
has "$err" "cannot be judged: two"
