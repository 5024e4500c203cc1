#!/bin/bash
# machine-sync --runs: runs travel by a remote that is named for them alone, both ways, and nothing is lost.
. "$(dirname "$0")/lib.sh"
die() { echo "FAILED at line ${BASH_LINENO[-2]}: $*" >&2
  for file in "$out" "$err"; do [ -s "$file" ] && { echo "--- ${file##*/}:"; head -c 2000 "$file"; } >&2; done
  exit 1; }
f=$work/files; mkdir "$f"
machine say; machine other
git init -q && git add -A && git commit -qm one
git init -q --bare $work/hub.git; git init -q --bare $work/origin.git; git remote add origin $work/origin.git
git clone -q . $work/two
store_git() { git --git-dir=.machine "$@"; }
score() { machine-grade 2>/dev/null >/dev/null; }
sync() { expect "${1:-0}" machine-sync --runs; }
moved() { jq -r '[.runs_in, .scorecards_in, .runs_out, .scorecards_out] | join(" ")' "$out"; }
all() { machine-runs --json | jq -Sc . | sort; }

# --- only where it was told to ------------------------------------------------------------------------
printf '{"id":"w","input":"with good files","files":{"a/b.txt":"deep\\n"},"target":"t","metadata":{"k":1}}\n{"id":"p","input":"plain good"}\n' >$f/cases
machine-run say <$f/cases 2>/dev/null | score
expect 128 machine-sync --runs; has "$err" "git config machine.runs URL"
expect 129 machine-sync --runs origin; has "$err" "no other"
git config machine.runs $work/hub.git
sync; eq "$(moved)" "0 0 2 2"
eq "$(git --git-dir=$work/hub.git for-each-ref --format='%(refname)')" refs/runs/say/-/chain
eq "$(git --git-dir=$work/origin.git for-each-ref | wc -l)" 0
git push -q origin main; git push -q --all origin; git push -q --mirror $work/origin.git # nor by any push of the project
eq "$(git --git-dir=$work/origin.git for-each-ref --format='%(refname)' | grep -c runs)" 0
sync; eq "$(moved)" "0 0 0 0"

# --- another clone, that has no store yet -------------------------------------------------------------
all >$f/one; here=$PWD
cd $work/two || exit 99
git remote add shared $work/hub.git; git config machine.runs shared # a remote's name will do
sync; eq "$(moved)" "2 2 0 0"
all >$f/two; same $f/one $f/two # with case ids, targets, metadata, scorecards
tree=$(machine-runs --json | jq -r '.workspace.before // empty'); eq "$(store_git show "$tree:a/b.txt")" deep
expect 0 machine-run say <$f/cases; has "$err" "2 stored, 0 run" # what was bought there is not bought here
expect 0 machine-fsck; eq "$(find .machine -perm /077 | wc -l)" 0
eq "$(git status --porcelain | wc -l)" 0
sync; eq "$(moved)" "0 0 0 0"

# --- both add, also to each other's runs, and to a machine the other has not --------------------------
echo '"from two good"' | machine-run say 2>/dev/null | score
echo '"another of two"' | machine-run other 2>/dev/null | score
cd "$here"; echo '"from one good"' | machine-run say 2>/dev/null | score
echo 'description = "The answer says it twice."' >>machines/say/rubric.toml; sed -i '0,/description/{/description/d}' machines/say/rubric.toml
machine-runs say --json | jq -c 'select(.case.id == "p")' | machine-grade >/dev/null 2>"$err" # a second scorecard of the same run
sync; eq "$(moved)" "0 0 1 2"
cd $work/two; sync; eq "$(moved)" "1 2 2 2"
cd "$here"; sync; eq "$(moved)" "2 2 0 0"
all >$f/one; (cd $work/two && all) >$f/two; same $f/one $f/two; eq "$(lines $f/one)" 5
for _ in 1 2; do sync; eq "$(moved)" "0 0 0 0"; (cd $work/two && sync && eq "$(moved)" "0 0 0 0") || exit 1; done
expect 0 machine-fsck; (cd $work/two && expect 0 machine-fsck) || exit 1
# packed, folded, with the index gone and the log set in order anew: still nothing moves
machine-gc >/dev/null 2>&1; rm .machine/index.db* .machine/chained .machine/shared; sync; eq "$(moved)" "0 0 0 0"
# two at once
echo '"one more good"' | machine-run say 2>/dev/null | score; (cd $work/two; echo '"two more good"' | machine-run say 2>/dev/null | score)
machine-sync --runs >$f/a 2>&1 & (cd $work/two && machine-sync --runs >$f/b 2>&1) || die "at once: $(cat $f/b)"; wait $! || die "at once: $(cat $f/a)"
sync; (cd $work/two && sync) || exit 1
all >$f/one; (cd $work/two && all) >$f/two; same $f/one $f/two; eq "$(lines $f/one)" 7

