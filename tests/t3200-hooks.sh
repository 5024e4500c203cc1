#!/bin/bash
# The gate as git's hooks see it: the table row by row, the index git really commits, nothing run.
. "$(dirname "$0")/lib.sh"
git init -q
echo .machine >.gitignore
printf '{"match": "", "replies": ["good"]}\n' >good.rules
printf '{"match": "", "replies": ["bad"]}\n' >bad.rules
printf '{"match": "exam (1|3|5|7|9|11)$", "replies": ["good"]}\n{"match": "", "replies": ["bad"]}\n' >mid.rules
exam() { for n in $(seq "$2"); do printf '{"id": "h%s", "input": "exam %s"}\n' "$n" "$n"; done >"machines/$1/holdout.jsonl"; }
level() { printf '{"model": "%s.rules", "harness": "scripted"}\n' "$2" >"machines/$1/model.json"; } # level NAME bad|mid|good
edit() { echo "$2" >>"machines/$1/instructions.md"; }
judged() { machine-gate "$@" >/dev/null 2>"$work/gate" || { cat "$work/gate" >&2; die "gate $*"; }; }
commit() { git add -A && git commit -qm "$*"; }
bypass() { git add -A && git commit -qnm "$*"; }
undo() { git reset -q --hard; git clean -fdq; }
machine say; exam say 12; level say bad

# unborn HEAD, a new machine: nothing to compare with
expect 0 machine-init --hooks
expect 0 commit "first"
expect 0 machine-gate --range "0000000000000000000000000000000000000000..HEAD"

# another behaviour without any notes: it cannot be said, and what to type is
level say mid
expect 1 commit "no verdict"
has "$err" "cannot be judged: say: no verdicts are here"
has "$err" "type: machine-gate say"
git add -A
expect 125 machine-gate --staged
judged say
expect 0 commit "mid"
git log -1 --format=%B >"$out"
has "$out" "Machine-Verdict: say promote z="

# same: cases, docs; tools with a warning; a rubric that differs in form only
echo '{"id": "d", "input": "another day"}' >>machines/say/cases.jsonl; echo hi >README
expect 0 commit "cases and docs"
eq "$(cat "$err")" ""
echo '# a comment' >>machines/say/machine.py
expect 0 commit "tools"
has "$err" "same: say: warning: tools_changed"
echo '# a comment' >>machines/say/rubric.toml
expect 0 commit "form"
hasnt "$err" "rubric_only"

# rubric_only, listed
sed -i 's/weight = 1/weight = 2/' machines/say/rubric.toml
printf '\n[short]\ndescription = "It is short."\nrole = "audit"\n' >>machines/say/rubric.toml
sed -i 's/"good": check(good)/"good": check(good), "short": check(lambda run: len(run.output) < 9)/' machines/say/machine.py
expect 0 commit "rubric"
has "$err" "rubric_only: say: added short; reweighted good 1 -> 2"

# the behaviour differs: placebo refused, a verdict for another base is stale, strict refuses warnings
edit say "placebo"
expect 1 commit "placebo"
has "$err" "refused: say: no_verdict"
expect 1 machine-gate say
expect 1 commit "placebo, measured"
has "$err" "refused: say: not_higher"
has "$err" "machine-commit say --force"
undo
level say good
judged say
echo '# other graders' >>machines/say/machine.py
git config machine.strict true
expect 1 commit "strict"
has "$err" "strict: "
git config --unset machine.strict
expect 0 commit "good"
has "$err" "promote: say: warning: graders_changed"
good=$(git rev-parse HEAD)

# rubric or holdout changed together with the behaviour: the verdict is under the new ones
level say mid; expect 0 commit "back to an earlier version"
expect 0 machine-gate --range HEAD~1..HEAD --json
eq "$(jq -r .decision "$out")" revert
level say good; edit say "again"; judged say
sed -i 's/weight = 2/weight = 3/' machines/say/rubric.toml
expect 1 commit "rubric too"
has "$err" "no_verdict"
judged say
expect 0 commit "rubric too"
has "$err" "warning: rubric_changed"
level say bad; bypass "worse"
level say good; edit say "with another exam"; judged say
exam say 14
expect 1 commit "holdout too"
has "$err" "other_holdout"
judged say
expect 0 commit "holdout too"
has "$err" "warning: holdout_changed"
git config machine.strict true
expect 1 machine-gate --range HEAD~1..HEAD
has "$err" "strict: holdout_changed"
git config --unset machine.strict

# a graded pass on chosen cases only, a forged decision, a verdict that only says not worse
git tag here
edit say "forged"
machine-gate say >refused 2>/dev/null
note() { "$root/.venv/bin/python" - "$1" <<'PY'
import json, sys
sys.path.insert(0, sys.argv[0] or "")
from libmachine.git import notes, repository
for line in open(sys.argv[1]):
    record = json.loads(line)
    record.pop("id", None)
    notes.append(repository.open_repository("."), record["candidate"], record)
PY
}
export PYTHONPATH=$root
jq -c '.decision = "promote" | .decided_at = "2999"' refused >forged; note forged
expect 1 commit "forged"
has "$err" "refused: say: "
fresh() { # fresh FILTER: the only note on the new version is the refused verdict changed by a jq program
  git update-ref -d refs/notes/machine
  jq -c "$1" refused >forged; note forged; git add -A; }
