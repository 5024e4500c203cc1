#!/bin/bash
# machine-select: a pure filter, byte for byte.
. "$(dirname "$0")/lib.sh"
machine say
cat >rules <<'J'
{"match": "two good", "trial": 2, "replies": ["bad"]}
{"match": "two good", "replies": ["a  Good one, good"]}
{"match": "none", "replies": ["bad"]}
{"match": "one", "trial": 3, "replies": ["good"]}
{"match": "one", "replies": ["bad"]}
J
printf '{"id":"x","input":"two good"}\n{"id":"y","input":"none"}\n{"id":"z","input":"one"}\n' >cases
machine-run say --harness scripted --model rules --trials 3 --concurrency 1 <cases >runs 2>/dev/null || die run
machine-grade <runs >graded 2>/dev/null || die grade

expect 0 machine-select <graded
same "$out" graded
expect 0 machine-select --passing -v <graded
eq "$(jq -r '.case.id + (.trial|tostring)' "$out" | tr '\n' ' ')" "x1 x3 z3 "
has "$err" "3 cases: 1 with no good run, 1 with 1, 1 with 2 or more"
grep -Fxf "$out" graded >again; same "$out" again

expect 0 machine-select --best 1 <graded
eq "$(jq -r '.case.id + (.trial|tostring)' "$out" | tr '\n' ' ')" "x3 y3 z3 "
expect 0 machine-select --best 2 --passing <graded
eq "$(jq -r '.case.id + (.trial|tostring)' "$out" | tr '\n' ' ')" "x1 x3 z3 "
expect 0 machine-select --best 2 --passing --distinct <graded
eq "$(jq -r '.case.id + (.trial|tostring)' "$out" | tr '\n' ' ')" "x3 z3 "
expect 0 machine-select --min-score 1 <graded
eq "$(lines "$out")" 3

# two pipes that must agree
expect 0 machine-select --best 1 --passing <graded
jq -sc '[.[] | select(.scorecard.passed)] | group_by(.case.identity) | map(sort_by(.started_at, .trial) | last) | sort_by(.case.id) | .[]' \
  <graded | jq -r .id >by-jq
jq -r .id "$out" >by-us; same by-us by-jq

expect 0 machine-select --cases <(echo '"two good"') <graded
eq "$(lines "$out")" 3
expect 0 machine-select --not-cases <(echo '"two good"') <graded
eq "$(lines "$out")" 6
expect 0 machine-select --split holdout <graded
eq "$(lines "$out")" 0
expect 1 machine-select --split holdout --fail-empty <graded
expect 0 machine-select --since 1h <graded
eq "$(lines "$out")" 9
expect 0 machine-select --since 2099-01-01 <graded
eq "$(lines "$out")" 0
expect 0 machine-select --at say@ <graded
eq "$(lines "$out")" 9
echo "More." >>machines/say/instructions.md
expect 0 machine-select --at say@ <graded
eq "$(lines "$out")" 0
expect 0 machine-select --at "$(head -1 graded | jq -r .version | cut -c1-8)" <graded
eq "$(lines "$out")" 9
expect 129 machine-select --at nonsense <graded
expect 129 machine-select --since yesterday-ish <graded
expect 129 machine-select --best 0 <graded
expect 0 machine-select </dev/null

# ungraded runs pass unless a score is asked for; bad lines are told and skipped
expect 0 machine-select <runs
same "$out" runs
expect 0 machine-select --best 1 <runs
eq "$(lines "$out")" 0
{ head -1 graded; echo '{broken'; echo '{"type":"scorecard"}'; sed -n 2p graded; } >mixed
expect 3 machine-select <mixed
eq "$(lines "$out")" 2
has "$err" "line 2: no JSON"
has "$err" "line 3: no run: its type is 'scorecard'"

# jq between two stages changes nothing
jq -c . graded >through-jq
expect 0 machine-select --passing <through-jq
eq "$(lines "$out")" 3

# it reads no project and no store
cp graded "$work/graded"; mkdir "$work/elsewhere"; cd "$work/elsewhere" || exit 1
expect 0 machine-select --passing <../graded
eq "$(lines "$out")" 3
[ ! -e .machine ] || die "a store was made"
