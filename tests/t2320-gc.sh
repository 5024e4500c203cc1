#!/bin/bash
# machine-gc packs the store beside those who write and read, and loses nothing.
. "$(dirname "$0")/lib.sh"
machine say
f=$work/files; mkdir "$f"
store_git() { git --git-dir=.machine "$@"; }
expect 128 machine-gc; has "$err" "no store at"
for n in $(seq 20); do # a commit each
  machine-run say "case $n good" >/dev/null 2>&1 || die run
done
machine-runs | machine-grade >$f/graded 2>/dev/null || die grade
echo "in no tree" | store_git hash-object -w --stdin >$f/blob
machine-runs --json >$f/before
eq "$(store_git rev-list --count refs/runs/say/-/chain)" 21

expect 0 machine-gc --json; cp "$out" $f/gc
eq "$(jq -c '[.type, .after.loose, .after.packs, .commits.before, .commits.after]' $f/gc)" '["gc",0,1,21,1]'
jq -e '.before.bytes > .after.bytes and .before.loose > 60 and .after.files < .before.files' $f/gc >/dev/null || die "no smaller: $(cat $f/gc)"
has "$err" "packing "
machine-runs --json >$f/after; same $f/before $f/after
rm .machine/index.db*; machine-runs --json >$f/after; same $f/before $f/after
expect 0 machine-fsck; eq "$(wc -c <"$out")" 0
store_git fsck --strict --full >"$out" 2>&1 || die "git fsck"
store_git cat-file -e "$(cat $f/blob)" || die "an object in no tree is gone"
eq "$(store_git ls-tree --name-only refs/runs/say/-/chain | grep -vc '\.')" 40 # the folded commit holds all
eq "$(store_git cat-file -p refs/runs/say/-/chain:log.jsonl | wc -l)" 40
same <(store_git cat-file -p refs/runs/say/-/chain:log.jsonl | sort) <(sort .machine/records)
# again: nothing to do
ls -lR --time-style=full-iso .machine/objects >$f/ls; expect 0 machine-gc; has "$out" "bytes in"; hasnt "$err" packing
same $f/ls <(ls -lR --time-style=full-iso .machine/objects)
# what comes later goes into small packs, and those into larger ones
for n in 1 2 3 4 5; do
  machine-run say "later $n" >/dev/null 2>&1; expect 0 machine-gc
done
[ "$(ls .machine/objects/pack/*.pack | wc -l)" -le 3 ] || die "many packs"
expect 0 machine-fsck; eq "$(machine-runs --json | wc -l)" 25
expect 0 machine-run say "case 3 good"; has "$err" "1 stored, 0 run" # an answer in a pack is an answer
eq "$(find .machine -perm /077 | wc -l)" 0

# --- beside a writer and a reader ---------------------------------------------------------------------
for n in $(seq 60); do echo "\"beside $n good\""; done >$f/cases
(machine-run say --concurrency 2 <$f/cases 2>$f/err1 | machine-grade >$f/both 2>$f/err2; echo "${PIPESTATUS[*]}" >$f/codes) &
(for _ in 1 2 3; do machine-runs --json >/dev/null 2>>$f/err3 || echo bad >>$f/err3; done; echo done >$f/read) &
for _ in 1 2 3; do machine-gc >/dev/null 2>"$err" || die "gc beside a writer"; done
wait
eq "$(cat $f/codes)" "0 0"; eq "$(lines $f/both)" 60; eq "$(cat $f/err3)" ""; eq "$(cat $f/read)" "done"
expect 0 machine-gc; expect 0 machine-fsck; eq "$(wc -c <"$out")" 0
eq "$(machine-runs --json | jq -c 'select(.case.input | startswith("beside")) | .scorecard.score' | sort | uniq -c | tr -s ' ')" " 60 1"
# two at once
machine-gc >/dev/null 2>&1 & machine-gc >/dev/null 2>"$err" || die "two at once"; wait $! || die "two at once"

# --- what cannot be packed is said --------------------------------------------------------------------
expect 0 machine-run say "to be damaged"; id=$(jq -r .id "$out")
chmod u+w .machine/objects/${id:0:2}/${id:2}; : >.machine/objects/${id:0:2}/${id:2}
expect 128 machine-gc; has "$err" "machine-fsck --repair"; hasnt "$err" Traceback
eq "$(find .machine/tmp -mindepth 1 | wc -l)" 0
expect 0 machine-fsck --repair; expect 0 machine-gc; expect 0 machine-fsck
exit 0