fresh '.decision = "promote"'
expect 1 machine-gate --staged
has "$err" "forged: the noted decision does not follow from its numbers"
fresh '.decision = "promote" | .arms.live[][] = 0 | .arms.cases = .arms.cases[:8] | .arms.live = .arms.live[:8] | .arms.candidate = .arms.candidate[:8]'
expect 1 machine-gate --staged
has "$err" "other_cases"
fresh '.decision = "promote" | .arms.live[][] = 0 | .rule.min_z = -99 | .arms = "x"'
expect 1 machine-gate --staged
fresh '.decision = "promote" | .rule.no_worse = true'
expect 1 machine-gate --staged
has "$err" "no_worse"
fresh '.decision = "promote" | .arms.live[][] = 0 | .arms.live[0] = [1, 1, 1] | .arms.candidate[0] = [0, 0, 0] | .rule.min_z = 1'
git config machine.minZ 9
expect 1 machine-gate --staged
has "$err" "policy: within_noise"
git config machine.minZ 2
expect 0 machine-gate --staged
fresh '.decision = "promote" | .arms.live[3:][][] = 1 | .arms.live[:3][][] = 0 | .arms.live[0] = [0.2, 0, 0] | .rule.min_z = 1 | .rule.confirm = false'
git config machine.minZ 1
expect 1 machine-gate --staged
has "$err" "unconfirmed"
has "$err" "type: machine-gate say --rerun"
git config machine.requireConfirm false
expect 0 machine-gate --staged
git config --unset machine.requireConfirm; git config --unset machine.minZ

# forced: where it is made, not in a range unless the receiver says so
fresh '{v, type, machine, baseline, candidate, decided_at, decision: "forced", reasons: [], warnings: [], forced: {by: "ann", reason: "demo"}}'
expect 0 git commit -qm forced
has "$err" "forced: say: forced by ann: demo"
expect 1 machine-gate --range HEAD~1..HEAD
has "$err" "machine.allowForced"
git -c machine.allowForced=true config machine.allowForced >/dev/null
git config machine.allowForced true
expect 0 machine-gate --range HEAD~1..HEAD
git config --unset machine.allowForced
git reset -q --hard here

# new, renamed, renamed and changed, deleted, deleted and back
cp -r machines/say machines/told
expect 0 commit "new"
git mv machines/told machines/spoke
expect 0 commit "renamed"
git mv machines/spoke machines/said; edit said "changed"
expect 1 commit "renamed and changed"
has "$err" "renamed from spoke and changed"
undo
git rm -rq machines/spoke
expect 0 git commit -qm "deleted"
cp -r machines/say machines/spoke; edit spoke "another"
expect 1 commit "back, and another"
has "$err" "it is back: its last version was"
undo

# a child is a changed machine of its own when its parent changes
machine say/low; level say/low bad; exam say/low 12
printf '[low]\ndescription = "low"\n' >machines/say/low/rubric.toml
sed -i 's/{"good"/{"low"/' machines/say/low/machine.py
expect 0 commit "child"
edit say "for the child too"
expect 1 commit "parent"
has "$err" "refused: say: no_verdict"
has "$err" "refused: say/low: no_verdict"
undo

# links and submodules hide machines
ln -s say machines/other
expect 1 commit "link"
has "$err" "cannot be judged: machines/other: foreign"
undo

# the index that git commits: -a, PATH, an index of one's own, a linked worktree
edit say "unstaged"
expect 1 git commit -qam "a"
has "$err" "refused: say:"
expect 1 git commit -qm "path" machines/say/instructions.md
has "$err" "refused: say:"
git add machines/say; echo more >>README
expect 0 git commit -qm "another path" README
undo
git worktree add -q "$work/tree" -b side
cd "$work/tree" || exit 1
edit say "in a worktree"
expect 1 git commit -qam "worktree"
has "$err" "refused: say:"
cd "$work/project" || exit 1
expect 0 machine-gate --staged
cp .git/index other-index
edit say "other index"; GIT_INDEX_FILE=other-index git add -A
undo_index() { rm -f other-index; undo; }
GIT_INDEX_FILE=$PWD/other-index expect 1 machine-gate --staged
expect 0 machine-gate --staged
undo_index

# merge: as in a parent passes, a mixture needs a verdict against the first parent
git reset -q --hard here
git checkout -qb topic; edit say "topic"; bypass "topic"; git checkout -q main
edit say "main"; bypass "main"
git merge -q topic >/dev/null 2>&1
git checkout -q --theirs machines/say/instructions.md; git add -A
expect 0 git commit -qm "merge, theirs"
git reset -q --hard HEAD~1; git merge -q topic >/dev/null 2>&1
echo "mixed" >machines/say/instructions.md; git add -A
expect 1 git commit -qm "merge, mixed"
has "$err" "refused: say:"
undo

