#!/bin/bash
# machine-sft: graded runs to a trained candidate through the official SDK and the fake trainer; what it refuses,
# what it costs, and what a kill leaves behind.
python=${MACHINE_PYTHON:-$(cd "$(dirname "$0")/.." && pwd)/.venv-sft/bin/python}
. "$(dirname "$0")/lib.sh"
unset TINKER_API_KEY TINKER_BASE_URL
# before anything is read or spent: no package here and none elsewhere
if ! "$root/.venv/bin/python" -c 'import tinker' 2>/dev/null; then
  expect 128 machine-sft --dry-run </dev/null
  has "$err" "pip install 'libmachine[sft]', or set MACHINE_PYTHON"
  MACHINE_PYTHON=/no/such expect 128 machine-sft </dev/null
  has "$err" "MACHINE_PYTHON '/no/such' is no program"
  MACHINE_PYTHON=false expect 128 machine-sft </dev/null
  has "$err" "MACHINE_PYTHON 'false' has no"
fi
export MACHINE_PYTHON=$python
"$python" -c 'import tinker, tinker_cookbook' || die "$python lacks the extra 'sft'; tests/run makes one"

machine act
cat >machines/act/machine.py <<'PY'
from libmachine import Machine, check

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

machine = Machine(intent="x", tools=[add], graders={"good": check(lambda run: "good" in run.output)})
PY
echo '{"model": "local/smollm2-135m-instruct", "sampling": {"max_tokens": 50}}' >machines/act/model.json
cat >rules <<'J'
{"match": "plain", "replies": ["good good good"]}
{"match": "bad", "replies": ["poor"]}
{"match": "tool", "replies": [{"tool_calls":[{"name":"nosuch","arguments":{}}]}, {"content": "", "tool_calls":[{"name":"add","arguments":{"a":1,"b":2}}]}, "good: 3"]}
{"match": "cut", "replies": [{"content": "good but cu", "finish_reason": "length"}]}
{"match": "thinks", "replies": [{"content": "good", "reasoning": "let me see", "reasoning_field": "reasoning_content"}]}
{"match": "exam", "replies": ["good"]}
J
printf '{"id":"%s","input":"%s"}\n' plain plain bad bad tool tool cut cut thinks thinks >cases
printf '{"id":"h","input":"exam"}\n' >machines/act/holdout.jsonl
printf '{"id":"plain","input":"plain"}\n' >machines/act/cases.jsonl
git init -q . && git add -A && git commit -qm machines
{ cat cases; echo '{"id":"h","input":"exam"}'; } |
  machine-run act --harness scripted --model rules --concurrency 1 2>/dev/null | machine-grade >graded 2>/dev/null
before=$(git status --porcelain machines)

# nothing to learn from: 1, no candidate
expect 1 machine-sft </dev/null
expect 1 machine-sft <graded
has "$err" "not by the live model; --any-model takes it too"
eq "$(git for-each-ref refs/machine)" ""
expect 129 machine-sft --rank 0 <graded

# a dry run asks nobody and shows what is learned: the failed call is context, no target
expect 0 machine-sft --any-model --dry-run <graded
has "$out" "act: 2 examples of 2 cases"
has "$err" "1 left out: held out (h)"
has "$err" "1 left out: status limit (length) (cut)"
has "$err" "1 left out: renderer 'local_chatml1' has no place for its reasoning"
has "$err" "2 runs with nothing to compare the rendering with"
has "$err" "warning: 2 examples, a batch holds 8"
has "$err" "warning: 4 steps; fewer than 10 change little"
expect 0 machine-sft --any-model --drop-reasoning --dry-run --json <graded
eq "$(jq -c '[.type, .examples, .steps, .rank, .learning_rate, .cost_usd]' "$out")" '["training",3,4,16,0.0005,0]'
jq -c 'select(.case.id == "tool")' graded >tool
expect 0 machine-sft --any-model --dry-run --json <tool
eq "$(jq -c '[.example[] | select(.[1] == 1)[0]]' "$out")" \
  '["<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1,\"b\":2}}\n</tool_call><|im_end|>","good: 3<|im_end|>"]'
