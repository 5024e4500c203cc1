#!/bin/bash
# machine-forget removes a run from everywhere in the store, and sync does not bring it back.
. "$(dirname "$0")/lib.sh"
die() { echo "FAILED at line ${BASH_LINENO[-2]}: $*" >&2
  for file in "$out" "$err"; do [ -s "$file" ] && { echo "--- ${file##*/}:"; head -c 2000 "$file"; } >&2; done
  exit 1; }
f=$work/files; mkdir "$f"
machine say
git init -q && git add -A && git commit -qm one
git init -q --bare $work/hub.git; git config machine.runs $work/hub.git
store_git() { git --git-dir=.machine "$@"; }
secret=hunter2-in-the-clear
# where the secret stands: files, and objects unpacked
mentions() { grep -rlaF "$secret" .machine
  store_git cat-file --batch-all-objects --batch-check='%(objectname) %(objecttype)' | while read -r oid kind; do
    store_git cat-file "$kind" "$oid" | grep -qaF "$secret" && echo "$kind $oid"; done; }
printf '{"id":"a","input":"good","files":{"same":"shared\\n"}}\n{"id":"b","input":"good '$secret'","target":"'$secret'","files":{"same":"shared\\n","key":"'$secret'"}}\n' >$f/cases
machine-run say --ordered <$f/cases >$f/runs 2>/dev/null; machine-grade <$f/runs >$f/graded 2>/dev/null
machine-run say --no-resume "good again" >/dev/null 2>&1
id=$(jq -r 'select(.case.id == "b") | .id' $f/runs) card=$(jq -r 'select(.case.id == "b") | .scorecard.id' $f/graded)
machine-sync --runs >/dev/null; machine-gc >/dev/null 2>&1; machine-runs --json >/dev/null
printf '{"type":"run","id":"%s","given":"%s"\n' "$id" $secret >>.machine/records; machine-fsck --repair >/dev/null 2>&1 # a line set aside
has .machine/aside/records $secret
machine-grade <$f/runs >/dev/null 2>&1
[ "$(mentions | wc -l)" -gt 5 ] || die "nothing to find"

expect 0 machine-forget --dry-run "${id:0:8}"; has "$out" "would forget: 1 run, 1 scorecard; "; has "$out" "  scorecard $card"
cp -r .machine ../before; expect 0 diff -r .machine ../before
expect 0 machine-forget --json "${id:0:8}"
eq "$(jq -c '[.type, .counts.run, .counts.scorecard, .objects, .dry_run]' "$out")" '["forget",1,1,4,false]'
has "$err" "clones, remotes, copies and backups of this store keep theirs"
mentions >$f/found; eq "$(cat $f/found)" ""
expect 128 machine-show "$id"; has "$err" "no record"
eq "$(machine-runs --json | wc -l)" 2
expect 0 machine-fsck; eq "$(wc -c <"$out")" 0
tree=$(jq -r .workspace.before $f/runs | head -1); eq "$(store_git show "$tree:same")" shared # of another run too
eq "$(jq -c '[.id, .type, has("at"), has("by"), length]' .machine/forgotten | tr '\n' ' ')" '["'$id'","run",true,true,4] ["'$card'","scorecard",true,true,4] '
eq "$(store_git log --format=%H refs/runs/say/-/chain | while read -r c; do store_git ls-tree --name-only $c; done | grep -c "$id")" 0
expect 0 machine-forget "$id"; has "$err" "is forgotten already"; has "$out" "forgot: nothing"
expect 3 machine-grade <$f/graded; has "$err" "run $id was forgotten here"; eq "$(mentions)" "" # nor does a file of it
expect 128 machine-forget 0000000000; has "$err" "no record '0000000000'"
expect 128 machine-forget -- --x; expect 129 machine-forget

# --- sync does not bring it back, from the remote that has it nor from a clone ------------------------
for _ in 1 2; do expect 0 machine-sync --runs; eq "$(mentions)" ""; eq "$(machine-runs --json | wc -l)" 2; done
git clone -q . $work/two; (cd $work/two && git config machine.runs $work/hub.git && expect 0 machine-sync --runs && eq "$(machine-runs --json | wc -l)" 3) || exit 1
git init -q --bare $work/new.git
(cd $work/two && git config machine.runs $work/new.git && expect 0 machine-sync --runs) || exit 1
git config machine.runs $work/new.git; expect 0 machine-sync --runs; eq "$(jq .forgotten "$out")" 2
mentions >$f/found; eq "$(cat $f/found)" ""; eq "$(machine-runs --json | wc -l)" 2; expect 0 machine-fsck
expect 0 machine-sync --runs; eq "$(jq -c '[.runs_in,.runs_out,.forgotten]' "$out")" "[0,0,0]"
expect 0 machine-gc; expect 0 machine-fsck; expect 0 machine-run say "after it"

# --- what a verdict rests on --------------------------------------------------------------------------
id=$(jq -r 'select(.case.id == "a") | .id' $f/runs)
"$root/.venv/bin/python" - "$id" <<P || die python
import sys
sys.path.insert(0, "$root")
from libmachine.store.store import Store
store = Store(".machine")
record = {"v": 1, "type": "verdict", "machine": "say", "baseline": None, "candidate": "1" * 40, "decision": "promote", "reasons": [], "warnings": [], "evidence": [sys.argv[1]]}
print(store.add_record(record)["id"], file=open("$f/verdict", "w"))
store.close()
P
verdict=$(cat $f/verdict)
expect 128 machine-forget "$id"; has "$err" "verdict ${verdict:0:12} rests on it; --force"
expect 128 machine-forget "$verdict"; has "$err" "--force"
expect 0 machine-show "$id"
expect 0 machine-forget --force "$id"; has "$err" "verdict $verdict names it and stays"
expect 0 machine-show "$verdict"
expect 0 machine-forget --force "$verdict"; expect 128 machine-show "$verdict"

# --- a writer is waited for ---------------------------------------------------------------------------
printf '{"match": "", "replies": [{"content": "good", "delay_s": 1.5}]}\n' >slow
machine-run say --harness scripted --model slow "slow" >$f/slow 2>/dev/null &
for _ in $(seq 500); do [ "$(wc -c <.machine/claims 2>/dev/null)" != x ] && ! flock -n .machine/writers true && break; sleep 0.02; done
id=$(machine-runs --json | jq -r .id | head -1)
expect 0 machine-forget "$id"; has "$err" "waiting for the commands that write"
wait; eq "$(lines $f/slow)" 1; machine-show "$(jq -r .id $f/slow)" >/dev/null || die "lost"
expect 0 machine-fsck
exit 0
