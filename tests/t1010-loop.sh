#!/bin/bash
# The agent loop: tools, what goes wrong with them, and the ends of a run.
. "$(dirname "$0")/lib.sh"
machine act
cat >machines/act/machine.py <<'PY'
import os
import subprocess
from typing import Literal

from libmachine import Machine, check

print("talk as it is loaded", flush=True)


def add(a: int, b: int = 1, mood: Literal["calm", "wild"] = "calm") -> int:
    """Add two numbers.

    a: the first
    b: the second
    """
    return a + b


def boom(text: str) -> str:
    """Fail."""
    raise RuntimeError(text)


def big() -> str:
    """Say a lot."""
    return "head" + "x" * 200_000 + "tail"


def data() -> dict:
    """Give data."""
    return {"b": 1.0, "a": None}


def raw() -> bytes:
    """Give bytes that are no text."""
    return b"\xff\xfeok"


def loud() -> str:
    """Print where nobody should, by every way there is."""
    print("talk by print")
    os.write(1, b"talk by write\n")
    subprocess.run(["echo", "talk by a child"], check=True)
    os.system("echo talk by a shell")
    return "said"


machine = Machine(intent="x", tools=[add, boom, big, data, raw, loud],
                  graders={"good": check(lambda run: (all(c.ok for c in run.tool_calls), str(len(run.tool_calls))))})
PY
go() { printf '%s\n' "$1" >rules; machine-run act --harness scripted --model rules --no-resume "${@:2}" go >"$out" 2>"$err"; }
call() { printf '{"match":"","replies":[{"tool_calls":[%s]},"done"]}' "$1"; }
tool_text() { jq -r '.messages[] | select(.role == "tool") | .content' "$out"; }

go "$(call '{"name":"add","arguments":{"a":2,"b":3}}')" || die
eq "$(tool_text)" 5
eq "$(jq -c '[.output,.usage.calls,.steps[0].tools[0].ok,.steps[0].finish_reason,.stop_reason,.status]' "$out")" \
  '["done",2,true,"tool_calls","stop","ok"]'
eq "$(jq -c '.messages[2].tool_calls[0]' "$out")" \
  '{"function":{"arguments":"{\"a\":2,\"b\":3}","name":"add"},"id":"call_0_0","type":"function"}'
eq "$(jq -c '.messages[3].tool_call_id' "$out")" '"call_0_0"'

# the schema comes from the signature and the docstring
jq -c '.tools[0].function' "$out" >schema
eq "$(jq -c '[.name,.description,.parameters.required,.parameters.properties.b.default]' schema)" \
  '["add","Add two numbers.",["a"],1]'
eq "$(jq -c '[.parameters.properties.a.description,.parameters.properties.mood.enum]' schema)" '["the first",["calm","wild"]]'

# a reply may say what the regex found, whatever stands in it; a group that there is not is told at once
cat >rules <<'J'
{"match": "(?s)^(.*?)go(\\W*)$", "expand": true, "replies": [{"content": "\\1", "tool_calls": [{"name": "data", "arguments": {"word": "\\2"}}]}, "<\\g<0>>"]}
J
expect 0 machine-run act --harness scripted --model rules --json 'a\1 "b" go"'
eq "$(jq -c '[.messages[2].content, (.messages[2].tool_calls[0].function.arguments | fromjson.word), .output]' "$out")" \
  '["a\\1 \"b\" ","\"","<a\\1 \"b\" go\">"]'
echo '{"match": "go", "expand": true, "replies": ["\\1"]}' >rules
expect 128 machine-run act --harness scripted --model rules go
has "$err" "rule 1: invalid group reference 1"
echo '{"match": "go", "expand": 1, "replies": ["\\1"]}' >rules
expect 128 machine-run act --harness scripted --model rules go
has "$err" "'expand' is true or false"

# what is wrong goes back to the model, with the same call id, and the loop goes on
while IFS='|' read -r arguments wanted; do
  go "$(call "$arguments")" || die "$arguments"
  tool_text | grep -qF -- "$wanted" || die "$arguments: $(tool_text), wanted $wanted"
  eq "$(jq -c '[.output,.steps[0].tools[0].ok,.status,.messages[3].tool_call_id]' "$out")" '["done",false,"ok","call_0_0"]'
