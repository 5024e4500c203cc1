#!/bin/bash
# machine-export: what may be learned from, in each form; what is left out is counted and named.
. "$(dirname "$0")/lib.sh"
machine act
cat >machines/act/machine.py <<'PY'
from libmachine import Machine, check

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

machine = Machine(intent="x", tools=[add], graders={"good": check(lambda run: "good" in run.output)})
PY
cat >rules <<'J'
{"match": "plain", "trial": 2, "replies": ["Good   GOOD good"]}
{"match": "plain", "replies": ["good good good"]}
{"match": "bad", "replies": ["poor"]}
{"match": "tool", "replies": [{"tool_calls":[{"name":"nosuch","arguments":{}}]}, {"content": "", "tool_calls":[{"name":"add","arguments":{"a":1,"b":2}}]}, "good: 3"]}
{"match": "cut", "replies": [{"content": "good but cu", "finish_reason": "length"}]}
{"match": "thinks", "replies": [{"content": "good", "reasoning": "let me see", "reasoning_field": "reasoning_content", "usage": {"reasoning_tokens": 4}}]}
{"match": "counted", "replies": [{"content": "good", "usage": {"reasoning_tokens": 4}}]}
{"match": "exam", "replies": ["good"]}
{"match": "mixed", "trial": 1, "replies": ["good one"]}
{"match": "mixed", "replies": ["poor one"]}
J
printf '{"id":"%s","input":"%s"}\n' plain plain bad bad tool tool cut cut thinks thinks counted counted mixed mixed >cases
printf '{"id":"h","input":"exam"}\n' >machines/act/holdout.jsonl
{ cat cases; echo '{"id":"h","input":"exam"}'; } |
  machine-run act --harness scripted --model rules --trials 2 --concurrency 1 2>/dev/null | machine-grade >graded 2>/dev/null

expect 0 machine-export <graded
cp "$out" rows; cp "$err" told
eq "$(jq -r '.messages[1].content' rows | sort | tr '\n' ' ')" "mixed plain thinks tool "
has told "2 left out: held out (h)"
has told "2 left out: status limit (length)" # chosen by score, refused by how it ended
has told "only the count was captured"
has told "4 examples; they hold prompts and outputs"

# a failed call stays in the context and is no target; the tools are there
jq -c 'select(.messages[1].content == "tool")' rows >tool
eq "$(jq -c '[.messages[] | [.role, .weight]]' tool)" \
  '[["system",null],["user",null],["assistant",0],["tool",null],["assistant",1],["tool",null],["assistant",1]]'
eq "$(jq -r '.tools[0].function.name' tool)" add
eq "$(jq -c '.messages[4].tool_calls[0].function.arguments' tool)" '"{\"a\":1,\"b\":2}"'
expect 0 machine-export --per-turn <graded
eq "$(jq -c 'select(.messages[1].content == "tool") | .messages | length' "$out" | tr '\n' ' ')" "5 7 "

# forms
expect 0 machine-export --format cookbook <graded
eq "$(jq -c '.messages[1].content' "$out" | sort | tr '\n' ' ')" '"mixed" "plain" '
eq "$(jq -c 'keys' "$out" | sort -u)" '["messages"]'
has "$err" "it calls tools"
has "$err" "it has reasoning"
expect 0 machine-export --format cookbook --drop-reasoning <graded
eq "$(lines "$out")" 4
expect 0 machine-export --format trl <graded
eq "$(jq -r 'select(.messages[1].content == "tool") | .messages[4].tool_calls | type' "$out")" string
eq "$(jq -r 'select(.messages[1].content == "thinks") | .messages[2].reasoning_content' "$out")" "let me see"
expect 0 machine-export --format dpo <graded
eq "$(jq -c '[.prompt[-1].content, .chosen[0].content, .rejected[0].content]' "$out")" '["mixed","good one","poor one"]'

# from the store; a file whole and private; nothing to learn from
expect 0 machine-export act --out data.jsonl
eq "$(jq -cS .messages data.jsonl | sort | md5sum)" "$(jq -cS .messages rows | sort | md5sum)"
eq "$(stat -c %a data.jsonl)" 600
expect 1 machine-export act --since 2099-01-01
expect 0 machine-export --no-distinct <graded
eq "$(jq -r '.messages[1].content' "$out" | grep -c plain)" 2
sed -i 's/says good/says good things/' machines/act/rubric.toml
expect 1 machine-export <graded
has "$err" "older rubric"
expect 1 machine-export </dev/null
