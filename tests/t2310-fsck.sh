#!/bin/bash
# machine-fsck names every kind of damage, and --repair mends it or sets it aside.
. "$(dirname "$0")/lib.sh"
machine say
git init -q && git add -A && git commit -qm one
f=$work/files; mkdir "$f"
die() { echo "FAILED at line ${BASH_LINENO[-2]}: $*" >&2
  for file in "$out" "$err"; do [ -s "$file" ] && { echo "--- ${file##*/}:"; head -c 2000 "$file"; } >&2; done
  exit 1; }
store_git() { git --git-dir=.machine "$@"; }
printf '{"id":"w","input":"with files","files":{"a/b.txt":"deep\\n","top":"flat"}}\n{"id":"p","input":"plain good","target":"t"}\n{"id":"q","input":"quite bad"}\n' >$f/cases
machine-run say --ordered --concurrency 1 <$f/cases >$f/runs 2>/dev/null && machine-grade --concurrency 1 <$f/runs >$f/graded 2>/dev/null
machine-runs --json >$f/listed
ids=($(jq -r .id $f/runs)) card=$(jq -r .scorecard.id $f/graded | sed -n 2p)
tree=$(jq -r .workspace.before $f/runs | head -1)
loose() { echo ".machine/objects/${1:0:2}/${1:2}"; }
break_at() { chmod u+w "$1"; printf '\x55' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; chmod u-w "$1"; }
expect 0 machine-fsck; eq "$(wc -c <"$out")" 0
cp -r .machine ../sound
log=.machine/records
# planted KIND [HOW [NUMBER]]: --repair finds so many of a kind, answers HOW (mended, aside, left) to one of
# them, and finds nothing after it, unless it is left
planted() { kind=$1 how=${2:-mended}
  if [ "$how" = left ]; then code=1; else code=0; fi
  expect $code machine-fsck --repair --json; hasnt "$err" Traceback
  jq -r '.findings[] | select(.outcome) | "\(.outcome): \(.kind): \(.text)"' "$out" >$f/told
  grep -q "^$how: $kind: ." $f/told || die "no $kind $how"
  eq "$(grep -c "^[a-z]*: $kind: " $f/told)" "${3:-1}"
  eq "$(jq '.faults' "$out")" "$(jq '[.findings[] | select(.outcome == null and (.note | not))] | length' "$out")"
  store_git fsck --strict --full >"$out" 2>&1 || [ -n "${4:-}" ] || die "git fsck"; }
back() { chmod -R u+w .machine; rm -rf .machine; cp -r ../sound .machine; }
rows() { machine-runs --json 2>/dev/null | wc -l | tr -d ' '; }
same_runs() { machine-runs --json >$f/now 2>/dev/null; same $f/listed $f/now; }

