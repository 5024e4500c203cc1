#!/bin/bash
# machine-runs and machine-show: what is stored, by name, by number, by the first digits.
. "$(dirname "$0")/lib.sh"
machine say
machine other
expect 0 machine-runs
eq "$(lines "$out")" 0
machine-run say --cases cases.jsonl --trials 2 --concurrency 1 >runs 2>/dev/null || die run
machine-run other "a good word" >other 2>/dev/null || die run
machine-grade <runs >graded 2>/dev/null || die grade

expect 0 machine-runs
eq "$(lines "$out")" 7
eq "$(head -1 "$out" | jq -r .machine)" other
expect 0 machine-runs say
tac "$out" >back; same back graded
expect 0 machine-runs say --last 2
eq "$(jq -r '.case.id + (.trial|tostring)' "$out" | tr '\n' ' ')" "c2 c1 "
expect 0 machine-runs say --case a
eq "$(lines "$out")" 2
expect 0 machine-runs --passing
eq "$(lines "$out")" 4
expect 0 machine-runs --failing
eq "$(jq -r .scorecard.passed "$out" | sort -u)" false
eq "$(lines "$out")" 2
expect 129 machine-runs --failing --passing
expect 0 machine-runs --min-score 0.5
eq "$(lines "$out")" 4
expect 0 machine-runs --status failed
eq "$(lines "$out")" 0
expect 0 machine-runs --split cases
eq "$(lines "$out")" 6
expect 0 machine-runs --since 2099-01-01
eq "$(lines "$out")" 0
expect 0 machine-runs --at say@
eq "$(lines "$out")" 7
expect 0 machine-runs --stale
eq "$(jq -r .machine "$out")" other
expect 0 machine-runs --stale --brief
eq "$(jq -r .machine "$out")" other

# the best of each case, as machine-select finds them among the lines
for more in "" --passing "--min-score 0.5" "--case a" "--split cases"; do
  for n in 1 2 3; do
    expect 0 machine-runs say $more --best $n
    machine-runs say $more 2>/dev/null | tac | machine-select --best $n | tac >best
    same "$out" best
  done
done
expect 129 machine-runs --best 1 --stale
expect 129 machine-runs --best 0

# short records: what the whole ones say, without a look at them
expect 0 machine-runs --brief
machine-runs | jq -c '{id, machine, version, case: (.case | {id, identity}), trial, model, started_at, status,
  cost_usd: .usage.cost_usd, scorecard: (.scorecard | if . then {id, rubric, score, passed} else . end)}' >short
same <(jq -Sc . "$out") <(jq -Sc . short)
expect 0 machine-runs say --brief --split cases --best 1
eq "$(lines "$out")" 3
chmod -R u+w .machine/objects; mv .machine/objects hidden
expect 0 machine-runs say --brief
eq "$(lines "$out")" 6
COLUMNS=70 expect 0 machine-runs --brief --table
eq "$(lines "$out")" 8
hasnt "$out" output
expect 3 machine-runs say
rm -r .machine/objects; mv hidden .machine/objects
echo "# changed" >>machines/say/machine.py
expect 0 machine-runs say --stale
eq "$(lines "$out")" 6
expect 128 machine-runs sayy --stale
expect 129 machine-runs --status good

# rows for people, wherever stdout goes
COLUMNS=70 expect 0 machine-runs say --table
eq "$(lines "$out")" 7
[ "$(wc -L <"$out")" -le 70 ] || die "wider than 70"
has "$out" "score"

# what comes out goes back in
machine-runs say --case b >again 2>/dev/null
expect 0 machine-grade <again
expect 0 machine-run say <again
has "$err" "1 case: 2 stored, 0 run"

# show
id=$(head -1 runs | jq -r .id)
expect 0 machine-show "$id"
eq "$(jq -r .id "$out")" "$id"
expect 0 machine-show "${id:0:8}"
eq "$(jq -r .scorecard.score "$out")" 1
expect 0 machine-show 'say@{0}'
eq "$(jq -r '.case.id + (.trial|tostring)' "$out")" c2
expect 0 machine-show 'say@{5}'
eq "$(jq -r .id "$out")" "$id"
expect 128 machine-show 'say@{6}'
has "$err" "fatal: 'say' has no run 6"
card=$(jq -r .scorecard.id graded | head -1)
expect 0 machine-show "${card:0:10}"
eq "$(jq -r .type "$out")" scorecard
expect 128 machine-show 0123456789
expect 128 machine-show no-id
expect 0 machine-show "$id" --messages
has "$out" "--- user"
has "$out" "a good day"
expect 128 machine-show "${card:0:10}" --messages
for type in run scorecard; do
  expect 0 machine-show --schema $type
  eq "$(jq -r .title "$out")" $type
done
expect 129 machine-show --schema nothing
expect 129 machine-show

# a tool's or model's control sequences never reach a terminal
printf '{"input":"a\\u001b[31mred\\u001b]0;title\\u0007\\u202eend"}\n' | machine-run say >esc 2>/dev/null
expect 0 machine-show 'say@{0}' --messages
eq "$(tr -d '\n\t -~' <"$out" | tr -d '\357\277\275' | wc -c)" 0
expect 0 script -qec "machine-runs say --last 1" /dev/null
eq "$(tr -dc '\033\007' <"$out" | wc -c)" 0
