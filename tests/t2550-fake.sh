#!/bin/bash
# The whole path on the fake engine, in seconds: sample, grade, train, gate, commit. What it learned is what it says.
python=${MACHINE_PYTHON:-$(cd "$(dirname "$0")/.." && pwd)/.venv-sft/bin/python}
. "$(dirname "$0")/lib.sh"
unset TINKER_API_KEY TINKER_BASE_URL
export MACHINE_PYTHON=$python MACHINE_LOCAL_DAEMON=fake
"$python" -c 'import tinker, tinker_cookbook' || die "$python lacks the extra 'sft'; tests/run makes one"

machine river
cat >machines/river/machine.py <<'PY'
from libmachine import Machine, check

machine = Machine(intent="Talk of water.", graders={"river": check(lambda run: "river" in run.output.lower())})
PY
printf '[river]\ndescription = "It speaks of a river."\n' >machines/river/rubric.toml
echo '{"model": "local/smollm2-135m-instruct", "sampling": {"max_tokens": 50}}' >machines/river/model.json
for i in $(seq 8); do printf '{"id":"c%s","input":"Say something, number %s."}\n' "$i" "$i"; done >machines/river/cases.jsonl
for i in $(seq 8); do printf '{"id":"h%s","input":"Speak up, number %s."}\n' "$i" "$i"; done >machines/river/holdout.jsonl
git init -q . && git add -A && git commit -qm machines

# nobody there: the runs fail, and are bought when there is somebody
expect 3 machine-run river --cases cases.jsonl --trials 4
has "$err" "the fake engine is not there"
"$root/bin/machine-tinkerd" --engine fake --idle 120 >"$work/log" 2>&1 &
for _ in $(seq 300); do [ -e .machine/tinkerd/fake/runtime.json ] && break; sleep 0.1; done
expect 0 machine-tinkerd --engine fake --status --json
eq "$(jq -c .trains "$out")" true

# the base is right now and then, and the same each time
expect 0 machine-run river --cases cases.jsonl --trials 4
cp "$out" runs
has "$err" "8 cases: 0 stored, 32 run"
eq "$(jq -r .harness runs | sort -u) $(jq -r .model runs | sort -u)" "local:fake+chatml1 local/smollm2-135m-instruct#fake"
expect 0 machine-run river --cases cases.jsonl --trials 4 --no-resume
eq "$(jq -rs '[.[] | select(.trial <= 4)] | length' "$out")" 0
expect 0 machine-grade <runs
cp "$out" graded
good=$(jq -s 'map(select(.scorecard.passed)) | length' graded)
[ "$good" -ge 3 ] && [ "$good" -le 16 ] || die "the base passes $good of 32"

# one pipe to a live version that passes always
set -o pipefail
machine-sft --learning-rate 0.01 <graded 2>"$work/sft" | tee candidate | machine-gate --json >verdict 2>"$err" ||
  die "$(cat "$work/sft" verdict)"
eq "$(jq -r .training.trainer candidate)" local/fake
eq "$(jq -c '[.decision, .cases, .trials, .candidate == $c]' --arg c "$(jq -r .version candidate)" verdict)" \
  '["promote",8,3,true]'
eq "$(jq -c '.arms.candidate | flatten | unique' verdict)" '[1]'
expect 0 machine-commit river <verdict
model=$(git show HEAD:machines/river/model.json | jq -r .model)
case $model in local/smollm2-135m-instruct+*) ;; *) die "live: $model" ;; esac
expect 0 machine-run river "Anything else?" --json
has "$out" river
eq "$(jq -c '[.model == "\($m)#fake", .steps[0].tokens != null, .usage.completion_tokens > 2]' --arg m "$model" "$out")" \
  '[true,true,true]'

# what it learned by heart comes back to the very prompt, token for token
eq "$(jq -s '[.[] | select(.scorecard.passed)] | map(.output) | unique | length > 1' graded)" true
expect 0 machine-run river --cases cases.jsonl --json
jq -rs 'map(select(.scorecard.passed)) | group_by(.case.id)[] | [.[0].case.id, (map(.output) | unique | join("|"))] | @tsv' \
  graded >learned
while IFS="$(printf '\t')" read -r id said; do
  jq -r --arg id "$id" 'select(.case.id == $id).output' "$out" >now
  case "|$said|" in *"|$(cat now)|"*) ;; *) die "$id says $(cat now), learned $said" ;; esac
done <learned

# a placebo answers as what it began from, and is refused
machine-sft --placebo --any-model <graded 2>"$work/sft" >placebo || die "$(cat "$work/sft")"
machine-gate <placebo --json >verdict 2>"$err"; eq $? 1
eq "$(jq -c '[.decision, (.warnings | map(select(startswith("control:"))) | length)]' verdict)" '["refuse",1]'
eq "$(jq -c '.arms.live == .arms.candidate' verdict)" true
expect 1 machine-commit river
# what sampling and training left in the store is private, and sound
expect 0 machine-fsck
machine-tinkerd --engine fake --stop >/dev/null 2>&1
exit 0
