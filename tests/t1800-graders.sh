#!/bin/bash
# Graders one can trust: panels, decision models, escalation, people's marks, and how far they agree.
. "$(dirname "$0")/lib.sh"
. "$root/tests/lib-fake.sh"
jevlog=$work/jevlog jevrules=$work/jevrules
python3 "$root/tests/fake_jev.py" --url "$work/jevurl" --log "$jevlog" --rules "$jevrules" &
for _ in $(seq 300); do [ -e "$work/jevurl" ] && break; sleep 0.1; done
export TYPESAFE_BASE_URL=$(cat "$work/jevurl") TYPESAFE_API_KEY=ts-fake-key
jev_says() { printf '%s\n' "$@" >"$jevrules"; : >"$jevlog"; }
jev_asked() { lines "$jevlog"; }
jev_says

# a panel: one call a run for all its criteria -------------------------------------------------
mkdir -p machines/trio
cat >machines/trio/machine.py <<'PY'
from libmachine import Machine, judge_panel

panel = judge_panel(model="fake/judge-a")
machine = Machine(intent="x", graders={"kind": panel, "short": panel, "true": panel})
PY
cat >machines/trio/rubric.toml <<'T'
[kind]
description = "The answer is KIND."
levels = ["rude", "kind"]
[short]
description = "The answer is SHORT."
[true]
description = "The answer is TRUE."
pass_at = 0.9
T
echo '{"model": "echo", "harness": "echo"}' >machines/trio/model.json
one() { printf '{\\"id\\": \\"{id}\\", \\"criterion\\": \\"%s\\", \\"reasoning\\": \\"as told\\", \\"score\\": %s}' "$1" "$2"; }
reply() { printf '{"reply": "%s"}' "$1"; }
all="$(one kind 1)\\n$(one short 0.5)\\n$(one true 0.8)"
runs_of trio alpha beta
says "$(reply "I looked. $all")"
expect 0 machine-grade <runs
eq "$(asked)" 2
eq "$(jq -c '[.scorecard | .grades[] | .score] + [.scorecard.passed]' "$out" | sort -u)" "[1,0.5,0.8,false]"
eq "$(jq -c '[.scorecard.usage.calls, (.scorecard.grades | map(.usage.calls))]' "$out" | sort -u)" "[1,[1,null,null]]"
jq -s -e 'all(.system as $s | ["KIND", "SHORT", "TRUE", "- 0: rude"] | all(. as $t | $s | contains($t)))' "$log" >/dev/null ||
  die "the prompt lacks a criterion"
jq -s -e 'all(.user | fromjson | .output != null)' "$log" >/dev/null || die "no material"
expect 0 machine-grade <runs
has "$err" "2 known already"
eq "$(asked)" 2
# a missing criterion is asked for again with all the others, then it is an error for that one alone
says "$(reply "$(one kind 1)\\n$(one true 1)")"
expect 3 machine-grade --regrade <runs
eq "$(asked)" 6
eq "$(jq -c '.scorecard | [.score, (.grades | map(.score))]' "$out" | sort -u)" "[null,[1,null,1]]"
has "$err" "short: no usable verdict in 3 replies: no verdict on this criterion"
# what the first reply said stands; the second one has what was missing
says "$(reply "$(one kind 1)\\n$(one true 0.25)" | jq -c '. + {times: 1}')" "$(reply "$(one kind 0)\\n$(one short 0.5)\\n$(one true 0)")"
head -1 runs >first
expect 0 machine-grade --regrade <first
eq "$(jq -c '.scorecard.grades | map(.score)' "$out")" "[1,0.5,0.25]"
eq "$(asked)" 2
# only the one that failed is made anew, by a call with the same prompt
says "$(reply "$(one kind 1)\\n$(one true 1)")"
runs_of trio gamma
cp runs second
expect 3 machine-grade <second
says "$(reply "$(one kind 0)\\n$(one short 1)\\n$(one true 0)")"
expect 0 machine-grade <second
eq "$(jq -c '.scorecard.grades | map(.score)' "$out")$(asked)" "[1,1,1]1"
# what was not asked is passed over; a wrong id, a scale, a planted or doubled verdict hit that criterion alone
graded_as() { says "$(reply "$1")"; machine-grade --regrade <first >"$out" 2>"$err"; eq "$(jq -c '.scorecard.grades | map(.score)' "$out")" "$2"; }
graded_as "$all\\n$(one other 1)" "[1,0.5,0.8]"
graded_as "$(one kind 1)\\n$(one short 8)\\n$(one true 1)" "[1,null,1]"
graded_as "$(one kind 1)\\n$(one short 1 | sed 's/{id}/0000/')\\n$(one true 1)" "[1,null,1]"
graded_as "$(one kind 1)\\n$(one short 1)\\n$(one true 1)\\n{\\\"id\\\": \\\"{id}\\\", \\\"criterion\\\": \\\"true\\\", \\\"sco" "[1,1,null]"
graded_as "$(one kind 0)\\n$(one short 1)\\n$(one true 1)\\n$(one kind 1)" "[1,1,1]" # the last one counts, as of a judge
graded_as "no" "[null,null,null]"
# another description of one is another panel for all
says "$(reply "$all")"
machine-grade --regrade <first >/dev/null 2>&1
sed -i 's/is SHORT/is TINY/' machines/trio/rubric.toml
expect 0 machine-grade <first
eq "$(jq -r '.scorecard.grades[].grader' "$out" | sort -u | wc -l)$(asked)" 12

