#!/bin/bash
# Counterparts: a case as a whole conversation, through run, grade, select, export, suite, compare, gate; a kill
# in the middle; what the machine is shown; machine-converse.
. "$(dirname "$0")/lib.sh"
. "$root/tests/lib-fake.sh"
git init -q
mkdir -p machines/desk machines/caller
cat >machines/desk/machine.py <<'PY'
import os

from libmachine import Counterpart, Machine, check


def look(code: str) -> str:
    """Look a code up.

    code: the code
    """
    with open(os.environ["CALLS"], "a") as file:
        file.write("looked\n")
    return f"{code} is in the book"


def done(run):
    return "DONE" in run.output


def helps(run):
    return run.output.endswith("well."), run.output


def sees_all(run):
    sides = [turn.side for turn in run.turns]
    told = [call.ok for call in run.tool_calls]
    return sides == ["counterpart", "machine"] * (len(sides) // 2) and all(told), f"{len(sides)} turns, {len(told)} calls"


machine = Machine(
    intent="Help the caller.",
    tools=[look],
    graders={"helps": check(helps), "sees_all": check(sees_all)},
    counterpart=Counterpart("caller", until=done, max_turns=6),
)
PY
cat >machines/caller/machine.py <<'PY'
from libmachine import Machine, check


def hides(run):
    return "E7" not in run.turns[0].text, run.turns[0].text


machine = Machine(intent="Call for help.", graders={"hides": check(hides)})
PY
printf '[helps]\ndescription = "It ends well."\n[sees_all]\ndescription = "All is seen."\n' >machines/desk/rubric.toml
printf '[hides]\ndescription = "It hides the code."\n' >machines/caller/rubric.toml
echo "You are the desk." >machines/desk/instructions.md
echo "You are the caller." >machines/caller/instructions.md
echo '{"model": "desk.rules", "harness": "scripted"}' >machines/desk/model.json
echo '{"model": "caller.rules", "harness": "scripted"}' >machines/caller/model.json
for n in 1 2; do echo "{\"id\": \"c$n\", \"input\": \"CANARY$n: your pump shows E7.\", \"target\": \"reset\", \"metadata\": {\"hidden\": \"CANARY-META\"}}"; done >machines/desk/cases.jsonl
for n in 1 2 3 4 5 6 7; do echo "{\"id\": \"h$n\", \"input\": \"CANARY-H$n: your pump shows E7.\"}"; done >machines/desk/holdout.jsonl
# eight turns: four of each side; in its second the desk uses its tool
cat >caller.rules <<'J'
{"match": "settle it\\?$", "replies": [{"content": "Yes, thanks.", "cost_usd": 0.001}]}
{"match": "help\\?$", "replies": [{"content": "It shows E7.", "cost_usd": 0.001}]}
{"match": "number\\?$", "replies": [{"content": "Number nine.", "cost_usd": 0.001}]}
{"match": "", "replies": [{"content": "Hello, my pump is broken.", "cost_usd": 0.001}]}
J
cat >desk.rules <<'J'
{"match": "thanks.$", "replies": [{"content": "DONE, all is well.", "cost_usd": 0.01}]}
{"match": "E7.$", "replies": [{"content": "Does a reset settle it?", "cost_usd": 0.01}]}
{"match": "nine.$", "replies": [{"tool_calls": [{"name": "look", "arguments": {"code": "nine"}}], "content": "", "cost_usd": 0.01}, {"content": "What does it show, so that I can help?", "cost_usd": 0.01}]}
{"match": "", "replies": [{"content": "Your number?", "cost_usd": 0.01}]}
J
export CALLS=$work/calls; : >"$CALLS"

# --- run, grade, select, export ---------------------------------------------------------------------
expect 0 machine-run desk --cases cases.jsonl --ordered
cp "$out" runs
eq "$(lines runs)" 2
has "$err" '2 cases: 0 stored, 2 run, $0.108'
eq "$(jq -c '[.machine, .case.id, .split, .status, .output, .usage.calls, .usage.cost_usd]' runs | head -1)" \
  '["desk","c1","cases","ok","DONE, all is well.",1,0.01]'
eq "$(jq -c '.conversation | [.side, .turn, .with, .last, (.runs | length), (.steps | length), .usage.machine.cost_usd, .usage.counterpart.cost_usd]' runs | head -1)" \
  '["machine",4,"caller",true,7,4,0.05,0.004]'
eq "$(head -1 runs | jq -c '.messages | map(.role)')" \
  '["system","user","assistant","user","assistant","tool","assistant","user","assistant","user","assistant"]'
machine-runs >all 2>/dev/null
eq "$(jq -r .machine all | sort | uniq -c | tr -s ' ')" $' 8 caller\n 8 desk'
eq "$(jq -c 'select(.machine == "caller") | [.case.id, .conversation.side, .conversation.with, .conversation.turn]' all | sort | head -4)" \
  $'["c1","counterpart","desk",1]\n["c1","counterpart","desk",2]\n["c1","counterpart","desk",3]\n["c1","counterpart","desk",4]'
# the same conversation from the other side, roles flipped; the case stands before it
jq -c 'select(.machine == "caller" and .conversation.turn == 4 and .case.id == "c1") | [.messages[] | [.role, .content]]' all >theirs
eq "$(jq -c '.[0:5]' theirs)" \
  '[["system","You are the caller.\n"],["user","CANARY1: your pump shows E7."],["assistant","Hello, my pump is broken."],["user","Your number?"],["assistant","Number nine."]]'
eq "$(jq 'length' theirs)" 9
# seeds: of both sides, of each turn, none twice
eq "$(jq .sampling.seed all | sort -u | wc -l)" 16
# bought once
expect 0 machine-run desk --cases cases.jsonl --ordered
same "$out" runs
has "$err" "2 stored, 0 run"
expect 0 machine-run desk --cases cases.jsonl --trials 2 --dry-run
has "$err" "2 stored, 2 to run"

# graded is the last turn; earlier ones pass by
expect 0 machine-grade <runs
cp "$out" graded
eq "$(jq -c '[.scorecard.score, (.scorecard.grades[1].reason)]' graded | sort -u)" '[1,"8 turns, 1 calls"]'
jq -c 'select(.machine == "desk")' all >desks
expect 0 machine-grade <desks
has "$err" "2 runs: 0 graded, 2 known already; 6 earlier turns of conversations"
eq "$(jq -c 'select(.scorecard) | .id' "$out" | wc -l)" 2
expect 0 machine-runs desk --stale
eq "$(lines "$out")" 0
expect 0 machine-select --best 1 <graded
eq "$(lines "$out")" 2
jq -c 'select(.case.id == "c1")' graded >one
expect 0 machine-export --per-turn <one
eq "$(jq -c '[.messages[] | select(.role == "assistant") | .weight] | [length, last, add]' "$out")" \
  $'[1,1,1]\n[2,1,1]\n[3,1,1]\n[4,1,1]\n[5,1,1]'
hasnt "$out" CANARY
expect 0 machine-export desk
eq "$(jq -c '[.messages[] | select(.weight == 1) | .content]' "$out" | sort -u)" \
  '["Your number?","","What does it show, so that I can help?","Does a reset settle it?","DONE, all is well."]'
eq "$(lines "$out")" 2
jq -c 'select(.machine == "caller")' all | machine-grade >"$out.2" 2>/dev/null
expect 1 machine-export <"$out.2"
has "$err" "a counterpart's turn: 'desk' is what was run"
# suite: the same runs, money of both sides
expect 0 machine-suite desk --json
eq "$(jq -c '[.mean, .runs, .mean_completion_tokens, .spend.runs, .warnings]' "$out")" '[1,2,0,0.108,[]]'
expect 125 machine-suite desk --noop
has "$err" "'desk' has a counterpart"
expect 0 machine-spend --by machine --json
eq "$(jq -c '[.name, .calls, .usd]' "$out")" $'["desk",10,0.1]\n["caller",8,0.008]'

# money: one ledger for both sides; what is bought is kept, and the same command goes on
expect 4 machine-run desk --cases holdout.jsonl --concurrency 1 --seed 7 --budget 0.03
has "$err" "the budget of \$0.03 is reached"
kept=$(machine-runs --json 2>/dev/null | jq -r .conversation.id | sort | uniq -c | awk '$1 < 8 { print $1 }')
[ "$kept" -ge 4 ] && [ "$kept" -lt 8 ] || die "kept $kept turns"
expect 0 machine-run desk --cases holdout.jsonl --ordered --seed 7
eq "$(machine-runs --json 2>/dev/null | jq -r .conversation.id | sort | uniq -c | awk '{ print $1 }' | sort | uniq -c | tr -s ' ')" ' 9 8'
expect 0 machine-agree desk sees_all --with same --json
eq "$(jq .runs "$out")" 9

# --- compare and gate -------------------------------------------------------------------------------
git add -A; git commit -qm one
sed 's/DONE, all is well/DONE, good bye/' desk.rules >worse.rules
echo '{"model": "worse.rules", "harness": "scripted"}' >machines/desk/model.json
expect 0 machine-compare desk --trials 1 --json
eq "$(jq -c '[.mean_live, .mean_cand, .changed, .stored.live]' "$out")" '[1,0.5,["model"],2]'
expect 1 machine-gate desk --trials 1 --budget none
eq "$(jq -c '[.decision, .mean_live, .mean_cand, .cases]' "$out")" '["refuse",1,0.5,7]'
git commit -qam two
echo '{"model": "desk.rules", "harness": "scripted"}' >machines/desk/model.json
echo "You are the good desk." >machines/desk/instructions.md
expect 0 machine-gate desk --trials 1 --budget none
eq "$(jq -c '[.decision, .mean_live, .mean_cand]' "$out")" '["promote",0.5,1]'
expect 0 machine-commit desk
eq "$(machine-runs desk 2>/dev/null | jq -rs '[.[] | select(.case.id | startswith("h")) | .split] | unique | .[]')" holdout

# --- ends -------------------------------------------------------------------------------------------
go() { printf '%s\n' "$1" >d.rules; printf '%s\n' "$2" >c.rules; shift 2
  machine-run desk --model d.rules --harness scripted "$@" "CANARY start" >"$out" 2>"$err"; }
export MACHINE_COUNTERPART_MODEL=c.rules
go '{"match": "", "replies": ["And then?"]}' '{"match": "", "replies": ["So it is."]}' || die
eq "$(jq -c '[.status, .conversation.turn, .conversation.last]' "$out")" '["ok",6,true]'
# a reply cut at its length is said; silence of the machine ends it; silence or a fault of the other side is missing data
go '{"match": "", "replies": [{"content": "And th", "finish_reason": "length"}]}' '{"match": "", "replies": [{"content": "So it", "finish_reason": "length"}]}' || die
eq "$(jq -c '[.status, .stop_reason, .conversation.turn]' "$out")" '["limit","length",6]'
go '{"match": "", "replies": [""]}' '{"match": "", "replies": ["So."]}' || die
eq "$(jq -c '[.status, .conversation.turn, .conversation.last]' "$out")" '["ok",1,true]'
go '{"match": "", "replies": ["Yes?"]}' '{"match": "Yes", "replies": [{"content": "", "finish_reason": "length"}]}
{"match": "", "replies": ["So."]}'
eq $? 3
eq "$(jq -c '[.status, .error.where, .conversation.turn, .usage.calls, .conversation.usage.machine.calls]' "$out")" \
  '["failed","counterpart",2,0,1]'
has "$err" "counterpart 'caller': it says nothing (length)"
go '{"match": "", "replies": [{"error": "the line is dead"}]}' '{"match": "", "replies": ["Oh."]}'
eq $? 3
eq "$(jq -c '[.status, .error.where, .error.message]' "$out")" '["failed","provider","the line is dead"]'
machine-grade <"$out" >ungraded 2>/dev/null; eq $? 3
# fails of the rule, and folders that are wrong
cp machines/desk/machine.py keep.py
sed 's/return "DONE" in run.output/return run.nothing/' keep.py >machines/desk/machine.py
expect 3 machine-run desk --model d.rules --harness scripted hello
go '{"match": "", "replies": ["And then?"]}' '{"match": "", "replies": ["So it is."]}'; eq $? 3
eq "$(jq -c '[.status, .error.where, .error.type]' "$out")" '["failed","until","AttributeError"]'
while IFS='|' read -r wrong told; do
  sed "s/Counterpart(\"caller\", until=done, max_turns=6)/$wrong/" keep.py >machines/desk/machine.py
  expect 128 machine-run desk --harness echo hello
  has "$err" "$told"
done <<'T'
"caller"|the counterpart is a str; write Counterpart("NAME")
Counterpart("desk")|the counterpart is 'desk'; name another machine
Counterpart("callr")|counterpart of 'desk': no machine 'callr'; did you mean 'caller'?
Counterpart("caller", until="DONE")|'until' of the counterpart is no function
Counterpart("caller", max_turns=0)|'max_turns' of the counterpart is 0
T
cp keep.py machines/desk/machine.py
echo '{"input": "x", "files": {"a": "b"}}' >filed
expect 128 machine-run desk --model d.rules --harness scripted --cases filed
has "$err" "has files, for which a conversation has no place"
unset MACHINE_COUNTERPART_MODEL

# --- kill -9 in the middle, then exactly the missing calls; the hidden scenario in no request of the machine ----
says '{"asked": "caller", "reply": "Hello, broken."}' '{"asked": "desk", "reply": "And another thing?", "delay_s": 0.1}'
long="machine-run desk --model fake/desk"
MACHINE_COUNTERPART_MODEL=fake/caller $long --cases cases.jsonl --concurrency 1 >part 2>"$err" &
for _ in $(seq 600); do [ "$(asked)" -ge 5 ] && break; sleep 0.02; done
kill -9 $!; wait $! 2>/dev/null
kept=$(machine-runs 2>/dev/null | jq -r 'select(.model | startswith("fake/")) | .id' | wc -l)
[ "$kept" -ge 4 ] && [ "$kept" -lt 24 ] || die "kept $kept of $(asked) calls"
before=$(asked)
export MACHINE_COUNTERPART_MODEL=fake/caller
expect 0 $long --cases cases.jsonl --concurrency 1
eq "$(jq -c '[.conversation.turn, (.conversation.runs | length)]' "$out" | sort -u)" '[6,11]'
eq $(($(asked) - before)) $((24 - kept))
eq "$(jq -r '.body | tojson' "$log" | grep -c 'You are the caller.*CANARY')" "$(jq -r '.body | tojson' "$log" | grep -c 'You are the caller')"
jq -r '.body | select(.model == "desk") | tojson' "$log" >requests
[ "$(lines requests)" -ge 12 ] || die "no requests of the machine"
hasnt requests CANARY
hasnt requests E7
unset MACHINE_COUNTERPART_MODEL

# --- machine-converse -------------------------------------------------------------------------------
git checkout -q machines; echo "You are the desk." >machines/desk/instructions.md
expect 0 machine-converse desk c1 --eval
cp "$out" shown
eq "$(grep -c '^--- ' shown)" 8
eq "$(head -4 shown)" $'--- 1 caller (counterpart)\nHello, my pump is broken.\n--- 1 desk (machine)\nYour number?'
has shown '(calls) look {"code":"nine"}'
has shown "hides"; has shown "sees_all"
has "$err" "8 turns, ok"
expect 0 machine-converse desk
same <(grep -v '^score\|^criterion' "$out" | head -8) <(head -8 shown)
expect 0 machine-converse desk c2 --eval --json
eq "$(jq -c '[.machine, .conversation.turn, (.scorecard.score // null)]' "$out" | tail -3)" \
  $'["desk",3,null]\n["caller",4,1]\n["desk",4,1]'
expect 0 machine-converse desk "CANARY by hand" --no-resume --trial 1
printf '{"match": "", "replies": ["\\u001b[31mDONE well.\\u0007"]}\n' >red.rules
expect 0 machine-converse desk --model red.rules
hasnt "$out" $'\x1b'
has "$out" "DONE well."
machine say
expect 129 machine-converse say
has "$err" "'say' has no counterpart"
expect 0 machine-fsck
