#!/bin/bash
# machine-suite: run and grade the cases, the figures by hand, controls, the family, exit codes.
. "$(dirname "$0")/lib.sh"
for name in $(env | sed -n 's/^\([A-Z_]*_API_KEY\|OPENAI_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
fits() { [ "$(wc -L <"$1")" -le 80 ] || die "wider than 80 columns: $(awk 'length > 80' "$1" | head -3)"; }
near() { jq -e --argjson want "$2" "($1) as \$got | \$got != null and ((\$got - \$want) | fabs) < 1e-9" "$out" >/dev/null ||
  die "$1 is $(jq -c "$1" "$out"), not $2"; }
machine say
use() { echo "{\"model\": \"$1\", \"harness\": \"scripted\"}" >machines/say/model.json; }
# four cases: always good, good in trial 1 alone, never, and one whose endpoint is down
for id in yes first no down; do printf '{"id":"%s","input":"case %s"}\n' "$id" "$id"; done >machines/say/cases.jsonl
cat >some.rules <<'J'
{"match":"case yes","replies":[{"content":"good","usage":{"completion_tokens":4},"cost_usd":0.01}]}
{"match":"case first","trial":1,"replies":[{"content":"good good","usage":{"completion_tokens":8}}]}
{"match":"case down","replies":[{"error":"no route"}]}
{"match":"","replies":[{"content":"poor","usage":{"completion_tokens":6}}]}
J
use some.rules

# one trial: the failed run is counted and in no mean
expect 3 machine-suite say --json
eq "$(lines "$out")" 1
eq "$(jq -c '[.v,.type,.machine,.on,.trials,.cases,.runs,.graded,.failed,.ungraded,.passes]' "$out")" \
  '[1,"suite","say","cases",1,4,4,3,1,0,2]'
near .mean "$(jq -n '2/3')"
near .stderr "$(jq -n '((1/9+1/9+4/9)/2/3) | sqrt')"
near .pass_rate "$(jq -n '2/3')"
# Wilson by hand: 2 of 3 at 95 %
near '.pass_interval[0]' 0.20765960080204776
near '.pass_interval[1]' 0.9385080552796037
eq "$(jq -c '[.by_case[].id]' "$out")" '["no","yes","first","down"]'
eq "$(jq -c '.by_case[3] | [.mean,.failed,.scores,.worst.why]' "$out")" '[null,1,[null],"failed: no route"]'
near .mean_completion_tokens 6
eq "$(jq -c '[.distinct_outputs,.stop_reasons,.spend]' "$out")" '[3,{"error":1,"stop":3},{"judges":0,"runs":0.01}]'
has "$err" "say: case 'down' trial 1 failed: no route"
has "$err" '4 cases: 0 stored, 4 run, $0.01'
expect 0 machine-suite say --allow-failed 1 --json
has "$err" '4 cases: 3 stored, 1 run, $0.00'

# the same runs as machine-run's, graded as machine-grade does
machine-run say --cases cases.jsonl 2>"$err" | machine-grade 2>/dev/null >graded
has "$err" "4 cases: 3 stored, 1 run"
near .mean "$(jq -s 'map(select(.scorecard).scorecard.score) | add / length' graded)"
eq "$(jq -r .case.id graded | wc -l)" 4

# three trials: means over cases, the error over cases, pass@k
expect 3 machine-suite say --trials 3 --json
has "$err" "4 cases: 3 stored, 9 run"
eq "$(jq -c '[.runs,.graded,.failed,.passes,.units]' "$out")" '[12,9,3,4,3]'
near .mean "$(jq -n '(1 + 1/3 + 0) / 3')"
near .stderr "$(jq -n '[1,1/3,0] | (add/3) as $m | (map(pow(.-$m;2)) | add/2/3) | sqrt')"
near .pass_rate "$(jq -n '4/9')"
near .pass_at_1 "$(jq -n '4/9')"
near .pass_at_k "$(jq -n '2/3')"
near .all_good "$(jq -n '1/3')"
eq "$(jq -c '[.by_case[] | [.id,.passes,.graded]]' "$out")" '[["no",0,3],["first",1,3],["yes",3,3],["down",0,0]]'
eq "$(jq -c '.by_criterion[0] | [.criterion,.cases,.missing]' "$out")" '["good",3,0]'
has <(jq -c .warnings "$out") "missing_grades: 3 of 12 runs have no score"

# the text: worst first, the sentence, the command, which works
expect 3 machine-suite say --trials 3
fits "$out"
eq "$(awk '$3 ~ /^(no|first|down|yes)$/ { print $3 }' "$out" | tr '\n' ' ')" "no first down "
has "$out" "mean 0.444, standard error 0.294 over 3 cases"
has "$out" "pass@1 44 %, pass@3 67 %, all 3 trials good 33 %"
has "$out" "3 runs failed, 0 ungraded"
has "$out" "say scores 0.44, give or take 0.59"
hasnt "$out" "trial  score"
next=$(sed -n 's/^Next: //p' "$out"); eq "$(tail -1 "$out")" "Next: $next"
expect 0 sh -c "$next"
has "$out" "case no"
expect 3 machine-suite say --trials 3 -v
fits "$out"
eq "$(grep -cE '^[0-9a-f]{8} ' "$out")" 12
has "$out" "  failed  down"
expect 3 env COLUMNS=40 machine-suite say --trials 3 -v
[ "$(wc -L <"$out")" -le 48 ] || die "too wide at 40 columns"
expect 3 script -qec "stty cols 80; machine-suite say --trials 3" /dev/null
has "$out" "say scores 0.44"

# fresh trials; other options decide the key as in machine-run
expect 3 machine-suite say --no-resume --json
has "$err" "4 cases: 0 stored, 4 run"
eq "$(machine-runs say --json 2>/dev/null | jq -r 'select(.case.id == "yes").trial' | sort -n | tail -1)" 4
expect 3 machine-suite say --temperature 0.5 --json
has "$err" "0 stored, 4 run"
expect 3 machine-suite say --temperature 0 --trials 2 --json
has "$err" "temperature 0"
expect 0 machine-suite say --harness echo --json
eq "$(jq -c '[.engine,.mean]' "$out")" '[["echo","echo"],0]'
expect 0 machine-suite say --model other.rules --harness echo --seed 3 --json
printf '{"match":"","replies":["good"]}\n' >good.rules
use good.rules
expect 0 machine-suite say
has "$out" "passes every case every time"
has "$out" "Next: machine-suite say --trials 3"

# --on: held-out cases, a file here or in the folder; none at all
expect 0 machine-suite say --on holdout --json
eq "$(jq -c '[.on,.cases,.by_case[0].id]' "$out")" '["holdout",1,"h"]'
printf '["one","two","one"]' >own.jsonl
expect 0 machine-suite say --on own.jsonl --json
eq "$(jq -c '[.cases,.runs]' "$out")" '[2,2]'
expect 0 machine-suite say --on holdout.jsonl
expect 128 machine-suite say --on nowhere.jsonl
has "$err" "no file of cases 'nowhere.jsonl'"
printf '"fine"\n{"inptu":"x"}\n' >bad.jsonl
expect 128 machine-suite say --on bad.jsonl
has "$err" "case 2"
rm machines/say/holdout.jsonl
expect 125 machine-suite say --on holdout
has "$err" "machines/say/holdout.jsonl"
eq "$(lines "$out")" 0
expect 129 machine-suite
expect 129 machine-suite say --trials 0
expect 128 machine-suite sya
has "$err" "did you mean 'say'?"

# no judge: ungraded is no score; a machine without criteria is not run at all
mkdir -p machines/judged
printf 'from libmachine import Machine, judge\nmachine = Machine(intent="x", graders={"kind": judge()})\n' >machines/judged/machine.py
printf '[kind]\ndescription = "It is kind."\n' >machines/judged/rubric.toml
cp machines/say/cases.jsonl machines/say/model.json machines/judged/
expect 3 machine-suite judged --json
eq "$(jq -c '[.mean,.stderr,.ungraded,.failed,.pass_rate,.pass_interval,.by_criterion[0].missing]' "$out")" \
  '[null,null,4,0,null,null,4]'
expect 3 machine-suite judged
fits "$out"
has "$out" "has no score"
mkdir -p machines/bare
printf 'from libmachine import Machine\nmachine = Machine(intent="x")\n' >machines/bare/machine.py
cp machines/say/cases.jsonl machines/say/model.json machines/bare/
expect 125 machine-suite bare
has "$err" "no criteria"

# the budget: what was bought is stored, shown as incomplete, and the command to go on is told
printf '{"match":"","replies":[{"content":"good","cost_usd":0.4}]}\n' >dear.rules
use dear.rules
expect 4 machine-suite say --budget 1 --concurrency 1
has "$out" "of 4 runs were made"
has "$err" "to go on: machine-suite say --budget 1"
expect 0 machine-suite say --budget 2 --json
eq "$(jq -c '[.runs,.spend.runs]' "$out")" '[4,1.6]'
has "$err" "2 stored, 2 run"

# tools on offer that nobody calls
mkdir -p machines/tool
cat >machines/tool/machine.py <<'PY'
from libmachine import Machine, check


def look(word: str) -> str:
    """Look a word up.

    word: the word
    """
    return f"meaning of {word}"


machine = Machine(
    intent="Look up.",
    graders={"looked": check(lambda run: [c.result for c in run.tool_calls] == ["meaning of sky"])},
    tools=[look],
)
PY
printf '[looked]\ndescription = "It looked up."\n' >machines/tool/rubric.toml
echo '{"model": "echo", "harness": "echo"}' >machines/tool/model.json
printf '{"id":"sky","input":"what is sky?"}\n{"id":"sea","input":"what is sea?"}\n' >machines/tool/cases.jsonl
expect 0 machine-suite tool
has "$out" "warning: offered but never called: look"

# controls: no model is called, nothing is stored
runs=$(machine-runs tool 2>/dev/null | wc -l)
cat >reference.jsonl <<'J'
{"id":"sky","output":[{"tool_calls":[{"name":"look","arguments":{"word":"sky"}}]},"a meaning"]}
{"input":"what is sea?","output":"the sea"}
J
expect 1 machine-suite tool --oracle reference.jsonl
has "$out" "sea"
hasnt "$out" "sky"
fits "$out"
expect 1 machine-suite tool --oracle reference.jsonl --json
eq "$(jq -c '[.type,.failed,.failures[0].criterion,.failures[0].score]' "$out")" '["controls",["sea"],"looked",0]'
sed -i 2d reference.jsonl
expect 0 machine-suite tool --oracle reference.jsonl --noop
has "$out" "1 reference of 2 cases, an empty answer to 2 cases"
eq "$(machine-runs tool 2>/dev/null | wc -l)" "$runs"
echo '{"id":"nobody","output":"x"}' >>reference.jsonl
expect 128 machine-suite tool --oracle reference.jsonl
has "$err" "reference 2: there is no case 'nobody'"
sed -i 's/"good" in run.output,/not run.output or "good" in run.output,/' machines/say/machine.py
expect 1 machine-suite say --noop --json
eq "$(jq -c '.failed | length' "$out")" 4
expect 125 machine-suite judged --noop

# a case that fails is kept out of the gate, in its own line, until it holds
expect 129 machine-suite tool --keep-out
printf '{"id":"sky","output":"no look"}\n' >bad.jsonl
expect 129 machine-suite tool --oracle bad.jsonl --keep-out --on machines/tool/cases.jsonl
cp machines/tool/cases.jsonl cases.before
expect 1 machine-suite tool --oracle bad.jsonl --keep-out
eq "$(jq -c 'select(.id == "sky") | .metadata.kept_out' machines/tool/cases.jsonl)" '"oracle"'
eq "$(diff cases.before machines/tool/cases.jsonl | grep -c '^>')" 1
expect 1 machine-suite tool --oracle bad.jsonl --keep-out
has "$err" "0 cases marked or unmarked"
expect 0 machine-suite tool --oracle <(head -1 reference.jsonl) --keep-out
eq "$(jq -c 'select(.id == "sky") | .metadata' machines/tool/cases.jsonl)" null
has "$err" "1 case marked or unmarked"

# the family: every member's cases, then what they inherit, over all of them
machine say; mv machines/say machines/kin
echo '{"model": "kin.rules", "harness": "scripted"}' >machines/kin/model.json
printf '{"id":"a","input":"case a"}\n{"id":"b","input":"case b"}\n' >machines/kin/cases.jsonl
mkdir -p machines/kin/short machines/kin/idle
printf 'from libmachine import Machine, check\nmachine = Machine(intent="x", graders={"short": check(lambda run: len(run.output) < 6)})\n' \
  >machines/kin/short/machine.py
printf '[short]\ndescription = "It is short."\n' >machines/kin/short/rubric.toml
printf '{"id":"c","input":"case c"}\n{"id":"d","input":"case d"}\n' >machines/kin/short/cases.jsonl
printf 'from libmachine import Machine\nmachine = Machine(intent="x")\n' >machines/kin/idle/machine.py
printf '{"match":"case [abc]","replies":["good morning"]}\n{"match":"","replies":["poor"]}\n' >kin.rules
expect 0 machine-suite kin --tree --json
eq "$(jq -c '[.machine,.cases,[.family.members[].machine]]' "$out")" '["kin",2,["kin","kin/short"]]'
eq "$(jq -c '.family.criteria | map([.criterion,.mean,.cases,.machines])' "$out")" '[["good",0.75,4,["kin","kin/short"]]]'
near '.family.criteria[0].stderr' 0.25
eq "$(jq -c '[.family.members[1].by_criterion[] | [.criterion,.mean]]' "$out")" '[["good",0.5],["short",0.5]]'
has "$err" "kin/idle: no cases, not run"
expect 0 machine-suite kin --tree -v
fits "$out"
has "$out" "good (kin, kin/short)"
eq "$(grep -cE '^[0-9a-f]{8} ' "$out")" 4
rm machines/kin/cases.jsonl
expect 0 machine-suite kin --tree --json
eq "$(jq -c '[.machine,.cases,.mean,[.family.members[].machine],.family.criteria]' "$out")" \
  '["kin",0,null,["kin/short"],[]]'
expect 125 machine-suite kin
