#!/bin/bash
# The store is a bare git repository that git may be let loose on: it reads it, and deletes nothing.
. "$(dirname "$0")/lib.sh"
machine say
git init -q && git add -A && git commit -qm one
f=$work/files; mkdir "$f" # outside the project: git cleans that
die() { echo "FAILED at line ${BASH_LINENO[-2]}: $*" >&2
  for file in "$out" "$err"; do [ -s "$file" ] && { echo "--- ${file##*/}:"; head -c 2000 "$file"; } >&2; done
  exit 1; }
store_git() { git --git-dir=.machine "$@"; }
everything() { machine-runs --json 2>"$err" || die runs; }
sound() { expect 0 machine-fsck; eq "$(wc -c <"$out")" 0
  store_git fsck --strict --full >"$out" 2>&1 || die "git fsck"; ! grep -v '^dangling\|^notice' "$out" || die "git fsck"; }

printf '{"id":"w","input":"with files","files":{"a/b.txt":"deep\\n","top":"flat"}}\n{"id":"p","input":"plain good"}\n' >$f/cases
machine-run say --ordered <$f/cases >$f/runs 2>/dev/null || die run
machine-grade <$f/runs >$f/graded 2>/dev/null || die grade
id=$(jq -r .id $f/runs | head -1) card=$(jq -r .scorecard.id $f/graded | head -1)
sound

# --- git reads it -------------------------------------------------------------------------------------
expect 0 store_git cat-file -p "$id"
eq "$(git hash-object --stdin <"$out")" "$id" # the id is that of the very bytes
eq "$(jq -r '.type + " " + .output' "$out")" "run with files"
eq "$(jq -c 'has("id"), has("scorecard"), has("split"), (.case|has("id")), (.case|has("target"))' "$out" | tr '\n' ' ')" \
  "false false false false false "
eq "$(jq -Sc . "$out")" "$(cat "$out")" # canonical: sorted, no spaces
expect 0 store_git cat-file -p "$card"; eq "$(jq -r .run "$out")" "$id"
before=$(jq -r .workspace.before $f/runs | head -1)
expect 0 store_git ls-tree -r --name-only "$before"; eq "$(tr '\n' ' ' <"$out")" "a/b.txt top "
eq "$(store_git show "$before:a/b.txt")" deep
# the chain: commits whose trees hold the records of their batch
expect 0 store_git log --all --format='%H %an %s'
eq "$(lines "$out")" 2
eq "$(store_git ls-tree --name-only refs/runs/say/-/chain~1 | sort | tr '\n' ' ')" \
  "$( (jq -r .id $f/runs; echo "$id.before"; echo log.jsonl) | sort | tr '\n' ' ')"
eq "$(store_git ls-tree --name-only refs/runs/say/-/chain | sort | tr '\n' ' ')" "$( (jq -r .scorecard.id $f/graded; echo log.jsonl) | sort | tr '\n' ' ')"
# it travels as any repository does
expect 0 store_git bundle create ../bundle --all
expect 0 git clone -q --mirror ../bundle ../clone
eq "$(git --git-dir=../clone cat-file -p "$id" | git hash-object --stdin)" "$id"

