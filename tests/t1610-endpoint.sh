#!/bin/bash
# machine-run against a small real endpoint: addresses and keys, retries, reasoning, usage, outages.
. "$(dirname "$0")/lib.sh"
. "$root/tests/lib-fake.sh"
machine say
rm machines/say/model.json
export OPENAI_API_KEY=sk-test-openai-0123456789 MACHINE_ENDPOINTS=
run() { machine-run say --harness openai --model m --base-url "$url" --no-resume "$@" >"$out" 2>"$err"; }
field() { jq -c "$1" "$out" | tr '\n' ' '; }

# what goes out and what is kept of what comes back
says '{"reply": "good", "usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60}, "completion_tokens": 20, "completion_tokens_details": {"reasoning_tokens": 5}, "cost": 0.0012}}'
run --temperature 0.5 --max-tokens 77 --effort low "a good day" || die
eq "$(jq -c '.body | [.model, .temperature, .max_tokens, .reasoning_effort, (.seed | type), .tools]' "$log")" \
  '["m",0.5,77,"low","number",null]'
eq "$(jq -c '.body.messages | map(.role)' "$log")" '["system","user"]'
eq "$(jq -r '.headers.authorization' "$log")" "Bearer $OPENAI_API_KEY"
eq "$(field '[.model,.harness,.answered,.output,.status]')" '["m","openai","m","good","ok"] '
eq "$(field .usage)" \
  '{"calls":1,"prompt_tokens":100,"cached_tokens":60,"completion_tokens":20,"reasoning_tokens":5,"cost_usd":0.0012} '
has "$err" '1 run, $0.0012'
# usage that is not reported is unknown, not 0
says '{"body": {"model": "other", "choices": [{"message": {"content": "good"}, "finish_reason": "stop"}]}}'
run hi || die
eq "$(field '[.answered,.usage.prompt_tokens,.usage.completion_tokens]')" '["other",null,null] '

# retries: what may pass is asked again, counted and shown; what is final is asked once
says '{"times": 2, "status": 503, "reply": "busy"}' '{"times": 1, "status": 429, "headers": {"Retry-After": "0"}}'
run hi || die
eq "$(asked) $(field '.steps[0].retries')" "4 3 "
has "$err" "openai: retry 1 of 5 in 0.0 s: HTTP 503: busy"
has "$err" "openai: retry 3 of 5 in 0.0 s: HTTP 429"
for status in 400 401 402 403 404 422; do echo "{\"match\": \"$status\", \"status\": $status}"; done >finals
says "$(cat finals)"
printf '"%s"\n' 400 401 402 403 404 422 >cases
expect 3 machine-run say --harness openai --model m --base-url "$url" --ordered <cases
eq "$(asked)" 6
eq "$(field '[.status,.stop_reason,.usage.calls,.error.where]' | tr ' ' '\n' | sort -u | tr -d '\n')" '["failed","error",0,"provider"]'
has "$err" "answered 401 for model 'm': scripted 401; the key was refused: check OPENAI_API_KEY"
hasnt "$err" retry
hasnt "$err" "$OPENAI_API_KEY"

# a key or an address that is missing is named before any run
before=$(machine-runs say | wc -l)
says
for words in "openrouter a/b OPENROUTER_API_KEY" "tinker a/b TINKER_API_KEY"; do
  set -- $words
  expect 128 machine-run say --model "$1/$2" <cases
  has "$err" "fatal: endpoint '$1' needs a key: set $3"
  eq "$(lines "$out")" 0
done
expect 128 machine-run say --harness openai --model m <cases
has "$err" "fatal: harness 'openai' has no address; add --base-url URL or set OPENAI_BASE_URL"
expect 128 machine-run say --harness openai --model m --base-url nonsense <cases
has "$err" "fatal: no usable address 'nonsense'"
expect 128 machine-run say --model unheard/of <cases
has "$err" "fatal: no endpoint for model 'unheard/of'"
eq "$(machine-runs say | wc -l) $(asked)" "$before 0"

