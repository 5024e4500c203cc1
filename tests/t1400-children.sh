#!/bin/bash
# Child machines: what is inherited, what may be added, what is refused; several levels.
. "$(dirname "$0")/lib.sh"
machine say
mkdir -p machines/say/loud/very
cat >machines/say/machine.py <<'PY'
from libmachine import Machine, check

def hum(note: str) -> str:
    """Hum a note."""
    return note

machine = Machine(intent="Say something good.", tools=[hum],
                  graders={"good": check(lambda run: "good" in run.output)})
PY
cat >machines/say/loud/machine.py <<'PY'
from libmachine import Machine, check

def shout(word: str) -> str:
    """Shout a word."""
    return word.upper()

machine = Machine(intent="Say it loud.", tools=[shout],
                  graders={"loud": check(lambda run: run.output.isupper())})
PY
printf '[loud]\ndescription = "All capitals."\nweight = 3\n' >machines/say/loud/rubric.toml
echo "Speak up." >machines/say/loud/instructions.md
cat >machines/say/loud/very/machine.py <<'PY'
from libmachine import Machine, check
from ..machine import shout

machine = Machine(intent="Louder.", graders={"mark": check(lambda run: run.output.endswith("!"))})
PY
printf '[mark]\ndescription = "Ends in a mark."\n' >machines/say/loud/very/rubric.toml

expect 0 machine-run say/loud "a good day"
eq "$(jq -r '.messages[0].content' "$out")" $'Say something good.\n\nSpeak up.'
eq "$(jq -r '[.tools[].function.name] | join(" ")' "$out")" "hum shout"
eq "$(jq -r .model "$out")" echo
cp "$out" runs
expect 0 machine-grade <runs
eq "$(jq -c '[.scorecard.score, [.scorecard.grades[].criterion]]' "$out")" '[0.25,["good","loud"]]'
expect 0 machine-run say/loud/very "a good day"
cp "$out" runs
expect 0 machine-grade <runs
eq "$(jq -c '[.scorecard.grades[].criterion]' "$out")" '["good","loud","mark"]'

expect 0 machine-tree say
has "$out" "say/loud"
has "$out" "good, +loud"
has "$out" "good, loud, +mark"
expect 0 machine-tree say --json
eq "$(jq -c '[.name,.adds.criteria,.inherits.tools]' "$out" | sed -n 3p)" '["say/loud/very",["mark"],["hum","shout"]]'

# a held-out case of one is held out for the whole family
printf '{"id":"x","input":"the exam of the child"}\n' >machines/say/loud/holdout.jsonl
expect 0 machine-run say "the exam of the child"
eq "$(jq -r .split "$out")" holdout
expect 0 machine-run say/loud/very "a good exam"
eq "$(jq -r .split "$out")" holdout

# the parent's version is part of the child's
before=$(machine-list | jq -r 'select(.name == "say/loud/very").version')
echo "More." >>machines/say/instructions.md
[ "$before" != "$(machine-list | jq -r 'select(.name == "say/loud/very").version')" ] || die "version did not change"

# its own model; a redefined criterion or tool is refused
echo '{"model": "echo", "harness": "echo", "sampling": {"max_tokens": 7}}' >machines/say/loud/model.json
expect 0 machine-run say/loud/very "x"
eq "$(jq -r .sampling.max_tokens "$out")" 7
printf '[good]\ndescription = "Mine."\n[loud]\ndescription = "All capitals."\n' >machines/say/loud/rubric.toml
sed -i 's/graders={/graders={"good": check(lambda run: True), /' machines/say/loud/machine.py
expect 128 machine-run say/loud "x"
has "$err" "criterion 'good' is inherited from 'say'"
printf '[loud]\ndescription = "All capitals."\n' >machines/say/loud/rubric.toml
sed -i 's/"good": check(lambda run: True), //; s/def shout/def hum/; s/tools=\[shout\]/tools=[hum]/' machines/say/loud/machine.py
expect 128 machine-run say/loud "x"
has "$err" "tool 'hum' is inherited"
expect 128 machine-run say/soft "x"
has "$err" "did you mean"