# --- objects ------------------------------------------------------------------------------------------
# (that a second --repair finds nothing to do is in test_keepers.py)
# a flipped byte, and another copy in a pack, on the remote, nowhere
store_git repack -a -q; break_at "$(loose "${ids[1]}")" 30; planted object-damaged; same_runs
has $f/told "object-damaged: run ${ids[1]}: "; [ -e .machine/aside/"${ids[1]}" ] || die "deleted"; back
git init -q --bare ../hub; git config machine.runs ../hub; expect 0 machine-sync --runs; cp -r .machine ../shared
break_at "$(loose "${ids[1]}")" 30; planted object-damaged; same_runs
rm -f "$(loose "${ids[1]}")"; planted object-missing; same_runs
blob=$(store_git rev-parse "$tree:a/b.txt"); rm -f "$(loose "$blob")"; planted workspace-dangling; same_runs; back
git config --unset machine.runs
break_at "$(loose "${ids[1]}")" 30; planted object-damaged aside; eq "$(rows)" 2
has .machine/aside/records "${ids[1]}"; has .machine/aside/records "$card"; has $f/told "aside: run-unknown: "; back
rm -f "$(loose "${ids[1]}")"
expect 1 machine-fsck; eq "$(cat "$out")" "object-missing: log line at byte $(sed -n 1p $log | wc -c): run ${ids[1]}: object is missing; machine-fsck --repair"
expect 0 machine-fsck --repair; eq "$(lines "$out")" 2; has "$out" "set aside: object-missing: log line at byte "; has "$err" "2 runs, 2 scorecards; 0 faults"; eq "$(rows)" 2; back
rm -f "$(loose "$blob")"; planted workspace-dangling aside; eq "$(rows)" 3; has .machine/aside/records "$tree"; back
rm -f "$(loose "$tree")"; planted workspace-dangling aside; eq "$(rows)" 3; back
# in a pack
expect 0 machine-gc; cp -r .machine ../packed
pack=$(ls .machine/objects/pack/*.pack)
at=$(store_git verify-pack -v "$pack" | awk -v id="${ids[2]}" '$1 == id { print $5 }')
break_at "$pack" $((at + 20)); expect 1 machine-fsck; has "$out" "object-damaged: "; has "$out" "${ids[2]}"
planted pack-damaged; has $f/told "object-damaged"; [ "$(rows)" -lt 3 ] || die "it cannot be read"
ls .machine/aside/*.pack >/dev/null || die "the pack is gone"; back
rm -rf .machine; cp -r ../packed .machine; rank=$(store_git show-index <"${pack%.pack}.idx" | cut -d' ' -f2 | sort | grep -n "${ids[1]}" | cut -d: -f1)
break_at "${pack%.pack}.idx" $((1032 + 20 * rank - 15)); planted pack-damaged; same_runs
rm -rf .machine; cp -r ../packed .machine; chmod u+w .machine/objects/pack/*; rm .machine/objects/pack/*.idx
expect 1 machine-fsck; has "$out" "pack-half: "; planted pack-half; same_runs; back

# --- the log ------------------------------------------------------------------------------------------
head -c 100 ../sound/records >>"$log"; planted log-torn-end aside; has .machine/aside/records log-torn-end; same_runs; back
sed -i '2s/.\{60\}$//' "$log"; planted log-torn aside; same_runs; has $f/told "mended: log-lacks"; has .machine/aside/records log-torn; back
sed -i '2d' "$log"; planted log-lacks; same_runs; back                 # a record without its line, in its place again
sed -i '5d' "$log"; planted log-lacks; same_runs; back
rm "$log"; planted log-lacks mended 6; same_runs; same "$log" ../sound/records; back
: >"$log"; rm .machine/index.db* .machine/chained; planted log-lacks mended 6; same "$log" ../sound/records; back
sed "s/${ids[1]}/$(printf '%040d' 7)/" ../sound/records | sed -n 2p >>"$log"; planted object-missing aside; same_runs; back
echo '{"type":"run","id":"x"}' >>"$log"; planted log-shape aside; same_runs; back
echo '{"type":"spaceship","id":"'"${ids[1]}"'","machine":"say"}' >>"$log"; planted log-type left; same_runs; back
sed -i '2s/"status":"ok"/"status":"limit"/' "$log"; planted log-differs; same_runs; back
sed -i '1s/"machine":"say"/"machine":"..\/..\/escape"/' "$log"; planted log-differs; same_runs; back
forged=$(store_git cat-file -p "${ids[1]}" | jq -c '. + {extra: 1}' | tr -d '\n' | store_git hash-object -w --stdin)
sed -n 2p ../sound/records | sed "s/${ids[1]}/$forged/" >>"$log"; planted record-forged aside; same_runs; back
forged=$(store_git cat-file -p "${ids[1]}" | jq -Sc '.output = "forged"' | tr -d '\n' | store_git hash-object -w --stdin)
sed -i "2s/${ids[1]}/$forged/" "$log"; expect 1 machine-fsck; has "$out" "log-lacks: record ${ids[1]}"; back
forged=$(echo '{"v":1,"type":"run","machine":"say"}' | store_git hash-object -w --stdin)
sed -n 2p ../sound/records | sed "s/${ids[1]}/$forged/" >>"$log"; planted record-bad aside; same_runs; back
grep "\"id\":\"$card\"" ../sound/records >$f/line; sed -i 1d "$log"; cat $f/line "$log" >$f/log; cat $f/log >"$log"
planted run-unknown aside 2; has $f/told "mended: log-lacks"; eq "$(rows)" 3; back

# --- chains, index, files -----------------------------------------------------------------------------
rm -r .machine/refs/runs/say; planted chain-lacks mended 6
eq "$(store_git ls-tree -r --name-only refs/runs/say/-/chain | grep -vc '\.')" 6; back
rm -f "$(loose "$(store_git rev-parse 'refs/runs/say/-/chain^{tree}')")"; planted chain-broken; same_runs; back
break_at "$(loose "$(store_git rev-parse refs/runs/say/-/chain)")" 12; planted chain-broken mended 1 broken; same_runs; back
rm "$log"; rm -f "$(loose "$(store_git rev-parse refs/runs/say/-/chain:log.jsonl)")"; rm -f .machine/chained # what a line alone knows is lost
expect 1 machine-fsck; expect 0 machine-fsck --repair; has "$out" "mended: log-lacks"; expect 0 machine-fsck; eq "$(rows)" 3; back
python3 - <<'P'
import sqlite3
with sqlite3.connect(".machine/index.db") as db:
    db.execute("UPDATE runs SET status = 'failed' WHERE trial = 1")
P
planted index-differs; same_runs; back
rm .machine/config; planted layout-broken; back
sed -i /precious/d .machine/config; planted layout-broken; has .machine/config preciousObjects; back
rm .machine/.git; planted layout-broken; back
chmod 644 "$log"; chmod 755 .machine/objects; planted mode-open mended 2
eq "$(find .machine -perm /077 | wc -l)" 0; back
echo '{"records":["'"${ids[1]}"'"],"objects":["'"${ids[1]}"'"],"machines":["say"],"tombstones":[{"id":"'"${ids[1]}"'"}]}' >.machine/forgetting
expect 1 machine-fsck; has "$out" "forget-unfinished: "; expect 0 machine-fsck --repair; expect 0 machine-fsck; eq "$(rows)" 2; back
# what the dead left is a note, and no fault
echo x >.machine/tmp/1-1-1; mkdir .machine/tmp/1-1-2; touch -d '2 hours ago' .machine/tmp/*; echo x >.machine/objects/pack/tmp_pack_x
touch -d '2 hours ago' .machine/objects/pack/tmp_pack_x; chmod 600 .machine/objects/pack/tmp_pack_x
expect 0 machine-fsck; has "$out" "note: temp-left: unfinished write 'tmp/1-1-1'"; has "$out" "note: sandbox-left: unfinished directory 'tmp/1-1-2'"
has "$out" "tmp_pack_x"; eq "$(lines "$out")" 3
expect 0 machine-fsck --repair; eq "$(wc -c <"$out")" 0; eq "$(find .machine/tmp -mindepth 1 | wc -l)" 0; back

mkdir .machine/objects/00 2>/dev/null; for n in $(seq 2000); do : >.machine/objects/00/$(printf '%038d' $n); done; chmod -R go= .machine/objects/00
expect 0 machine-fsck; grep -q "^note: gc-worth: .*; machine-gc$" "$out" || die "no hint"
machine-doctor >"$out" 2>"$err"; has "$out" "objects lie in files of their own"; has "$out" "type: machine-gc"; back

# --- notes of the project -----------------------------------------------------------------------------
version=$(python3 -c "print('1' * 40)")
echo '{"fine": 1}' | git notes --ref=machine add -F - "$(git rev-parse HEAD^{tree})"; expect 0 machine-fsck
printf 'not json\n{"type":"verdict","candidate":"%s"}\n' "$version" | git notes --ref=machine append -F - "$(git rev-parse HEAD^{tree})"
expect 1 machine-fsck; eq "$(grep -c "^note-bad: note on version .*; git notes --ref=machine edit" "$out")" 2; has "$out" "a verdict on version 111111111111"
expect 1 machine-fsck --repair; eq "$(grep -c '^note-bad' "$out")" 2
git update-ref -d refs/notes/machine

# --- beside a writer ----------------------------------------------------------------------------------
for n in $(seq 30); do echo "\"case $n good\""; done | (machine-run say --concurrency 1 2>/dev/null >$f/more; echo $? >$f/code) &
for n in 1 2 3; do echo "garbage $n" >>"$log"; machine-fsck --repair >/dev/null 2>"$err" || die "repair"; done
wait; eq "$(cat $f/code)" 0
expect 0 machine-fsck; eq "$(rows)" 33
for id in $(jq -r .id $f/more); do grep -q "\"id\":\"$id\"" "$log" || die "a line was lost"; done
exit 0