# addresses: OPENAI_BASE_URL, names of one's own with their key, a known prefix with another address
says
OPENAI_BASE_URL=$url expect 0 machine-run say --model openai/x hi
export CORP_API_KEY=corp-secret-0123456789 OPENROUTER_API_KEY=sk-or-secret-0123456789
MACHINE_ENDPOINTS="corp=$url other=http://127.0.0.1:1/v1" expect 0 machine-run say --model corp/big/one hi
eq "$(field '[.model,.harness]')" '["corp/big/one","corp"] '
expect 0 machine-run say --model openrouter/a/b --base-url "$url" --effort high hi
MACHINE_ENDPOINTS="openrouter=$url" expect 0 machine-run say --model openrouter/a/c --effort high hi
eq "$(field '[.model,.harness]')" '["openrouter/a/c","openrouter"] '
eq "$(jq -c '[.body.model, .headers.authorization, (.body.reasoning.effort // .body.reasoning_effort)]' "$log" | tr '\n' ' ')" \
  "[\"x\",\"Bearer $OPENAI_API_KEY\",null] [\"big/one\",\"Bearer $CORP_API_KEY\",null] [\"a/b\",\"Bearer $OPENROUTER_API_KEY\",\"high\"] [\"a/c\",\"Bearer $OPENROUTER_API_KEY\",\"high\"] "

# reasoning is kept apart from the answer, and goes back under the name it came with and no other
cat >machines/say/machine.py <<'PY'
from libmachine import Machine, check


def look(at: str) -> str:
    """Look at something."""
    return "nothing at " + at


machine = Machine(intent="x", tools=[look], graders={"good": check(lambda run: "good" in run.output)})
PY
call='"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"NOTHING\"}"}}]'
for name in reasoning_content reasoning; do
  says "{\"times\": 1, \"reply\": \"\", \"message\": {\"$name\": \"first I think\", $call}}" '{"reply": "good"}'
  run hi || die
  eq "$(field '[.messages[2].reasoning, .messages[2].reasoning_field, .messages[2].content, .output]')" \
    "[\"first I think\",\"$name\",\"\",\"good\"] "
  eq "$(jq -c --arg name "$name" 'select(.n) | .body.messages[2] // empty | del(.tool_calls, .content) | tojson' "$log")" \
    "\"{\\\"role\\\":\\\"assistant\\\",\\\"$name\\\":\\\"first I think\\\"}\""
done
says '{"reply": "<think>secretly</think>\n\ngood"}'
run hi || die
eq "$(field '[.messages[2].reasoning, .output]')" '["secretly","good"] '

# a provider that is down: failed runs, exit 3, and the rerun buys exactly what is missing
printf '{"input": "%s"}\n' one two three four five six >cases
again() { machine-run say --harness openai --model down --base-url "$1" --timeout 20 "${@:2}" <cases >"$out" 2>"$err"; }
says '{"match": "two|five", "status": 502}'
again "$url"; eq "$?" 3
eq "$(jq -r .status "$out" | sort | uniq -c | tr -s ' \n' ' ')" " 2 failed 4 ok "
has "$err" "6 cases: 0 stored, 6 run, 2 failed"
says
again "$url" || die
eq "$(asked)" 2
has "$err" "6 cases: 4 stored, 2 run"
again "$url" || die
eq "$(asked)" 2
again "$url/" || die # an address is no part of the key
has "$err" "6 cases: 6 stored, 0 run"
machine-grade <"$out" >/dev/null 2>"$err"
has "$err" "6 runs: 6 graded"
# nobody there at all
expect 3 machine-run say --harness openai --model m --base-url http://127.0.0.1:1/v1 --timeout 8 hi
eq "$(field '[.status,.stop_reason,.output]')" '["failed","error",""] '
has "$err" "check the address and the network"
expect 0 machine-fsck