# jev: three kinds of question, a check and a judge in one machine; one request a run ----------------
mkdir -p machines/mixed
cat >machines/mixed/machine.py <<'PY'
from libmachine import Machine, check, jev, judge

machine = Machine(intent="x", graders={
    "polite": jev.noul(), "tone": jev.score(["rude", "neutral", "warm"]),
    "size": jev.choice({"short": 1, "long": {"score": 0.5, "description": "pages"}, "none": 0}),
    "said": check(lambda run: bool(run.output), "said"), "kind": judge(model="fake/judge-a")})
PY
for name in polite tone size said kind; do printf '[%s]\ndescription = "It is %s?"\n' $name $name; done >machines/mixed/rubric.toml
echo '{"model": "echo", "harness": "echo"}' >machines/mixed/model.json
runs_of mixed one two three
says '{"score": 1}'
jev_says '{"question": "polite", "p": 0.9}' '{"question": "tone", "shares": {"1": 1}}' '{"question": "size", "shares": {"short": 0.5, "long": 0.5}}'
expect 0 machine-grade <runs
eq "$(jev_asked) $(asked)" "3 3"
eq "$(jq -c '[.scorecard | .grades[] | .score] + [.scorecard.passed]' "$out" | sort -u)" "[0.9,0.5,0.75,1,1,true]"
eq "$(jq -c '[.scorecard.grades[0:3][] | [.model, .usage.calls]]' "$out" | sort -u)" '[["jev-1.13.0",1],["jev-1.13.0",null],["jev-1.13.0",null]]'
eq "$(jq -r '.scorecard.grades[0].grader' "$out" | sort -u | sed 's/@.*//')" "jev:jev-latest[127.0.0.1]"
jq -s -e 'all(.headers.authorization == "Bearer ts-fake-key" and (.body.questions | keys == ["polite","size","tone"]))' "$jevlog" >/dev/null ||
  die "another request"
# a new question asks only itself
sed -i 's/"neutral", "warm"/"flat", "warm"/' machines/mixed/machine.py
expect 0 machine-grade <runs
eq "$(jq -s -c 'map(.body.questions | keys) | unique' "$jevlog")" '[["polite","size","tone"],["tone"]]'
# an answer that is wrong is an error of its criterion; the rest stands, and only that is asked again
runs_of mixed four five six
jev_says '{"match": "five", "question": "polite", "fault": "nan", "times": 1}'
expect 3 machine-grade <runs
eq "$(jq -c '.scorecard.grades | map(.score == null)' "$out" | sort | uniq -c | tr -s ' ' | tr '\n' ';')" \
  " 2 [false,false,false,false,false]; 1 [true,false,false,false,false];"
jev_says
expect 0 machine-grade <runs
eq "$(jev_asked) $(jq -c '.body.questions | keys' "$jevlog")" '1 ["polite"]'
# a dead endpoint: errors after three calls, the check and the judge still grade; a bad key after one
jev_says '{"fault": "529"}'
expect 3 machine-grade --regrade <runs
eq "$(jev_asked)" 9
eq "$(jq -c '.scorecard.grades | map(.score != null)' "$out" | sort -u)" "[false,false,false,true,true]"
TYPESAFE_API_KEY=wrong-key expect 3 machine-grade --regrade <runs
has "$err" "answered 401"
hasnt "$err" wrong-key
jev_says
TYPESAFE_API_KEY= expect 3 machine-grade --regrade <runs
has "$err" "needs TYPESAFE_API_KEY, which is not set"
eq "$(jev_asked)" 0
# under a budget an address of unknown price is refused before the call
TYPESAFE_BASE_URL=http://jev.invalid expect 128 machine-grade --regrade <runs
has "$err" "the price of 'jev/jev-latest' is not known, and there is a budget"
# what is no grader is told at load, with the line
sed -i 's/jev.noul()/jev/' machines/mixed/machine.py
expect 128 machine-grade --regrade <runs
has "$err" "grader 'polite' asks nothing; write jev.noul()"
sed -i 's/"polite": jev/"polite": jev.score(["one"])/' machines/mixed/machine.py
expect 128 machine-grade --regrade <runs
has "$err" "machine.py:4: ValueError: jev.score takes a list of 2 to 10 texts"

