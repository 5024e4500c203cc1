#!/bin/bash
# machine-run: cases in, runs out as they finish; the forms of input, the options, the codes.
. "$(dirname "$0")/lib.sh"
machine say

# one text
expect 0 machine-run say "a good word"
eq "$(jq -r .output "$out")" "a good word"
eq "$(jq -r '[.v,.type,.machine,.trial,.status,.stop_reason,.model] | map(tostring) | join(" ")' "$out")" \
  "1 run say 1 ok stop echo"
has "$err" '1 case: 0 stored, 1 run, $0.00'

# cases on stdin: text, object, messages; blank lines do not count; an array is the same
printf '"plain"\n\n{"input":"object","target":"t","metadata":{"k":1}}\n{"input":[{"role":"user","content":"m"}]}\n' >cases
expect 0 machine-run say --ordered <cases
eq "$(jq -r .output "$out" | tr '\n' ' ')" "plain object m "
eq "$(sed -n 2p "$out" | jq -c '[.case.target,.case.metadata.k]')" '["t",1]'
cp "$out" first
jq -sc . <cases >array
expect 0 machine-run say --ordered <array
has "$err" "3 cases: 3 stored, 0 run"
same "$out" first

# a text and its message are one case; a run is taken for its case
expect 0 machine-run say <<<'[{"input":[{"role":"user","content":"plain"}]}]'
has "$err" "1 case: 1 stored, 0 run"
expect 0 machine-run say --ordered <first
has "$err" "3 cases: 3 stored, 0 run"

# the files of the folder; what is held out is said by content
expect 0 machine-run say --cases cases.jsonl --ordered
eq "$(jq -r .split "$out" | sort -u)" cases
expect 0 machine-run say "a good exam"
eq "$(jq -r .split "$out")" holdout
expect 0 machine-run say "neither"
eq "$(jq -r .split "$out")" null

# trials: numbered from 1; a case that comes twice has more of them
expect 0 machine-run say --trials 2 --ordered <<<$'"t"\n"t"'
eq "$(jq -r .trial "$out" | tr '\n' ' ')" "1 2 3 4 "
eq "$(jq -r .sampling.seed "$out" | sort -u | wc -l)" 4
expect 0 machine-run say --trials 2 --no-resume <<<'"t"'
eq "$(jq -r .trial "$out" | sort | tr '\n' ' ')" "5 6 "

# what decides the answer is the key: other sampling, other run
expect 0 machine-run say --temperature 0.5 "a good word"
has "$err" "0 stored, 1 run"
expect 0 machine-run say --seed 7 "a good word"
has "$err" "0 stored, 1 run"
expect 0 machine-run say --max-tokens 9 "a good word"
eq "$(jq -c '[.sampling.max_tokens,.sampling.top_k,.sampling.min_p,.sampling.top_p]' "$out")" '[9,0,0,1]'

# dry run: nothing is called, nothing stored
expect 0 machine-run say --dry-run --trials 2 <<<$'"a good word"\n"new"'
eq "$(lines "$out")" 0
has "$err" "2 cases, 4 runs: 1 stored, 3 to run on echo"

# empty stdin is fine, an empty file is not
expect 0 machine-run say </dev/null
: >empty
expect 128 machine-run say --cases empty
has "$err" "fatal: 'empty' has no case"

# usage
expect 129 machine-run
expect 129 machine-run say hi --cases cases
expect 129 machine-run say hi --trials 0
expect 129 machine-run say hi --trials -1
expect 129 machine-run say hi --no-such-option
eq "$(lines "$out")" 0
expect 129 script -qec "machine-run say --json" /dev/null
has "$out" "stdin is a terminal"

# on a terminal: the answer for people
expect 0 script -qec "machine-run say 'a good word'" /dev/null
has "$out" "a good word"
hasnt "$out" '"type"'

# graded as they finish
expect 0 machine-run say --eval "a good word"
eq "$(jq -c '[.scorecard.score, .scorecard.passed]' "$out")" '[1,true]'
expect 0 machine-run say --eval --cases cases.jsonl --ordered
eq "$(jq -c .scorecard.score "$out" | tr '\n' ' ')" "1 0 1 "
expect 0 script -qec "machine-run say --eval 'a bad word'" /dev/null
has "$out" "not passed"