# a base that is not here, and a shallow clone
expect 125 machine-gate --range 0123456789012345678901234567890123456789..HEAD
has "$err" "git fetch"
git clone -q --depth 1 "file://$PWD" ../shallow
cd ../shallow || exit 1
expect 125 machine-gate --range HEAD~1..HEAD
has "$err" "shallow"
edit say "shallow"; git add -A
expect 125 machine-gate --staged
cd "$work/project" || exit 1

# a bare PATH, and no gate at all
edit say "bare"; git add -A
expect 1 env -i HOME="$HOME" PATH=/usr/bin:/bin git commit -qm bare
has "$err" "refused: say:"
sed 's|^gate=.*|gate=/no/such|' .git/hooks/pre-commit >hook && chmod +x hook && mv hook .git/hooks/pre-commit
expect 1 env -i HOME="$HOME" PATH=/usr/bin:/bin git commit -qm bare
has "$err" "machine-init --hooks"
undo

# beside foreign hooks, twice, and out again
expect 0 machine-init --remove-hooks
[ ! -e .git/hooks/pre-commit ] || die "still there"
printf '#!/bin/sh\necho foreign >>"%s/foreign"\n' "$work" >.git/hooks/pre-commit
printf '#!/bin/sh\ncat >>"%s/foreign"\nexit 7\n' "$work" >.git/hooks/pre-push
chmod +x .git/hooks/pre-commit .git/hooks/pre-push; cp .git/hooks/pre-commit "$work/was"
expect 0 machine-init --hooks
expect 0 machine-init --hooks
edit say "foreign"
expect 1 commit "foreign"
has "$work/foreign" foreign
has "$err" "refused: say:"
undo
git init -q --bare ../empty
expect 1 git push ../empty main
has "$work/foreign" "refs/heads/main"
expect 0 machine-init --remove-hooks
same .git/hooks/pre-commit "$work/was"
[ ! -e .git/hooks/pre-commit.before-machine ] || die "left over"
[ ! -e .git/hooks/commit-msg ] || die "commit-msg left over"
git config core.hooksPath .husky
expect 128 machine-init --hooks
has "$err" "core.hooksPath is '.husky'"
eq "$(git config core.hooksPath)" .husky
git config --unset core.hooksPath; rm -f .git/hooks/pre-commit .git/hooks/pre-push

# a repository whose every .py runs a program: judged, listed, refused, and none of it runs; nor do
# filters, textconv and fsmonitor of its configuration
git init -q "$work/evil"; cd "$work/evil" || exit 1
export MARK=$work/mark
for name in a b b/c; do
  machine "$name"; exam "$name" 12; level "$name" bad
  echo 'import os; os.system("touch $MARK")' >"machines/$name/machine.py"
  cp "machines/$name/machine.py" "machines/$name/tools.py"
done
git add -A; git commit -qm evil
edit a x; edit b x; git add -A; git commit -qm worse
edit a y; git add -A
echo '* filter=evil diff=evil' >.gitattributes
for key in filter.evil.clean filter.evil.smudge filter.evil.process core.fsmonitor diff.evil.textconv diff.external gpg.program; do
  git config "$key" "touch $MARK; cat"
done
printf '#!/bin/sh\ntouch "$MARK"\n' | tee .git/hooks/post-checkout .git/hooks/pre-commit .git/hooks/reference-transaction >/dev/null
chmod +x .git/hooks/*
rm -f "$MARK"
expect 125 machine-gate --staged
has "$err" "cannot be judged: a:"
expect 125 machine-gate --range HEAD~1..HEAD
has "$err" "cannot be judged: b/c:"
expect 0 machine-list
eq "$(jq -r .name "$out" | grep -cx 'a\|b\|b/c')" 3
[ ! -e "$MARK" ] || die "something of the repository ran"
cd "$work/project" || exit 1

# bisect: six commits, worse from the fourth on
git reset -q --hard here; git clean -fdq
level say mid; bypass 0; start=$(git rev-parse HEAD)
for n in 1 2 3 4 5 6; do
  edit say "step $n"; [ $n = 4 ] && level say bad
  # neither good nor bad: what it says is in its code
  [ $n = 5 ] && sed -i 's/Machine(/Machine(instructions="in code", /' machines/say/machine.py
  [ $n = 6 ] && sed -i 's/instructions="in code", //' machines/say/machine.py
  bypass "step $n"
done
bad=$(git rev-parse HEAD)
git bisect start HEAD "$start" >/dev/null 2>&1
expect 0 git bisect run machine-gate say --base "$start" --no-worse --judge-by "$bad"
found=$(git rev-parse refs/bisect/bad); git bisect reset >/dev/null 2>&1
eq "$(git log -1 --format=%s "$found")" "step 4"