# --- what is not what it says is refused, named, and the rest is taken --------------------------------
cd $work/two; echo '"an honest good run"' | machine-run say 2>/dev/null | score; sync
git clone -q --bare $work/hub.git $work/evil.git 2>/dev/null; cd $work/evil.git; git fetch -q ../hub.git '+refs/runs/*:refs/runs/*'
tip=$(git rev-parse refs/runs/say/-/chain)
row=$(git cat-file -p $tip:log.jsonl | grep '"type":"run"'); id=$(jq -r .id <<<"$row")
bad1=$(git cat-file -p $id | jq -Sc '.output = "forged"' | tr -d '\n' | git hash-object -w --stdin)    # canonical, and the row lies
bad2=$(git cat-file -p $id | jq -c '. + {extra: 1}' | tr -d '\n' | git hash-object -w --stdin)         # no canonical record
bad3=$(git cat-file -p $id | jq -Sc '.machine = "other"' | tr -d '\n' | git hash-object -w --stdin)    # of another machine
card=$(git cat-file -p $tip:log.jsonl | grep '"type":"scorecard"' | head -1)
bad4=$(git cat-file -p "$(jq -r .id <<<"$card")" | jq -Sc '.run = "1111111111111111111111111111111111111111"' | tr -d '\n' | git hash-object -w --stdin)
lines=$({ jq -c --arg id $bad1 '.id = $id | .status = "limit"' <<<"$row"; jq -c --arg id $bad2 '.id = $id' <<<"$row"
  jq -c --arg id $bad3 '.id = $id' <<<"$row"; jq -c --arg id $bad4 '.id = $id | .run = "1111111111111111111111111111111111111111"' <<<"$card"; echo garbage; } | git hash-object -w --stdin)
ghost=$(git cat-file -p $id | jq -Sc '.output = "without a line"' | tr -d '\n' | git hash-object -w --stdin)
tree=$(for bad in $bad1 $bad2 $bad3 $bad4 $ghost; do printf '100644 blob %s\t%s\n' $bad $bad; done | { cat; printf '100644 blob %s\tlog.jsonl\n' "$lines"; } | git mktree)
git push -q ../hub.git "$(git commit-tree -p $tip -m evil $tree):refs/runs/say/-/chain"
cd "$here"; sync 3
eq "$(moved)" "1 1 0 0"; eq "$(jq .refused "$out")" 5; eq "$(grep -c '^refused: ' "$err")" 5
for bad in $bad1 $bad2 $bad3 $bad4 $ghost; do has "$err" "refused: $bad of say: "; ! store_git cat-file -e $bad 2>/dev/null || die "$bad came in"; done
expect 0 machine-fsck; eq "$(machine-runs --json | grep -c forged)" 0; eq "$(machine-runs --json | wc -l)" 8
sync; eq "$(moved)" "0 0 0 0"; eq "$(jq .refused "$out")" 0 # it is said once
echo '"after it good"' | machine-run say 2>/dev/null | score; sync; eq "$(moved)" "0 0 1 1" # and we go on
git clone -q "$here" $work/three; cd $work/three; git config machine.runs $work/hub.git; sync 3; eq "$(jq .runs_in "$out")" 9; expect 0 machine-fsck

# --- a remote that is not there, and one that refuses -------------------------------------------------
cd "$here"; git config machine.runs $work/nowhere.git; sync 128; has "$err" "cannot fetch runs from"; hasnt "$err" Traceback
git config machine.runs "ext::sh -c touch% $work/pwned"; sync 128; [ ! -e $work/pwned ] || die "a remote ran a program"
git config machine.runs "--upload-pack=touch $work/pwned"; sync 128; has "$err" "is no remote"; [ ! -e $work/pwned ] || die "an option"
git init -q --bare $work/closed.git; printf '#!/bin/sh\nexit 1\n' >$work/closed.git/hooks/pre-receive; chmod +x $work/closed.git/hooks/pre-receive
git config machine.runs $work/closed.git; sync 128; has "$err" "cannot send runs to"; expect 0 machine-fsck
# to a second remote all goes once more
git init -q --bare $work/second.git; git config machine.runs $work/second.git; sync; eq "$(jq .runs_out "$out")" 9; sync; eq "$(moved)" "0 0 0 0"
eq "$(find .machine/tmp -mindepth 1 | wc -l)" 0
exit 0
