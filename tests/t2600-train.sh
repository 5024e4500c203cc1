#!/bin/bash
# machine-train on real weights, small: one command samples, trains and gates; the pipe it prints does the same.
python=${MACHINE_PYTHON:-$(cd "$(dirname "$0")/.." && pwd)/.venv-sft/bin/python}
. "$(dirname "$0")/lib.sh"
unset TINKER_API_KEY TINKER_BASE_URL MACHINE_LOCAL_DAEMON
export MACHINE_PYTHON=$python
"$python" -c 'import tinker, torch' || die "$python lacks the extra 'sft'; tests/run makes one"

machine brief
cat >machines/brief/machine.py <<'PY'
from libmachine import Machine, check

def wordy(run):
    """At least three words."""
    return len(run.output.split()) >= 3

machine = Machine(intent="Talk.", graders={"wordy": check(wordy)})
PY
printf '[wordy]\ndescription = "At least three words."\n' >machines/brief/rubric.toml
echo 'Answer in one short sentence of at most twelve words.' >machines/brief/instructions.md
echo '{"model": "local/smollm2-135m-instruct", "sampling": {"max_tokens": 60}}' >machines/brief/model.json
printf '{"id":"%s","input":"What is the %s?"}\n' sea sea sun sun rain rain >machines/brief/cases.jsonl
printf '{"id":"%s","input":"What is a <%s>?."}\n' tree tree bird bird >machines/brief/holdout.jsonl
git init -q . && git add -A machines && git commit -qm machines
before=$(git status --porcelain machines; git rev-parse HEAD)

# nothing stored: nothing to learn from, and it says what to do
expect 1 machine-train brief
has "$err" "--samples N samples each case N times first"
eq "$(git for-each-ref refs/machine)" ""
expect 128 machine-train brief --page nowhere/page.html
expect 129 machine-train
expect 128 machine-train nosuch -x

# the price is known before the first step: over the budget nothing is trained
expect 4 machine-train brief --samples 2 --steps 2 --price-as thinkingmachines/Inkling --budget 0.00001
eq "$(git for-each-ref refs/machine)" ""

# one round
set -- --samples 2 --steps 2 --trials 1 --no-confirm --seed 3
machine-train brief "$@" --page page.html --json >report 2>talk; code=$?
[ $code -le 1 ] || die "$(cat talk)"
decision=$(jq -r .decision report)
[ $code -le 1 ] || die "$(cat talk)"
eq "$(jq -c '[.type, .machine, .samples, .runs, .training.steps, (.training.losses | length), .verdict.cases, .verdict.trials]' report)" \
  '["training","brief",2,6,2,2,2,1]'
eq "$(jq -r '.verdict.decision' report)" "$decision"
eq "$(jq '.verdict | has("evidence")' report)" false
eq "$code" "$([ "$decision" = promote ] && echo 0 || echo 1)"
eq "$(git status --porcelain machines; git rev-parse HEAD)" "$before"
eq "$(git for-each-ref --format='%(refname)' 'refs/machine/brief/-/candidate')" \
  "refs/machine/brief/-/candidate/$(jq -r '.version[:12]' report)"
eq "$(jq -r .candidate report | xargs git --git-dir=.machine cat-file -p | jq -r '.training.id')" "$(jq -r .training.id report)"
# nothing of the exam was learned from
jq -r '.data.runs[]' report | while read -r id; do machine-show "$id" --json; done | jq -r .case.id | sort -u >learned
if grep -qx -e tree -e bird learned; then die "a held-out case was learned from"; fi

# the page stands alone, and what a case is called is text in it
has talk "report.html"
cmp page.html "$(sed -n 's/^report with loss curve and cases: //p' talk)" || die "two pages"
for word in '<svg' 'class="loss"' '>tree<' wordy "$(jq -r '.version[:12]' report)"; do has page.html "$word"; done
if grep -Eq 'https?://|<script|<link|<img' page.html; then die "the page asks for something else"; fi

# the pipe that is printed has the same plan and the same question: nothing is trained or measured again
expect 0 machine-train brief "$@" -x
has "$out" "set -o pipefail"
cp "$out" pipe.sh
bash pipe.sh >verdict 2>said
eq $? "$code"
eq "$(jq -r .id verdict)" "$(jq -r .verdict.id report)"
has said "trained already"
expect 0 machine-train brief "$@" --budget 2 -x
has "$out" "machine-budget 2 bash -o pipefail -c 'machine-run brief"

# so it is from a program, in this Python and in the other one; the candidate is the same, and refused or not alike
cat >train.py <<'PY'
import sys
from libmachine import machine

candidate = machine.load("brief", seed=3).train(samples=2, steps=2, trials=1, no_confirm=True)
assert "loss a token" in candidate.format_report(), candidate.format_report()
print(candidate.verdict["id"], candidate.version, candidate.passed)
if not candidate.passed:
    try:
        sys.exit(f"committed: {candidate.commit()}")
    except machine.CommitRefused as refusal:
        assert "machine-commit brief --force" in str(refusal), refusal
PY
jq -r '"\(.verdict.id) \(.version) \(if .decision == "promote" then "True" else "False" end)"' report >wanted
for one in "$root/.venv/bin/python" "$python"; do
  PYTHONPATH=$root "$one" train.py >"$out" 2>"$err" || die "train.py in $one"
  same "$out" wanted
done
eq "$(git status --porcelain machines; git rev-parse HEAD)" "$before"

# from the store alone: what is pending is graded first
machine-run brief "Tell me about the moon." >/dev/null 2>&1
machine-train brief --steps 2 --trials 1 --no-confirm --seed 3 >"$out" 2>"$err"
[ $? -le 1 ] || die "a round from the store failed"
has "$out" "7 runs (0 sampled now, 1 graded now)"
has "$out" "loss a token"
eq "$(git status --porcelain machines; git rev-parse HEAD)" "$before"
machine-tinkerd --stop >/dev/null 2>&1
true
