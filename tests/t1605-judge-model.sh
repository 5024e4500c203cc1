#!/bin/bash
# Whose model judges, how hard it thinks, and which grades are asked for again.
. "$(dirname "$0")/lib.sh"
. "$root/tests/lib-fake.sh"
# whose model: judge(model=) beats --judge-model beats MACHINE_JUDGE_MODEL beats the endpoint's default
judged say 'judge(model="fake/own")'
judged other 'judge()'
runs_of say "hello"; cp runs own
runs_of other "hello"; cp runs open
model_of() { jq -r .model "$log" | sort -u | tr '\n' ' '; }
says
MACHINE_JUDGE_MODEL=fake/variable expect 0 machine-grade --judge-model fake/option <own
eq "$(model_of)" "own "
says
MACHINE_JUDGE_MODEL=fake/variable expect 0 machine-grade --judge-model fake/option <open
eq "$(model_of)" "option "
says
MACHINE_JUDGE_MODEL=fake/variable expect 0 machine-grade <open
eq "$(model_of)" "variable "
# the default of the run's endpoint: the run's own model there, on tinker and pi Inkling-Small; none without one
as() { # as HARNESS MODEL: the run, as if it came from there
  jq -c --arg harness "$1" --arg model "$2" '.harness = $harness | .model = $model' open >from; }
export MACHINE_ENDPOINTS="fake=$url corp=$url tinker=$url openrouter=$url" OPENAI_BASE_URL=$url
says
for pair in "fake,fake/m" "corp,m" "openai,m" "openai,openai/m" "openrouter,openrouter/a/m" "tinker,tinker/a/m" "pi,m" \
  "corp+abc,corp/m"; do as "${pair%,*}" "${pair#*,}"; cat from; done >runs
expect 0 machine-grade --adopt --concurrency 1 <runs
eq "$(jq -r .model "$log" | tr '\n' ' ')" \
  "m m m m a/m thinkingmachines/Inkling-Small thinkingmachines/Inkling-Small m "
eq "$(jq -r '.scorecard.grades[0].grader | split(":")[1]' "$out" | tr '\n' ' ')" \
  "fake/m corp/m openai/m openai/m openrouter/a/m tinker/thinkingmachines/Inkling-Small tinker/thinkingmachines/Inkling-Small corp/m "
says
for pair in "echo,echo" "scripted,scripted/abc" "local:xllamacpp-1+v2,local/m#abc"; do
  as "${pair%,*}" "${pair#*,}"; cat from; done >runs
expect 3 machine-grade --adopt <runs
eq "$(counted)$(asked)" "3 of null0"
eq "$(jq -r '.scorecard.grades[0].error' "$out" | sort -u)" \
  "no judge model; add --judge-model ID, MACHINE_JUDGE_MODEL, or judge(model=...)"
has "$err" "no judge model; add --judge-model ID"
# an openrouter/ judge goes there, wherever the run was made
says
OPENROUTER_API_KEY=sk-or-test-1234 expect 0 machine-grade --judge-model openrouter/a/judge <open
eq "$(jq -r '[.model, .headers.authorization, .body.reasoning.effort] | join(" ")' "$log")" "a/judge Bearer sk-or-test-1234 medium"
# a judge that no endpoint serves, and a harness that would answer in its place
for variable in "" MACHINE_HARNESS=echo MACHINE_HARNESS=local; do
  says
  expect 3 env $variable machine-grade --judge-model nobody/knows <open
  eq "$(scores)$(asked)" "null 0"
  has "$err" "nobody/knows"
done

# effort: medium, --judge-effort, judge(effort=); on tinker its number; off is not sent. A run's --effort is another
says
expect 0 machine-grade --judge-model fake/e --judge-effort high <open
expect 0 machine-grade --judge-model tinker/e <open
expect 0 machine-grade --judge-model fake/e --judge-effort off <open
eq "$(jq -c '.body.reasoning_effort' "$log" | tr '\n' ' ')" '"high" 0.7 null '
judged other 'judge(effort="low")'
says
expect 0 machine-grade --judge-model fake/e --judge-effort high <open
eq "$(jq -r '.body.reasoning_effort' "$log")$(grade effort)" 'low"low" '
judged other 'judge()'
expect 129 machine-grade --judge-model tinker/e --judge-effort hard <open
has "$err" "no effort 'hard'"

# a grade says who judged: the same judge is not asked again, another model, effort or prompt is
says
expect 0 machine-grade --judge-model fake/judge-c <open
eq "$(jq -c '.scorecard.grades[0] | keys' "$out")" \
  '["criterion","effort","grader","key","model","reason","score","usage","weight"]'
jq -r '.scorecard.grades[0].grader' "$out" | grep -qE '^judge:fake/judge-c:medium@[0-9a-f]{12}$' || die "grader"
eq "$(jq -c '.scorecard.grades[0] | [.model, .effort, .usage.calls, .usage.prompt_tokens, .reason]' "$out")" \
  '["judge-c","medium",1,12,"as told"]'
jq -c '.scorecard.grades[0] | keys_unsorted | index("reason") < index("score")' "$out" | grep -q true || die "the score before its reason"
expect 0 machine-grade --judge-model fake/judge-c <open
eq "$(asked)" 1
has "$err" "1 known already"
expect 0 machine-grade --judge-model fake/judge-d <open
eq "$(asked)" 2
expect 0 machine-grade --judge-model fake/judge-c <open # an old grade of this judge is still one
eq "$(asked)" 2
expect 0 machine-grade --judge-model fake/judge-c --judge-effort low <open
eq "$(asked)" 3
sed -i 's/it helps/it really helps/' machines/other/rubric.toml
expect 0 machine-grade --judge-model fake/judge-c <open
eq "$(asked)" 4

# judge and machine of one family: a warning
as corp corp/inkling-9
says
expect 0 machine-grade --adopt --judge-model fake/Inkling-Small <from
has "$err" "warning: judge and machine are of one family (inkling)"
expect 0 machine-grade --adopt --judge-model fake/other-1 <from
hasnt "$err" "one family"
expect 0 machine-fsck
# more than twenty runs judged again only because the judge is another: said once, before the next is
judged many 'judge()'
runs_of many $(seq 1 24)
says '{}'
expect 0 machine-grade --judge-model fake/one <runs
hasnt "$err" "judged again"
cp "$out" graded
expect 0 machine-grade --judge-model fake/two <graded
has "$err" "warning: more than 20 runs are judged again only because the judge changed, from judge:fake/one"
eq "$(grep -c "judged again" "$err")" 1
expect 0 machine-grade --judge-model fake/two <graded
hasnt "$err" "judged again"
