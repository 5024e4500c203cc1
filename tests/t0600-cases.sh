#!/bin/bash
# machine-cases: cases come in from files of many kinds, split by content, and what is there stays as it is.
. "$(dirname "$0")/lib.sh"
data=$root/tests/data/interchange
expect 0 machine-new qa
cat >faq.csv <<'C'
question,answer,topic
What is rain made of?,"Water, falling",weather
What is snow?,Ice,weather
"How do I
reset it?",Hold the button,help
what is RAIN made of ?,Water,weather
What is rain made of?,Other water,weather
C
# which column is said, not guessed
expect 3 machine-cases qa faq.csv
has "$err" "--input answer|question|topic"
expect 0 machine-cases qa faq.csv --input question --target answer --dry-run
has "$err" "row 6: nearly '"
has "$err" "row 7: as row 2, with another target"
has "$out" "5 rows: "
has machines/qa/cases.jsonl sample-1 # nothing was done
expect 0 machine-cases qa faq.csv --input question --target answer
has "$err" "3 samples of machine-new: out"
sort machines/qa/*.jsonl >all
eq "$(jq -c '[.input, .target, .metadata.topic]' all | grep -c .)" 3
has all '"input":"How do I\nreset it?","target":"Hold the button","metadata":{"topic":"help"}'

# again: nothing new, byte for byte; more rows: the old ones stay where they are
cp -r machines/qa before
expect 0 machine-cases qa faq.csv --input question --target answer
has "$out" "4 there already"
same machines/qa/cases.jsonl before/cases.jsonl
same machines/qa/holdout.jsonl before/holdout.jsonl
for n in one two three four five six seven eight nine ten eleven twelve; do
  echo "{\"id\": \"$n\", \"input\": \"Say $n, then $n again: $(echo $n | md5sum)\"}"; done >more
expect 0 machine-cases qa more
head -c "$(stat -c %s before/cases.jsonl)" machines/qa/cases.jsonl | cmp - before/cases.jsonl || die "old lines moved"
eq "$(cat machines/qa/*.jsonl | wc -l)" 15
has "$out" "now: machine-suite qa"
# another machine, the rows in another order and the holdout's share the same: the same sides
expect 0 machine-new twin
tac more | machine-cases twin --holdout 0.4 >/dev/null 2>&1 || die stdin
same <(jq -c .input machines/twin/holdout.jsonl | sort) <(jq -c 'select(.input | startswith("Say")) | .input' machines/qa/holdout.jsonl | sort)
[ -s machines/twin/holdout.jsonl ] && [ -s machines/twin/cases.jsonl ] || die "one side is empty"
expect 0 machine-cases qa --check --json
eq "$(jq -c '[.cases + .holdout, (.faults | length)]' "$out")" '[15,0]'

# groups stay together, also with what came before; ids that are taken get another
for n in 1 2 3 4 5 6; do
  echo "{\"id\": \"g$n\", \"input\": \"$(echo $n | sha256sum)\", \"metadata\": {\"group\": \"g\"}}"; done >group
head -n 2 group >some
expect 0 machine-cases twin some
expect 0 machine-cases twin group
eq "$(grep -l '"group":"g"' machines/twin/*.jsonl | wc -l)" 1
echo '{"id": "g1", "input": "quite another thing"}' >clash
expect 0 machine-cases twin clash
has "$err" "id 'g1' is taken by another input"
expect 0 machine-run twin --harness echo --cases cases.jsonl
expect 0 machine-run twin --harness echo --cases holdout.jsonl
# near duplicates on request, on the side of what they resemble
jq -c '{input: (.input | ascii_upcase)}' machines/twin/holdout.jsonl >near
expect 0 machine-cases twin near
has "$out" "0 to holdout.jsonl"
cp machines/twin/cases.jsonl practice
expect 0 machine-cases twin near --keep-near --holdout 0
same machines/twin/cases.jsonl practice
expect 0 machine-cases twin --check

# malformed rows are named with their lines, the rest comes in
printf '%s\n' '{"input": "fine one"}' '{"inptu": 3}' 'no json' '"a bare text is a case"' >mixed
expect 3 machine-cases qa mixed
has "$err" "row 2: case has an unknown field 'inptu'"
has "$err" "row 3: no JSON"
has "$out" "4 rows:"
expect 1 machine-cases qa mixed --check
has "$out" "2 malformed"

# --check changes nothing and says what is wrong
machine bad
printf '%s\n' '{"id":"x","input":"one thing"}' 'oops' '{"id":"x","input":"two things"}' '{"input":"one thing"}' \
  >machines/bad/cases.jsonl
printf '%s\n' '{"id":"h","input":"one thing"}' '{"input":"A question that is long enough?"}' >machines/bad/holdout.jsonl
echo "For example: a question that is long enough?" >machines/bad/instructions.md
cp -r machines/bad kept
expect 1 machine-cases bad --check
has "$err" "cases.jsonl:2: no JSON"
has "$err" "cases.jsonl:3: id 'x' is taken by line 1"
has "$err" "cases.jsonl:4: case"
has "$err" "case 'h' is case 'x' of cases.jsonl"
has "$err" "held_out_text"
has "$out" "2 held out: "
diff -r machines/bad kept || die "check changed something"
expect 128 machine-cases bad more
has "$err" "--check shows all"
printf '{"input":"what is said in the practice file"}\n' >machines/bad/cases.jsonl
printf '{"input":"What is said in the practice file?"}\n' >machines/bad/holdout.jsonl
expect 1 machine-cases bad --check
has "$err" "near_duplicates"

# what was held out once, here or in a child, stays held out
git init -q && echo '{"input":"an old exam question"}' >machines/bad/holdout.jsonl && git add machines && git commit -qm 1
echo '{"input":"a new exam, quite different"}' >machines/bad/holdout.jsonl
printf '"an old exam question"\n' | expect 0 machine-cases bad --holdout 0
has machines/bad/holdout.jsonl "an old exam question"

# other tools' files
for file in inspect.jsonl inspect-log.json; do
  expect 0 machine-new "from-$file"
  expect 0 machine-cases "from-$file" "$data/$file" --from inspect --holdout 0
done
eq "$(jq -r '.id' machines/from-inspect.jsonl/cases.jsonl | sort | tr '\n' ' ')" "chat colors pick sky tool "
eq "$(jq -r '.id' machines/from-inspect-log.json/cases.jsonl | sort | tr '\n' ' ')" "chat colors pick sky "
expect 0 machine-new pf
expect 0 machine-cases pf "$data/promptfoo-results.json" --from promptfoo
eq "$(cat machines/pf/*.jsonl | jq -r .input | sort | head -n 2 | tr '\n' '|')" "A brace: {% raw %}{{x}}{% endraw %}|Name a color.|"
expect 0 machine-new ev
printf '%s\n' '{"input":[{"role":"user","content":"2+2?"}],"ideal":["4","four"]}' '{"item":{"q":"3+3 is what?","ground_truth":"6"}}' >ev
expect 3 machine-cases ev ev --from openai-evals
expect 0 machine-cases ev <(tail -n 1 ev) --from openai-evals --input q
eq "$(cat machines/ev/*.jsonl | jq -c .target | sort | tr '\n' ' ')" '"6" ["4","four"] '
# a stranger's dataset takes no file from beside itself or above
mkdir shared && echo secret >"$work/secret"
echo '{"input":"read it","target":"","files":{"a":"../../secret","b":"beside"}}' >shared/d.jsonl; echo near >shared/beside
expect 0 machine-new files
expect 0 machine-cases files shared/d.jsonl --from inspect
eq "$(cat machines/files/*.jsonl | jq -c 'select(.files) | .files')" '{"a":"../../secret","b":"near\n"}'

# refused
expect 128 machine-cases nosuch more
expect 128 machine-cases brief more
has "$err" "machine-init --examples"
expect 128 machine-cases qa nosuch
printf '[{"input":"in an array"}]\n' >machines/bad/cases.jsonl
echo '{"input":"zebra"}' >one
expect 128 machine-cases bad one --holdout 0
has "$err" "jq -c"
printf '\xff\xfe' >latin.csv
expect 128 machine-cases qa latin.csv --input a
has "$err" "no UTF-8"

# out again, and back: the same cases
for form in inspect:inspect promptfoo:promptfoo openai:openai-evals; do
  to=${form%:*} from=${form#*:}
  expect 0 machine-export qa --to "$to" --out "out.$to"
  expect 0 machine-new "back-$to"
  expect 0 machine-cases "back-$to" "out.$to" --from "$from" --holdout 0
  same <(jq -cS '[.input, .target, .metadata]' machines/qa/cases.jsonl | sed 's/"assert":\[\]//') \
    <(jq -cS '[(.input | if type == "array" and length == 1 then .[0].content else . end), .target, .metadata]' \
      "machines/back-$to/cases.jsonl")
done
expect 0 machine-export qa --to inspect --on holdout
same <(jq -c .input "$out") <(jq -c .input machines/qa/holdout.jsonl)
expect 129 machine-export qa --to inspect --on exam
expect 129 machine-export --on cases
# runs as a log: scores, errors and trials are ours
machine-run qa --harness echo --cases cases.jsonl --trials 2 2>/dev/null >runs || die run
machine-grade <runs 2>/dev/null >graded || die grade
expect 0 machine-export --to inspect <graded
eq "$(jq -c '[.eval.task, .eval.model, (.samples | length), .results.scores[1].name]' "$out")" \
  "[\"qa\",\"echo\",$(lines runs),\"good\"]"
eq "$(jq -c '[.samples[] | .scores.good.value] | unique' "$out")" "[0]"
expect 129 machine-export --to promptfoo <graded
has "$err" "--to inspect"
expect 129 machine-export --to openai <graded
has "$err" "--format openai"
machine-run twin --harness echo hi 2>/dev/null >two || die run
cat graded >>two
expect 128 machine-export --to inspect <two
has "$err" 'select(.machine == "qa")'
