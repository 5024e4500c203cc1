#!/bin/bash
# machine-gate, propose, commit, revert, versions: a change goes live when it is measured to be better.
. "$(dirname "$0")/lib.sh"
git init -q
machine say
exam() { for i in $(seq 1 "$1"); do printf '{"id":"h%s","input":"exam %s %s"}\n' "$i" "$i" "$([ $((i % 3)) = 0 ] && echo hard || echo easy)"; done; }
exam 14 >machines/say/holdout.jsonl
use() { echo "{\"model\": \"$1\", \"harness\": \"scripted\"}" >machines/say/model.json; }
cat >bad.rules <<'J'
{"match":"easy","trial":1,"replies":["good"]}
{"match":"","replies":["poor"]}
J
printf '{"match":"hard","replies":["poor"]}\n{"match":"","replies":["good"]}\n' >good.rules
printf '{"match":"","replies":["good"]}\n' >best.rules
use bad.rules

# nothing to compare with yet
expect 0 machine-gate say
eq "$(jq -r .decision "$out")" first
git add -A && git commit -qm one
expect 0 machine-gate say
eq "$(jq -r .decision "$out")" same

# better: promoted, stored, noted, and looked up the second time
use good.rules
expect 0 machine-gate say
cp "$out" verdict
eq "$(jq -c '[.decision,.wins,.losses,.ties,.n,.trials,.tries,.confirmed]' verdict)" '["promote",10,0,4,14,3,1,null]'
eq "$(jq '.arms.live | length' verdict)" 14
eq "$(jq '[.arms.candidate[] | length] | unique | .[0]' verdict)" 3
has "$err" "Next: machine-commit say"
runs=$(machine-runs say 2>/dev/null | wc -l)
expect 0 machine-gate say
jq -cS 'del(.evidence,.id)' verdict >one; jq -cS 'del(.evidence,.id)' "$out" >two; same one two
eq "$(machine-runs say 2>/dev/null | wc -l)" "$runs"
git notes --ref refs/notes/machine list >"$out"
has "$out" "$(jq -r .candidate verdict)"
eq "$(git notes --ref refs/notes/machine show "$(jq -r .candidate verdict)" | jq -r .decision)" promote
id=$(jq -r .id verdict); expect 0 machine-show "$id"

# the arms are interleaved: no long stretch of one alone
machine-runs say 2>/dev/null | jq -r .version | uniq -c | awk '$1 > 6 { exit 1 }' || die "one arm ran alone"

# committed: with trailers, other staged work left alone
echo staged >other && git add other
expect 0 machine-commit say
eq "$(git log -1 --format='%(trailers:key=Machine-Verdict,valueonly)' | head -1)" "promote z=5.7 n=14x3"
eq "$(git status --porcelain -uno)" "A  other"
eq "$(git show --stat --format= HEAD | grep -c other)" 0
expect 128 machine-commit say
has "$err" "nothing to commit"
git commit -qm other

# worse and equal: refused, exit 1, and no ref moves
use bad.rules
before=$(git rev-parse HEAD)
expect 0 machine-gate say # an earlier version of the history needs no measurement
eq "$(jq -r .decision "$out")" revert
printf '{"match":"","replies":["poor"]}\n' >worst.rules
use worst.rules
expect 1 machine-gate say
eq "$(jq -c '[.decision,.worse]' "$out")" '["refuse",true]'
expect 1 machine-commit say
has "$err" "refused:"
eq "$(git rev-parse HEAD)" "$before"
expect 1 machine-gate say --no-worse --rerun
expect 1 machine-commit say

# forced: recorded with who and why
expect 0 machine-commit say --force "the sun shines"
eq "$(git notes --ref refs/notes/machine show "$(machine-versions say 2>/dev/null | jq -r 'select(.live).version')" | jq -c 'select(.decision == "forced") | [.forced.by,.forced.reason]')" \
  '["tester","the sun shines"]'

# back, and twice back
expect 0 machine-revert say
grep -q good.rules machines/say/model.json || die "not reverted"
eq "$(git status --porcelain -uno)" ""
expect 0 machine-revert say
grep -q bad.rules machines/say/model.json || die "not reverted twice"
expect 128 machine-revert say
has "$err" "no earlier version"
expect 0 machine-revert say --to v2
grep -q good.rules machines/say/model.json || die "not reverted to v2"

# another model as a candidate, through the pipe
expect 0 machine-propose say --model best.rules
machine-propose say --model best.rules 2>/dev/null >candidate || die propose
grep -q good.rules machines/say/model.json || die "propose changed a file"
expect 0 machine-gate --trials 4 <candidate
cp "$out" verdict
expect 0 machine-commit <verdict
grep -q best.rules machines/say/model.json || die "candidate not written"
expect 125 machine-gate </dev/null
has "$err" "no candidate on stdin"
expect 128 machine-propose say --model best.rules

# only the rubric, only tools: no measurement
sed -i 's/weight = 1/weight = 2/' machines/say/rubric.toml
expect 0 machine-gate say
eq "$(jq -r .decision "$out")" rubric_only
expect 0 machine-commit say
echo "# a comment" >>machines/say/machine.py
expect 0 machine-gate say
eq "$(jq -r .decision "$out")" same
expect 0 machine-commit say
eq "$(git status --porcelain -uno)" ""

# placebo: a comment in the instructions, the same behaviour: never
printf '{"match":"h","trial":%s,"replies":["good"]}\n' 2 4 6 8 >coin.rules
for i in $(seq 1 2 14); do printf '{"match":"exam %s ","replies":["good"]}\n' "$i"; done >>coin.rules
printf '{"match":"","replies":["poor"]}\n' >>coin.rules
use coin.rules; git commit -qam coin
echo "<!-- placebo -->" >>machines/say/instructions.md
expect 1 machine-gate say
eq "$(jq -r .decision "$out")" refuse
git checkout -q machines/say

