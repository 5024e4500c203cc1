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
jq -c 'select(.prompt[1].content == "tool")' "$out" >tool
eq "$(jq -c '[(.prompt | length), (.tools | fromjson | length)]' tool | tr '\n' ' ')" "[4,1] [6,1] "
eq "$(jq -c '.completion[0] | .tool_calls[0].function.arguments // .content' tool | tr '\n' ' ')" '{"a":1,"b":2} "good: 3" '
eq "$(jq -r 'select(.prompt[1].content == "thinks") | .completion[0].reasoning_content' "$out")" "let me see"
expect 0 machine-export --format dpo <graded
eq "$(jq -c '[.prompt[-1].content, .chosen[0].content, .rejected[0].content]' "$out")" '["mixed","good one","poor one"]'

# from the store; a file whole and private; nothing to learn from
expect 0 machine-export act --out data.jsonl
eq "$(jq -cS .messages data.jsonl | sort | md5sum)" "$(jq -cS .messages rows | sort | md5sum)"
eq "$(stat -c %a data.jsonl)" 600
expect 1 machine-export act --since 2099-01-01
expect 0 machine-export --no-distinct <graded
eq "$(jq -r '.messages[1].content' "$out" | grep -c plain)" 2

# a family as one dataset; reasoning as a child transforms it, and nothing else of its parent's runs
expect 129 machine-export --tree <graded
expect 129 machine-export --from act <graded
mkdir -p machines/act/loud
cat >machines/act/loud/machine.py <<'PY'
from libmachine import Machine

def loud(reasoning, run):
    if "break" in run.output:
        raise ValueError("broken")
    return reasoning.upper()

machine = Machine(intent="y", transform_reasoning=loud)
PY
echo "Think loudly." >machines/act/loud/instructions.md
echo '{"model": "echo", "harness": "echo"}' >machines/act/loud/model.json
printf '{"id":"held","input":"held by the child"}\n' >machines/act/loud/holdout.jsonl
cat >>rules <<'J'
{"match": "broken", "replies": [{"content": "good break", "reasoning": "x", "reasoning_field": "reasoning"}]}
{"match": "twice", "replies": [{"content": "", "reasoning": "call it", "reasoning_field": "reasoning_details", "tool_calls":[{"name":"add","arguments":{"a":1,"b":2}}]}, {"content": "good: three", "reasoning": "so 3"}]}
{"match": "wrong", "replies": [{"content": "poor", "reasoning": "hm"}]}
{"match": "held", "replies": [{"content": "good", "reasoning": "known"}]}
{"match": "child", "replies": [{"content": "good child", "reasoning": "mine"}]}
J
printf '{"id":"%s","input":"%s"}\n' broken broken twice twice wrong wrong held 'held by the child' |
  machine-run act --harness scripted --model rules --concurrency 1 2>/dev/null | machine-grade >more 2>/dev/null
echo '{"id":"child","input":"child"}' | machine-run act/loud --harness scripted --model rules 2>/dev/null | machine-grade >childs 2>/dev/null
eq "$(lines more) $(lines childs)" "4 1"
expect 0 machine-export act --tree
eq "$(jq -r '.metadata.machine' "$out" | sort | uniq -c | tr -s ' ' | tr '\n' ';')" " 6 act; 1 act/loud;"
has "$err" "3 left out: held out (h, held)"
expect 0 machine-export act
eq "$(jq -r '.metadata.machine' "$out" | sort -u)" act
expect 0 machine-export act/loud --from act
cp "$out" loud; cp "$err" told
eq "$(jq -r '.messages[1].content' loud | sort | tr '\n' ' ')" "thinks twice "
has told "1 left out: transform_reasoning: ValueError: broken (broken)"
has told "left out: no reasoning was captured that could be transformed (mixed, plain, tool)"
hasnt told "act/loud"
eq "$(jq -c 'select(.messages[1].content == "twice") | [.messages[] | .reasoning // empty]' loud)" '["CALL IT","SO 3"]'
eq "$(jq -c '.messages[].reasoning_details | select(. != null)' loud)" ""
quiet='del(.messages[] | .reasoning, .reasoning_field, .reasoning_details)'
expect 0 machine-export act
jq -cS "select(.messages[1].content == (\"thinks\", \"twice\")) | $quiet" "$out" | sort >before
jq -cS "$quiet" loud | sort >after
same before after
eq "$(jq -c '.messages[0].content' loud | sort -u)" '"Say something good.\n"'
expect 0 machine-export act/loud --from act --instructions student
eq "$(jq -c '.messages[0].content' "$out" | sort -u)" '"Say something good.\n\nThink loudly.\n"'
expect 0 machine-export --transform <childs
eq "$(jq -r '.messages[-1].reasoning' "$out")" MINE
expect 128 machine-export act --transform
has "$err" "'act' transforms no reasoning; add transform_reasoning to"
expect 128 machine-export act --from act/loud
has "$err" "'act/loud' is no parent of 'act'"
expect 129 machine-export act/loud --from act --no-passing
expect 129 machine-export act/loud --from act --drop-reasoning

# the machine that comes with it: the parent's right answers, thought in fullwidth
cat >math <<'J'
{"match": "14 rows", "replies": [{"content": "Answer: 168", "reasoning": "14 x 12 = 168, so 168.", "reasoning_field": "reasoning"}]}
{"match": "apples", "replies": [{"content": "Answer: 10", "reasoning": "12 - 5 + 3 = 10", "reasoning_field": "reasoning"}]}
{"match": "eggs", "replies": [{"content": "Answer: 41", "reasoning": "7 * 6", "reasoning_field": "reasoning"}]}
{"match": "pencil", "replies": ["Answer: 4.5"]}
{"match": "stickers", "replies": [{"content": "Answer: 29", "reasoning": "36 - 7", "reasoning_field": "reasoning"}]}
J
jq -c 'select(.id | IN("apples", "eggs", "pencils", "stickers"))' "$root"/machines/wordmath/{cases,holdout}.jsonl |
  machine-run wordmath --harness scripted --model math 2>/dev/null | machine-grade >/dev/null 2>&1
expect 0 machine-export wordmath/fullwidth --from wordmath
eq "$(jq -r '.messages[2] | .reasoning + "|" + .content' "$out")" '１２ - ５ + ３ = １０|Answer: 10'
has "$err" "1 left out: held out (stickers)"
jq -c 'select(.id == "chairs")' "$root/machines/wordmath/fullwidth/cases.jsonl" |
  machine-run wordmath/fullwidth --harness scripted --model math 2>/dev/null | machine-grade >chairs 2>/dev/null
eq "$(jq -c '[.scorecard.score, .scorecard.passed, .scorecard.grades[1].reason]' chairs)" \
  '[0.5,false,"13 letters and digits are not fullwidth: 1 4 x 2 6 8"]'

sed -i 's/says good/says good things/' machines/act/rubric.toml
expect 1 machine-export <graded
has "$err" "older rubric"
expect 1 machine-export </dev/null