# escalation: the unsure ones go to the judge; both are in the grade -------------------------------
mkdir -p machines/esc
cat >machines/esc/machine.py <<'PY'
from libmachine import Machine, jev, judge

machine = Machine(intent="x", graders={"polite": jev.noul().or_judge(judge(model="fake/judge-a"))})
PY
printf '[polite]\ndescription = "It is polite?"\n' >machines/esc/rubric.toml
echo '{"model": "echo", "harness": "echo"}' >machines/esc/model.json
runs_of esc sure{1..8} unsure{1..2}
says '{"score": 1, "reason": "judged", "usage": {"cost": 0.01}}'
jev_says '{"match": "\"unsure1", "p": 0.3}' '{"match": "\"unsure2", "p": 0.7}' '{"match": "\"sure[1-4]", "p": 0.9}' '{"p": 0.1}'
expect 0 machine-grade <runs
eq "$(jev_asked) $(asked)" "10 2"
eq "$(counted)" "4 of 0.1, 4 of 0.9, 2 of 1"
eq "$(jq -c '.scorecard.grades[0] | select(.first) | [.score, .reason, .model, .usage.calls, .usage.cost_usd, .first.score, .first.model, .first.usage.calls]' "$out")" \
  '[1,"judged","judge-a",2,0.01,0.3,"jev-1.13.0",1]
[1,"judged","judge-a",2,0.01,0.7,"jev-1.13.0",1]'
expect 0 machine-grade <runs
has "$err" "10 known already"
# a cheap grade that fails is an error, not an unsure one
jev_says '{"fault": "500"}'
says
expect 3 machine-grade --regrade <runs
eq "$(asked)" 0

# people's marks: beside what graders say, never in its place ----------------------------------------
machine say
machine-run say --cases cases.jsonl --ordered --concurrency 1 2>/dev/null | machine-grade >graded 2>/dev/null
id=$(head -1 graded | jq -r .id)
expect 0 machine-mark "$id" --bad --note "too terse"
cp "$out" mark
eq "$(jq -c '[.type, .score, .passed, (.grades[0] | .criterion, .score, .reason, .grader)]' mark)" \
  '["scorecard",0,false,"*",0,"too terse","person:tester"]'
has "$err" "is marked bad"
expect 0 machine-mark 'say@{0}' --criterion good --good --score 0.75
expect 0 machine-show "$id" --json
eq "$(jq -c '[.scorecard.score, (.marks | map(.score))]' "$out")" "[1,[0]]"
expect 0 machine-grade <graded
same "$out" graded
expect 0 machine-runs say
eq "$(jq -c .scorecard.score "$out" | tr '\n' ' ')$(jq -c 'has("marks")' "$out" | sort -u)" "1 0 1 false"
expect 0 machine-runs say --stale
eq "$(lines "$out")" 0
expect 0 machine-grade --regrade <graded
expect 0 machine-mark "$id" --good
expect 0 machine-show "$id" --json
eq "$(jq -c '[.scorecard.grades[0].grader[0:6], (.marks | map(.score))]' "$out")" '["check:",[1,0]]'
expect 0 machine-show "$(jq -r .id mark)" --json
git config --global --unset user.name
expect 0 machine-mark "$id" --good
eq "$(jq -r '.grades[0].grader' "$out")" "person:$(id -un)"
git config --global user.name tester
expect 129 machine-mark "$id"
expect 129 machine-mark "$id" --good --bad
expect 129 machine-mark "$id" --good --score 0.2
expect 128 machine-mark "$id" --criterion goof --good
has "$err" "did you mean 'good'?"
expect 128 machine-mark ffffffff --good
expect 128 machine-mark "$(jq -r .id mark)" --good
has "$err" "a mark is of a run"
expect 0 machine-fsck

# agree: a lenient judge is told by its false-pass rate ------------------------------------------------
judged rude 'judge(model="fake/judge-a")' "The answer is fine."
runs_of rude good{1..10} bad{1..10}
says '{"match": "good", "score": 1, "usage": {"cost": 0.02}}' '{"match": "bad", "score": 0, "usage": {"cost": 0.02}}'
machine-grade <runs >graded 2>/dev/null || die grade
machine-runs rude >before
says '{"match": "bad[1-3]\"", "score": 0.6, "usage": {"cost": 0.001}}' '{"match": "bad10", "score": 0.9, "usage": {"cost": 0.001}}' \
  '{"match": "bad", "score": 0.1, "usage": {"cost": 0.001}}' '{"match": "good", "score": 0.9, "usage": {"cost": 0.001}}'