# gamed: the check rewards a magic word; its audit criterion sees the price
cat >machines/say/machine.py <<'PY'
from libmachine import Machine, check

machine = Machine(
    intent="Answer.",
    graders={"good": check(lambda run: "please" in run.output), "true": check(lambda run: "42" in run.output)},
)
PY
printf '[good]\ndescription = "It says please."\n[true]\ndescription = "It says 42."\nrole = "audit"\nguard = 0.1\n' \
  >machines/say/rubric.toml
printf '{"match":"","replies":["42"]}\n' >true.rules; printf '{"match":"","replies":["please please"]}\n' >gamed.rules
use true.rules; git add -A; git commit -qm true
use gamed.rules
expect 1 machine-gate say
eq "$(jq -c '[.decision,.guards.true.fell,.mean_diff]' "$out")" '["refuse",true,1]'
has "$err" "fell too far"

# tiny: three cases that all moved alike show nothing
exam 3 >machines/say/holdout.jsonl; sed -i '/true/,$d' machines/say/rubric.toml
sed -i 's/, "true": .*},/},/' machines/say/machine.py
use true.rules; git add -A; git commit -qm tiny
use gamed.rules
expect 1 machine-gate say
eq "$(jq -r '.reasons[0]' "$out" | cut -d: -f1)" zero_variance

# saturated: live is nearly perfect, and no candidate could show that it is better
exam 14 >machines/say/holdout.jsonl
printf '{"match":"exam 1 ","trial":1,"replies":["please"]}\n{"match":"exam 1 ","replies":["poor"]}\n{"match":"","replies":["please"]}\n' \
  >nearly.rules
use nearly.rules; git add -A; git commit -qm nearly
use gamed.rules
expect 1 machine-gate say
eq "$(jq -c '[.decision,.low_power]' "$out")" '["refuse",true]'
has "$err" "low power"

# no exam, no verdict; a machine that says in code what belongs in its files is not gateable
rm machines/say/holdout.jsonl
expect 125 machine-gate say
exam 14 >machines/say/holdout.jsonl
sed -i 's/intent="Answer.",/intent="Answer.", instructions="In code.",/' machines/say/machine.py
expect 125 machine-gate say
has "$err" "in code"
git checkout -q machines/say

# provider down: cannot be judged, and nothing is promoted
printf '{"match":"","replies":[{"error":"down"}]}\n' >down.rules
exam 14 >machines/say/holdout.jsonl; git add -A; git commit -qm exam
use down.rules
machine-gate say >"$out" 2>"$err"; code=$?
[ $code = 1 ] || [ $code = 125 ] || die "exit $code"
expect 1 machine-commit say

# what leaks from the exam is said
git checkout -q machines/say
printf '{"id":"p1","input":"exam 1  EASY"}\n' >machines/say/cases.jsonl
echo "Think of questions like exam 2 easy, and answer them well." >>machines/say/instructions.md
sed -i 's/"exam 2 easy"/"Think of questions like exam 2 easy, and"/' machines/say/holdout.jsonl
git add machines/say/cases.jsonl machines/say/holdout.jsonl; git commit -qm leak
machine-gate say >"$out" 2>"$err"
eq "$(jq -r '.warnings[]' "$out" | grep -c '^near_duplicates: p1 ~ h1')" 1
eq "$(jq -r '.warnings[]' "$out" | grep -c '^held_out_text')" 1
has "$err" "(near_duplicates)"

# --reuse-live: stored runs of the live version are taken, said so, and never those it was promoted on
machine again
exam 14 >machines/again/holdout.jsonl
mine() { echo "{\"model\": \"$1\", \"harness\": \"scripted\"}" >machines/again/model.json; }
mine bad.rules
git add -A machines/again && git commit -qm again
machine-run again --cases holdout.jsonl --trials 4 >/dev/null 2>&1
mine good.rules
count() { machine-runs again 2>/dev/null | wc -l; }
before=$(count)
expect 0 machine-gate again --reuse-live
eq "$(jq -c '[.decision,.reused,(.arms.live[0] | length),([.warnings[] | select(startswith("live_reused"))] | length)]' "$out")" \
  '["promote",42,3,1]'
eq "$(($(count) - before))" 42
has "$err" "not interleaved with the candidate's (live_reused)"
expect 0 machine-commit again
mine best.rules
before=$(count)
machine-gate again --reuse-live --no-confirm >"$out" 2>"$err"
eq "$(jq '.reused' "$out")" null
eq "$(($(count) - before))" 84

# a held-out case that failed its control judges nothing, in the gate and in the hooks' look-up
git add -A && git commit -qm before >/dev/null
sed -i '1s/}$/,"metadata":{"kept_out":"oracle"}}/' machines/again/holdout.jsonl
git add machines/again/holdout.jsonl && git commit -qm "a case is kept out"
printf '{"match":"","replies":["good"]}\n' >finest.rules
mine finest.rules
machine-gate again --no-confirm >"$out" 2>"$err"
eq "$(jq '.cases, (.arms.cases | length)' "$out" | tr '\n' ' ')" "13 13 "
eq "$(jq -r '.warnings[] | select(startswith("kept_out"))' "$out")" "kept_out: 1 failed a control: h1"
has "$err" "1 failed a control: h1 (kept_out)"
git add -A machines
machine-gate --staged >"$out" 2>"$err"
hasnt "$err" "other_cases"
sed -i 's/"}$/","metadata":{"kept_out":"noop"}}/' machines/again/holdout.jsonl
expect 125 machine-gate again
has "$err" "failed a control and is kept out"