# --- git deletes nothing ------------------------------------------------------------------------------
blob=$(echo "in no tree" | store_git hash-object -w --stdin)
everything >$f/listed
objects() { store_git cat-file --batch-check --batch-all-objects | cut -d' ' -f1; }
objects >$f/had
store_git gc --prune=now --quiet 2>"$err" || true # it may refuse; it must not delete
store_git prune --expire=now 2>"$err" || true
store_git repack -ad --quiet 2>"$err" || true
store_git reflog expire --expire=now --all 2>"$err" || true
objects | comm -23 $f/had - >$f/lost; eq "$(lines $f/lost)" 0
store_git cat-file -e "$blob" || die "gc deleted an object"
everything >$f/now; same $f/listed $f/now
sound
# packed: everything reads from a pack, new runs go beside it, refs go on from packed-refs
store_git repack -a -q && store_git pack-refs --all --prune && store_git prune-packed -q
eq "$(find .machine/objects/?? -type f 2>/dev/null | wc -l)" 1 # the one in no tree
[ ! -e .machine/refs/runs/say/-/chain ] || die "refs are not packed"
everything >$f/now; same $f/listed $f/now
expect 0 machine-run say --ordered <$f/cases; has "$err" "2 stored, 0 run"; same "$out" $f/runs
expect 0 machine-grade <$f/runs; has "$err" "2 known already"; same "$out" $f/graded
expect 0 machine-show "${id:0:8}"; eq "$(jq -r .id "$out")" "$id"
expect 0 machine-run say "later"
eq "$(store_git log --all --format=%H | wc -l)" 3
sound
rm .machine/index.db*; everything >$f/now; eq "$(lines $f/now)" 3
# what pack files lack, a reader says
mkdir ../aside; mv .machine/objects/pack/*.pack ../aside/
expect 128 machine-show "$id"; has "$err" "fatal: object $id"; hasnt "$err" Traceback
expect 1 machine-fsck; has "$out" "$id"
mv ../aside/*.pack .machine/objects/pack/
sound

# --- the project's git does not see it ----------------------------------------------------------------
eq "$(git status --porcelain .machine | wc -l)" 0
eq "$(grep -c '^/.machine/$' .git/info/exclude)" 1
git clean -fdxq; [ -e .machine/records ] || die "git clean -fdx ate the store"
echo note >note.txt; git stash -uq; git stash pop -q; everything >$f/now; eq "$(lines $f/now)" 3
: >.git/info/exclude; git clean -fdxq; [ -e .machine/records ] || die "git clean -fdx ate the store"
git add -A 2>"$err" || true; eq "$(git ls-files .machine | wc -l)" 0
git reset -q --hard; git clean -fdxq
machine-init 2>/dev/null; machine-init 2>/dev/null
eq "$(grep -c '^/.machine/$' .git/info/exclude)" 1
echo "# mine" >.git/info/exclude; truncate -s -1 .git/info/exclude; machine-init 2>/dev/null
eq "$(cat .git/info/exclude)" "# mine
/.machine/"

# a project in a subdirectory of its repository
mkdir -p "$work/mono/tools/agents" && cd "$work/mono" && git init -q
cp -r "$work/project/machines" tools/agents/
expect 0 machine-run -C tools/agents say hi
eq "$(cat .git/info/exclude | grep machine)" "/tools/agents/.machine/"
git add -A && git commit -qm one && eq "$(git status --porcelain | wc -l)" 0
[ -e tools/agents/.machine/records ] || die "no store"
# a linked worktree uses the main one's store
git worktree add -q "$work/linked" -b other
cd "$work/linked/tools/agents" || exit 1
expect 0 machine-run say hi; has "$err" "1 stored, 0 run"
expect 0 machine-run say "from the worktree"
[ ! -e .machine ] || die "a store in the worktree"
cd "$work/mono/tools/agents" || exit 1
expect 0 machine-run say "from the worktree"; has "$err" "1 stored, 0 run"
# also if the worktree is where the store is made
rm -rf .machine; : >"$work/mono/.git/info/exclude"
cd "$work/linked/tools/agents" || exit 1
expect 0 machine-run say hi
[ -e "$work/mono/tools/agents/.machine/records" ] || die "the store is not the main one's"
eq "$(git -C "$work/mono" status --porcelain | wc -l)" 0
# no repository at all
mkdir "$work/bare" && cd "$work/bare" && cp -r "$work/project/machines" . && expect 0 machine-run say hi
[ -e .machine/records ] || die "no store without git"
cd "$work/project" || exit 1

# --- modes --------------------------------------------------------------------------------------------
rm -rf .machine
(umask 000; machine-run say --ordered <$f/cases >$f/runs; machine-grade <$f/runs >$f/graded; machine-runs >/dev/null) 2>/dev/null
eq "$(find .machine -type d ! -perm 700 | wc -l)" 0
eq "$(find .machine -type f ! -perm 600 ! -path '*/objects/*' | wc -l)" 0
eq "$(find .machine/objects -type f ! -perm 400 | wc -l)" 0
[ "$(find .machine -type f | wc -l)" -gt 10 ] || die "nothing to look at"
(umask 077; machine-run say other >/dev/null 2>&1)
(umask 000; git --git-dir=.machine gc -q; git --git-dir=.machine repack -aq) 2>/dev/null
eq "$(find .machine -type f -perm /077 | wc -l)" 0 # nor does what git adds lie open

# --- what is a record is said by the log --------------------------------------------------------------
id=$(jq -r .id $f/runs | head -1)
forged=$(store_git cat-file -p "$id" | jq -Sc '.output = "forged"' | tr -d '\n' | store_git hash-object -w --stdin)
for _ in 1 2; do
  expect 128 machine-show "$forged"; has "$err" "no record '$forged'"
  everything >$f/now; hasnt $f/now forged
  sound # and it is no fault either
  rm -f .machine/index.db*
done
# as a file of a workspace, a fetched ref, a note: still none
jq -n --arg text "$(store_git cat-file -p "$forged")" '{input: "a workspace", files: {"run.json": $text}}' -c >$f/case
expect 0 machine-run say <$f/case
git --git-dir=.machine update-ref refs/runs/say/-/other "$(store_git rev-parse refs/runs/say/-/chain)"
rm -f .machine/index.db*
expect 128 machine-show "$forged"
everything >$f/now; eq "$(lines $f/now)" 4

# --- machine-fsck names what is planted ---------------------------------------------------------------
rm -rf .machine; git --git-dir=.git worktree prune
machine-run say --concurrency 1 <$f/cases >$f/runs 2>/dev/null; machine-grade --concurrency 1 <$f/runs >$f/graded 2>/dev/null
id=$(jq -r .id $f/runs | tail -1) card=$(jq -r .scorecard.id $f/graded | tail -1)
loose=.machine/objects/${id:0:2}/${id:2}
cp -r .machine ../sound
# planted TEXT: machine-fsck says so, nothing more, with exit 1; then all is put back
planted() { expect 1 machine-fsck; has "$out" "$1"; eq "$(lines "$out")" "${2:-1}"; hasnt "$err" Traceback
  has "$err" "$(lines "$out") fault"
  rm -rf .machine; cp -r ../sound .machine; sound; }
log=.machine/records
chmod 600 "$loose"; printf '\x55' | dd of="$loose" bs=1 seek=40 conv=notrunc status=none; planted "run $id: object $id is damaged"
chmod 600 "$loose"; : >"$loose"; planted "run $id: object $id is damaged"
rm -f "$loose"; planted "run $id: object is missing"
grep "\"id\":\"$card\"" ../sound/records | sed "s/$card/$(printf '%040d' 7)/" >>"$log"; planted "scorecard $(printf '%040d' 7): object is missing"
head -c 100 ../sound/records >>"$log"; planted "torn line at byte"
sed -i '2s/.*/{"type":"run"/' "$log"; planted "no JSON object" 3 # and its scorecard hangs in the air, and the chain knows it
echo '{"type":"run","id":"x"}' >>"$log"; planted "'id' of the run row is no id"
echo '{"type":"spaceship","id":"'"$id"'","machine":"say"}' >>"$log"; planted "unknown type 'spaceship'"
forged=$(echo '{"v":1,"type":"run","machine":"say"}' | store_git hash-object -w --stdin)
sed -n 1p ../sound/records | sed "s/\"id\":\"[0-9a-f]*\"/\"id\":\"$forged\"/" >>"$log"; planted "run $forged: "
forged=$(store_git cat-file -p "$id" | jq -c '. + {extra: 1}' | tr -d '\n' | store_git hash-object -w --stdin)
sed -n 2p ../sound/records | sed "s/\"id\":\"[0-9a-f]*\"/\"id\":\"$forged\"/" >>"$log"; planted "run $forged: its bytes are not canonical, or it has fields"
forged=$(store_git cat-file -p "$card" | jq -Sc '.run = "1111111111111111111111111111111111111111"' | tr -d '\n' | store_git hash-object -w --stdin)
grep "\"id\":\"$card\"" ../sound/records | sed "s/$card/$forged/; s/\"run\":\"$id\"/\"run\":\"$(printf '1%.0s' $(seq 40))\"/" >>"$log"
planted "is of run 111111111111, which the log does not have before it"
sed -i '2s/"status":"ok"/"status":"limit"/' "$log"; planted "the log has status 'limit', the record 'ok'"
sed -i '$s/"score":[0-9.]*/"score":0.25/' "$log"; planted "the log has score 0.25"
sed -i '1s/"machine":"say"/"machine":"..\/..\/..\/..\/tmp\/escape"/' "$log"; planted "the log has machine '../../../../tmp/escape'"
tree=$(jq -r .workspace.before $f/runs | head -1); blob=$(store_git rev-parse "$tree:a/b.txt")
rm -f ".machine/objects/${blob:0:2}/${blob:2}"; planted "object $blob is missing"
echo x >.machine/tmp/1-1-1; expect 0 machine-fsck; has "$out" "note: temp-left: unfinished write 'tmp/1-1-1'"; rm .machine/tmp/1-1-1

# --- damage does not spread ---------------------------------------------------------------------------
# a name in the log that would leave the store leads nowhere
sed -i '1s/"machine":"say"/"machine":"..\/..\/..\/escape"/' "$log"
rm .machine/chained
expect 0 machine-run say "goes on"
[ -z "$(find "$work" -name 'escape*')" ] || die "a ref outside the store"
store_git for-each-ref --format='%(refname)' >"$out"; eq "$(cat "$out")" refs/runs/say/-/chain
# a damaged run is named when it is asked for, and the rest can be had
rm -rf .machine; cp -r ../sound .machine; chmod 600 "$loose"; printf '\x55' | dd of="$loose" bs=1 seek=40 conv=notrunc status=none
expect 128 machine-show "$id"; has "$err" "object $id is damaged"; hasnt "$err" Traceback
expect 0 machine-show "$(jq -r .id $f/runs | head -1)"