jq -r '.example[0][0]' "$out" >context
has context '{"type": "function", "function": {"name": "add", "description": "Add two numbers."'
has context '{"name": "nosuch", "arguments": {}}'
eq "$(ls -d .machine/training 2>/dev/null)" ""

# the trainer: nobody there, another service, a wrong key; all within seconds
start=$SECONDS
TINKER_BASE_URL=http://127.0.0.1:9 TINKER_API_KEY=tml-x expect 128 machine-sft --any-model <graded
has "$err" "no trainer answers at 'http://127.0.0.1:9'"
TINKER_BASE_URL=http://127.0.0.1:9 TINKER_API_KEY=sk-x expect 128 machine-sft --any-model <graded
has "$err" "it begins with 'tml-'"
[ $((SECONDS - start)) -lt 60 ] || die "a wrong address took $((SECONDS - start)) s"
fake() { "$python" "$root/libmachine/boot.py" tinkerd machine-tinkerd --engine fake "$@"; }
fake --idle 120 >"$work/log" 2>&1 &
for _ in $(seq 300); do [ -e .machine/tinkerd/fake/runtime.json ] && break; sleep 0.1; done
TINKER_BASE_URL=http://127.0.0.1:$(jq -r .port .machine/tinkerd/fake/runtime.json) || die "no trainer: $(cat "$work/log")"
export TINKER_BASE_URL
TINKER_API_KEY=tml-wrong expect 128 machine-sft --any-model <graded
has "$err" "refuses the key"
expect 128 machine-sft --any-model <graded
has "$err" "no key for the trainer"
TINKER_API_KEY=$(jq -r .key .machine/tinkerd/fake/runtime.json)
export TINKER_API_KEY