done <<'T'
{"name":"add","arguments":"{\"a\": 1, \"con"}|error: arguments of 'add' are no JSON
{"name":"add","arguments":"[]"}|are no JSON object
{"name":"add","arguments":"5"}|are no JSON object
{"name":"add","arguments":"null"}|a: Field required
{"name":"add","arguments":{"a":"x"}}|a: Input should be a valid integer
{"name":"add","arguments":{"a":1,"c":2}}|c: Extra inputs
{"name":"boom","arguments":{"text":"it broke"}}|error: RuntimeError: it broke
{"name":"nosuch","arguments":{}}|error: no tool 'nosuch'; there are: add, boom, big, data, raw, loud
T
# arguments that were encoded twice are decoded twice
go "$(call '{"name":"add","arguments":"\"{\\\"a\\\": 4}\""}')" || die
eq "$(tool_text)" 5

go "$(call '{"name":"big","arguments":""}')" || die
tool_text | grep -q '^head' || die; tool_text | grep -q 'tail$' || die
tool_text | grep -q 'characters cut' || die
eq "$(jq .steps[0].tools[0].truncated "$out")" true
go "$(call '{"name":"data","arguments":"{}"},{"name":"raw"}')" || die
eq "$(tool_text)" $'{"a":null,"b":1}\n\xef\xbf\xbd\xef\xbf\xbdok'

# what a machine's code and the programs it starts print is talk, and no part of the product
go "$(call '{"name":"loud"}')" || die
eq "$(tool_text)" said
eq "$(lines "$out")" 1
for way in "as it is loaded" "by print" "by write" "by a child" "by a shell"; do has "$err" "talk $way"; done

# the ends of a run
forever='{"match":"","replies":['
for _ in 1 2 3 4 5; do forever+='{"tool_calls":[{"name":"add","arguments":{"a":1}}]},'; done
go "${forever%,}]}" --max-steps 3 || die
eq "$(jq -c '[.stop_reason,.status,.usage.calls]' "$out")" '["max_steps","limit",3]'
go '{"match":"","replies":[{"content":"cut of","finish_reason":"length"}]}' || die
eq "$(jq -c '[.stop_reason,.status,.output]' "$out")" '["length","limit","cut of"]'
go '{"match":"","replies":[{"delay_s":0.3,"tool_calls":[{"name":"add","arguments":{"a":1}}]},"late"]}' --timeout 0.2 || die
eq "$(jq -c '[.stop_reason,.status]' "$out")" '["timeout","limit"]'
printf '{"match":"","replies":[{"error":"the line is dead"}]}' >rules
expect 3 machine-run act --harness scripted --model rules go2
eq "$(jq -c '[.stop_reason,.status,.error.message,.error.where]' "$out")" '["error","failed","the line is dead","provider"]'

# limit is behaviour: graded; failed is weather: run again
printf '{"match":"","replies":["now it works"]}' >rules2
expect 0 machine-run act --harness scripted --model rules2 go2
cp rules2 rules
has "$err" "0 stored, 1 run"

# tools that cannot be described are refused before any run
for bad in 'def t(a): "x"' 'def t(*a: int): "x"' 'def t(a: int): pass'; do
  printf 'from libmachine import Machine, check\n%s\nmachine = Machine(intent="x", tools=[t], graders={"good": check(lambda r: True)})\n' \
    "$bad" >machines/act/machine.py
  expect 128 machine-run act --harness echo hi
  has "$err" "fatal: tool 't'"
done

# red, the built-in: one call where the word stands by itself
cp -r "$root/machines/red" machines/red
cat >red-rules <<'J'
{"match": "(?i)(?<![^\\W_])red(?![^\\W_])", "replies": [{"tool_calls":[{"name":"red_mentioned","arguments":{"word":"red"}}]}, "Noted."]}
{"match": "", "replies": ["Fine."]}
J
expect 0 machine-run red --harness scripted --model red-rules --cases cases.jsonl
cp "$out" runs
expect 0 machine-grade <runs
eq "$(jq -r '.scorecard.passed' "$out" | sort | uniq -c | tr -s ' ')" " $(lines machines/red/cases.jsonl) true"
printf '{"match":"","replies":["Fine."]}' >never
machine-run red --harness scripted --model never --cases cases.jsonl 2>/dev/null | machine-grade >"$out" 2>/dev/null
eq "$(jq -r .scorecard.score "$out" | grep -c 1)" "$(($(lines machines/red/cases.jsonl) / 2))"