expect 0 machine-agree rude kind --with judge --judge-model fake/judge-b --judge-effort low --json
eq "$(jq -c '.sweep[] | [.threshold, .tp, .fp, .fn, .tn, .agreement, .kappa, .false_pass_rate, .false_fail_rate]' "$out" | tr '\n' ' ')" \
  "[0.3,10,4,0,6,0.8,0.6,0.4,0] [0.5,10,4,0,6,0.8,0.6,0.4,0] [0.7,10,1,0,9,0.95,0.9,0.1,0] [0.9,10,1,0,9,0.95,0.9,0.1,0] "
eq "$(jq -c '[.usable, .reference_stored, .unsure, .disagree, (.disagreements | length), .models, .spend.candidate, .calls.reference]' "$out")" \
  '[20,20,3,4,4,["judge-b"],0.02,0]'
eq "$(jq -c '.sweep[1].false_pass_ci95 | map(. * 1000 | round)' "$out")" "[168,687]"
eq "$(jq -c '[.escalation | .agreement, .calls_saved, (.usd_saved * 100 | round)]' "$out")" "[0.95,0.85,80]"
eq "$(jq -r '.disagreements[].run' "$out" | sort)" \
  "$(jq -r 'select(.output | test("^bad([1-3]|10)$")) | .id' runs | sort)"
eq "$(asked) $(jq -r '.body.reasoning_effort' "$log" | sort -u)" "20 low" # the reference was not asked again
machine-runs rude | cmp -s - before || die "agree changed the scorecards"
expect 0 machine-agree rude kind --with judge --judge-model fake/judge-b
has "$out" "false-pass rate                     40 %  17 to 69 %"
has "$out" "It passes 4 of 10 bad runs, and fails 0 of 10 good ones."
expect 0 machine-agree rude kind --with judge --judge-model fake/judge-b --require-kappa 0.6 --max-false-pass 0.4
expect 1 machine-agree rude kind --with judge --judge-model fake/judge-b --require-kappa 0.7
has "$err" "kappa 0.600 is below 0.7"
expect 1 machine-agree rude kind --with judge --judge-model fake/judge-b --max-false-pass 0.3
has "$err" "the false-pass rate 0.400 is above 0.3"
# a cheap decision model against the judge
jev_says '{"match": "good", "p": 0.9}' '{"match": "bad1\"", "p": 0.5}' '{"p": 0.1}'
expect 0 machine-agree rude kind --with jev --json
eq "$(jq -c '[.sweep[1].fp, .unsure, .agreement_sure, .models, .candidate[0:14]]' "$out")" '[1,1,1,["jev-1.13.0"],"jev:jev-latest"]'
eq "$(jev_asked)" 20
# a flaky judge: asked again, grades flip across 0.5
says '{"match": "good[1-3]\"", "score": 0.4, "times": 3}' '{"match": "good", "score": 0.8}' '{"match": "bad", "score": 0}'
expect 0 machine-agree rude kind --with same --repeat 3 --json --concurrency 1
eq "$(jq -c '.repeat | [.times, .runs, .flips, .flip_rate, .spread_max]' "$out")" "[3,20,1,0.05,0.6]"
eq "$(asked)" 60
expect 0 machine-agree rude kind --with same
has "$out" "flip across 0.5"
# against people: marks of the whole run count where there is no other criterion
expect 125 machine-agree rude kind --with same --against marks
has "$err" "no usable run of 20 (20 without a reference grade)"
eq "$(lines "$out")" 0
for n in 1 2 3; do machine-mark "rude@{$n}" --bad >/dev/null 2>&1 || die mark; done
says '{"score": 0}'
expect 125 machine-agree rude kind --with same --against marks --require-kappa 0.5
has "$err" "kappa could not be measured"
eq "$(asked)" 3
expect 0 machine-agree rude kind --with same --against marks --json
eq "$(jq -c '[.usable, .no_reference, .sweep[1].kappa, .sweep[1].false_fail_rate, .sweep[1].false_pass_rate, .references]' "$out")" \
  '[3,17,null,null,0,["person:tester"]]'
expect 0 machine-agree rude kind --with same --against marks
has "$out" unmeasured
# no figures without runs; an error of the candidate is no grade
judged idle 'judge(model="fake/judge-a")'
expect 125 machine-agree idle kind --with same
has "$err" "'idle' has no stored runs here"
eq "$(lines "$out")" 0
says '{"match": "bad", "score": 0}' '{"match": "good1\"", "status": 401}' '{"score": 1}'
expect 3 machine-agree rude kind --with judge --judge-model fake/judge-b --json
eq "$(jq -c '[.usable, .candidate_errors]' "$out")" "[19,1]"
says '{"status": 401}'
expect 125 machine-agree rude kind --with judge --judge-model fake/judge-b --last 3
has "$err" "3 with an error of the candidate"
expect 129 machine-agree rude kind --with nobody
expect 128 machine-agree rude kin --with same
has "$err" "did you mean 'kind'?"
expect 0 machine-fsck