# money: unknown price under a limit, too little, and the exact bill
expect 128 machine-sft --any-model --price-as no/such <graded
expect 4 machine-sft --any-model --price-as thinkingmachines/Inkling --budget 0.001 <graded
has "$err" "the budget of \$0.001 is reached"
eq "$(git for-each-ref refs/machine)" ""
expect 0 machine-sft --any-model --dry-run --json --price-as thinkingmachines/Inkling <graded
cost=$(jq -c .cost_usd "$out") tokens=$(jq .tokens "$out")
eq "$(jq -n "($tokens * 11.22 | round) / 1000000 == $cost")" true
expect 0 machine-sft --any-model --price-as thinkingmachines/Inkling --budget 5 <graded
cp "$out" candidate
eq "$(jq -c .training.cost_usd candidate)" "$cost"
expect 0 machine-spend
eq "$(jq -s "map(select(.name == \"act\"))[0] | .usd == $cost and .calls == 4" "$out")" true

# the candidate: base version, files, weights, data; the machine's own files are as they were
eq "$(jq -c '[.type, .machine, .source]' candidate)" '["candidate","act","train"]'
jq -r '.files["model.json"]' candidate >model
eq "$(jq -c '[.base, (.model | startswith("local/smollm2-135m-instruct+")), .sampling.max_tokens]' model)" \
  '["local/smollm2-135m-instruct",true,50]'
eq "$(jq -c '[.data.examples, .data.cases, .data.by_live, (.data.runs | length), .data.render_check.uncompared]' candidate)" \
  '[2,2,0,2,2]'
eq "$(jq -c '[.training.steps, (.training.losses | length), .training.first_loss > .training.last_loss]' candidate)" '[4,4,true]'
eq "$(git for-each-ref refs/machine --format='%(refname)' | grep -c "candidate/$(jq -r '.version[:12]' candidate)")" 1
eq "$(git status --porcelain machines)" "$before"
folder=.machine/training/$(jq -r .training.id candidate)
eq "$(jq -s 'length' "$folder/metrics.jsonl")" 4
eq "$(jq -c '[.step, .epoch, .num_sequences]' "$folder/metrics.jsonl" | tail -n 1)" '[3,3,2]'
eq "$(jq -r .name "$folder/checkpoints.jsonl" | tail -n 1)" final
eq "$(stat -c %a "$folder" "$folder/train.log" "$folder/metrics.jsonl" | tr '\n' ' ')" "700 600 600 "
has "$folder/train.log" "step 4 of 4"

# the same again: nothing is trained or spent; other settings: another training
expect 0 machine-sft --any-model --price-as thinkingmachines/Inkling --budget 0 <graded
has "$err" "trained already"
eq "$(jq -r .version "$out")" "$(jq -r .version candidate)"
expect 0 machine-sft --any-model --seed 1 <graded
[ "$(jq -r .version "$out")" != "$(jq -r .version candidate)" ] || die "another seed, the same weights"

# controls: at rate 0 no loss falls; answers of other cases; both are marked, and not committed
expect 129 machine-sft --placebo --shuffle-answers <graded
expect 129 machine-sft --placebo --learning-rate 0.1 <graded
expect 128 machine-sft --any-model --shuffle-answers --dry-run <tool
has "$err" "needs good runs of at least two cases"
expect 0 machine-sft --any-model --shuffle-answers --dry-run --json <graded
eq "$(jq -c '[.control, .tokens, (.warnings[0] | split(":")[0])]' "$out")" "[\"shuffled_answers\",$tokens,\"control\"]"
eq "$(jq -c '[(.example[0][0] | test("plain<")), .example[-1]]' "$out")" '[true,["good: 3<|im_end|>",1]]'
expect 0 machine-sft --any-model --shuffle-answers <graded
shuffled=$(jq -r '.version[:12]' "$out")
[ "$(jq -r .data.digest "$out")" != "$(jq -r .data.digest candidate)" ] || die "shuffled, and the same data"
eq "$(jq -c '[.training.control, .training.first_loss > .training.last_loss]' "$out")" '["shuffled_answers",true]'
expect 0 machine-sft --any-model --placebo --steps 3 <graded
has "$err" "warning: a placebo that learns nothing; a gate that is sound refuses it"
eq "$(jq -c '[.training.control, .training.learning_rate, (.training.losses | length)]' "$out")" '["placebo",0,3]'
jq -r '.training.id' "$out" >id
eq "$(jq -r .learning_rate ".machine/training/$(cat id)/metrics.jsonl" | sort -u)" 0
folder=$(jq -r '.weights.sampler_path' "$out" | sed 's|tinker://\([^/]*\)/.*|\1|')
find .machine/tinkerd/fake/checkpoints -path "*$folder*" -name fake.json -print0 | xargs -0 cat >weights
has weights '"answers": {}'
placebo=$(jq -r '.version[:12]' "$out")
machine-gate <"$out" --harness echo --json >verdict 2>"$err"; eq $? 1
has "$err" "warning: the candidate is a control (placebo): it must not pass (control)"
eq "$(jq -c '[.decision, (.warnings | map(select(startswith("control:"))) | length)]' verdict)" '["refuse",1]'
expect 1 machine-commit act
has "$err" "it is a control (placebo), made to be refused"
expect 1 machine-commit act --candidate "$shuffled"
has "$err" "it is a control (shuffled_answers)"
eq "$(git status --porcelain machines)" "$before"
git branch -f here && expect 0 machine-commit act --candidate "$placebo" --force "to see it"
eq "$(git log -1 --format=%B | grep -c '^Machine-Verdict: forced')" 1
git reset -q --hard here && git update-ref -d refs/machine/act/-/live

# by name from the store; from where the live version is
expect 0 machine-sft act --any-model --steps 3 --batch-size 1 --learning-rate 0.001 --rank 4
eq "$(jq -c '[.training.steps, .training.rank, .training.learning_rate, .training.init]' "$out")" '[3,4,0.001,"base"]'
jq -r '.files["model.json"]' "$out" >model
expect 128 machine-sft act --any-model --continue
has "$err" "no saved state of the live model"
cp model machines/act/model.json && git commit -qm live machines
expect 0 machine-sft act --any-model --continue
eq "$(jq -r '.training.init | test("^tinker://.*/weights/final$")' "$out")" true

# killed: it goes on from the last saved state, and each step stands there once
many="machine-sft --any-model --steps 150 --batch-size 1"
$many <graded >"$out" 2>"$err" &
pid=$!
for _ in $(seq 600); do cat .machine/training/*/checkpoints.jsonl 2>/dev/null | grep -q '"000020"' && break; sleep 0.1; done
kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
expect 0 $many <graded
has "$err" "resumed after step"
eq "$(jq -c '[.training.steps, (.training.losses | length)]' "$out")" '[150,150]'
folder=.machine/training/$(jq -r .training.id "$out")
eq "$(jq .step "$folder/metrics.jsonl" | sort -un | wc -l)" 150
eq "$(jq -r .name "$folder/checkpoints.jsonl" | sort | uniq -d)" ""

# ^C: the state is saved, 130, and no candidate of it
refs=$(git for-each-ref refs/machine | wc -l)
many="machine-sft --any-model --steps 400 --batch-size 1"
(trap - INT; exec $many <graded >"$out" 2>"$err") &
pid=$!
for _ in $(seq 600); do grep -q '400 steps' "$err" 2>/dev/null && grep -qs "step 5 of 400" .machine/training/*/train.log && break; sleep 0.1; done
kill -INT $pid
wait $pid; eq $? 130
has "$err" "its state is saved"
eq "$(git for-each-ref refs/machine | wc -l)" "$refs"

# an account that is not paid ends it at once, not after an hour; nothing becomes a candidate
"$python" "$root/tests/sft_drivers/proxy.py" "$TINKER_BASE_URL" "$work/url" 3 402 &
for _ in $(seq 100); do [ -s "$work/url" ] && break; sleep 0.1; done
TINKER_BASE_URL=$(cat "$work/url") expect 128 machine-sft --any-model --seed 7 <graded
has "$err" "not set up to pay (402)"
eq "$(git for-each-ref refs/machine | wc -l)" "$refs"
kill $! 2>/dev/null

# a project without a store
MACHINE_DIR=$work/elsewhere expect 0 machine-sft --any-model --steps 2 <graded
eq "$(ls "$work/elsewhere/training" | wc -l)" 1

# a hosted checkpoint ends by itself; machine-commit lifts that, and says so loudly where it cannot
ends() { curl -sf -H "X-API-Key: $TINKER_API_KEY" "$TINKER_BASE_URL/api/v1/training_runs/$1/checkpoints" |
  jq -c '[.checkpoints[] | select(.tinker_path | endswith("/final")) | .expires_at != null]'; }
hosted() { MACHINE_DIR=$work/elsewhere expect 0 machine-sft --any-model --steps 2 --seed "$1" <graded
  cp "$out" hosted; path=$(jq -r .weights.sampler_path hosted); run=${path#tinker://}; run=${run%%/*}
  eq "$(jq -c '.weights.expires_at != null' hosted) $(ends "$run")" "true [true,true]"; }
git branch -f here
hosted 11
expect 0 machine-commit act --candidate "$(jq -r '.version[:12]' hosted)" --force "to see it"
has "$err" "the checkpoint is kept: $path no longer expires"
eq "$(ends "$run")" "[false,false]"
eq "$(git show HEAD:machines/act/model.json | jq -c '[.model, .base]')" "[\"$path\",\"local/smollm2-135m-instruct\"]"
hosted 12
TINKER_API_KEY=tml-wrong expect 0 machine-commit act --candidate "$(jq -r '.version[:12]' hosted)" --force "to see it"
has "$err" "is live: commit"
has "$err" "WARNING: the weights that are live now expire"
has "$err" "refuses the key"
lift="TINKER_BASE_URL=$TINKER_BASE_URL tinker checkpoint set-ttl --remove"
has "$err" "to keep them: $lift $path"
eq "$(grep -c 'to keep them' "$err") $(ends "$run")" "2 [true,true]"
grep -o 'TINKER_BASE_URL=.*' "$err" | PATH=$(dirname "$python"):$PATH sh >/dev/null 2>&1
eq "$(ends "$run")" "[false,false]" # the command that is printed does it
git reset -q --hard here && git update-ref -d refs/machine/act/-/live

# runs of two machines, a model that nobody trains
mkdir -p machines/other && cp machines/act/*.py machines/act/*.toml machines/other && echo '{"model": "echo"}' >machines/other/model.json
git add -A && git commit -qm other
machine-run other --harness echo "a good day" --json 2>/dev/null | machine-grade >others 2>/dev/null
expect 128 machine-sft --any-model --dry-run <others
has "$err" "model 'echo' of 'other' cannot be trained"
cat graded others >both
expect 128 machine-sft --any-model --dry-run <both
has "$err" "runs of several machines: act, other"
fake --stop >/dev/null 2>&1
exit 0
