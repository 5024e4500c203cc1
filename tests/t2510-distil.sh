#!/bin/bash
# A model taught by another: red's oracle, a file of rules, through machine-sft --any-model on the fake trainer.
python=${MACHINE_PYTHON:-$(cd "$(dirname "$0")/.." && pwd)/.venv-sft/bin/python}
. "$(dirname "$0")/lib.sh"
unset TINKER_API_KEY TINKER_BASE_URL
export MACHINE_PYTHON=$python
"$python" -c 'import tinker' || die "$python lacks the extra 'sft'; tests/run makes one"
cp -r "$root/machines/red" machines/red
git init -q . && git add -A && git commit -qm machines
red=machines/red
oracle() { machine-run red --harness scripted --model $red/oracle.rules --cases "$1" 2>/dev/null | machine-grade 2>/dev/null; }

# the oracle is right on every message; it reads the message aloud, and calls once where it should with the word
for file in lessons cases; do
  oracle $file.jsonl >$file
  eq "$(jq -c .scorecard.passed $file | sort | uniq -c | tr -s ' ')" " $(lines $red/$file.jsonl) true"
done
oracle holdout.jsonl >holdout # as nobody should
eq "$(jq -s '[.[] | select(.case.target == 1)] | length * 2 == 100' lessons)" true
jq -c 'select(.case.target == 1) | [(.messages[2] | .content, (.tool_calls[0].function.arguments | fromjson.word)), .output]' lessons >said
eq "$(jq -s 'all(.[0][-3:] == .[1] and .[2] == "Noted.")' said)" true
eq "$(jq -r '.[1]' said | sort -u | tr '\n' ' ')" "RED Red red "
eq "$(jq -s '[.[] | select(.case.target == 0)] | all(.output == .case.input)' lessons)" true

# only with --any-model, and never what is held out
expect 1 machine-sft --dry-run <lessons
has "$err" "not by the live model; --any-model takes it too"
cat lessons holdout >mixed
expect 0 machine-sft --any-model --dry-run --json <mixed
has "$err" "40 left out: held out"
eq "$(jq -c '[.examples, .steps]' "$out")" '[100,52]'
expect 0 machine-sft --any-model --dry-run --json --shuffle-answers <mixed
eq "$(jq -c '[.control, .examples]' "$out")" '["shuffled_answers",100]'

# what is learned is the call and the reply, after what the model is shown when it is sampled
jq -c 'select(.case.input == "I lost a red glove on the bus.")' lessons >one
expect 0 machine-sft --any-model --dry-run --json <one
eq "$(jq -c '[.example[] | select(.[1] == 1)[0]]' "$out")" \
  '["I lost a red\n<tool_call>\n{\"name\": \"red_mentioned\", \"arguments\": {\"word\":\"red\"}}\n</tool_call><|im_end|>","Noted.<|im_end|>"]'
jq -r '.example[0][0]' "$out" >context
has context '{"type": "function", "function": {"name": "red_mentioned"'
eq "$(tail -n 3 context | head -n 2 | tr '\n' ' ')" "I lost a red glove on the bus.<|im_end|> <|im_start|>assistant "
hasnt "$err" "little is left to learn" # that the teacher solves all is no news

# trained; the candidate names its teacher, and what the oracle's file was
"$python" "$root/libmachine/boot.py" tinkerd machine-tinkerd --engine fake --idle 60 >"$work/log" 2>&1 &
for _ in $(seq 300); do [ -e .machine/tinkerd/fake/runtime.json ] && break; sleep 0.1; done
TINKER_BASE_URL=http://127.0.0.1:$(jq -r .port .machine/tinkerd/fake/runtime.json) || die "no trainer: $(cat "$work/log")"
TINKER_API_KEY=$(jq -r .key .machine/tinkerd/fake/runtime.json)
export TINKER_BASE_URL TINKER_API_KEY
expect 0 machine-sft --any-model --epochs 1 --learning-rate 1e-3 <mixed
has "$err" "100 runs with nothing to compare the rendering with"
teacher=scripted/$(git hash-object $red/oracle.rules)
eq "$(jq -c '.data | [.models, .by_live, .examples, .whole_runs, .dropped["held out"]]' "$out")" "[{\"$teacher\":100},0,100,100,40]"
eq "$(jq -c '[.training.steps, .training.learning_rate, .training.last_loss < .training.first_loss]' "$out")" '[13,0.001,true]'
machine-gate --harness echo <"$out" >verdict 2>"$err"; eq $? 1
eq "$(jq -c '[.decision, .n, .mean_live, .mean_cand]' verdict)" '["refuse",40,0.5,0.5]'
"$python" "$root/libmachine/boot.py" tinkerd machine-tinkerd --engine fake --stop >/dev/null 2>&1
exit 0
