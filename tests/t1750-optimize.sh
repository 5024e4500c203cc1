#!/bin/bash
# machine-optimize: an author proposes instructions, the measurement decides, the person commits.
. "$(dirname "$0")/lib.sh"
git init -q
printf '.machine/\n*.rules\nauthor*\nout\nerr\nrecord*\npage\n' >.gitignore
cp -r "$root/machines/brief" "$root/machines/red" machines/
find machines -name __pycache__ -prune -exec rm -rf {} +
use() { echo "{\"model\": \"$2\", \"harness\": \"scripted\"}" >"machines/$1/model.json"; }
says() { # says TEXT...: an author that proposes these in turn; a text is new once those before were tried
  : >author; before=''
  for text in "$@"; do
    jq -cn --arg m "$before" --arg t "$text" '{match: $m, replies: ["I looked.\n<instructions>\n\($t)\n</instructions>\nDone."]}' >>author
    before="<tried>\n$text"; done
  tac author >author.rules; }
optimize() { machine-optimize "$@" --author author.rules --author-harness scripted; }
state() { git rev-parse HEAD; git for-each-ref; find machines -type f -exec sha1sum {} + | sort; }
unchanged() { state >after; same before after; }
runs() { machine-runs "$1" --json 2>/dev/null | wc -l; }
get() { jq -c "$1" "$out"; }

# --- red: kept. The subject calls the tool where it should once the instructions speak of the whole word.
call='{"tool_calls":[{"name":"red_mentioned","arguments":{"word":"red"}}]}'
cat >red.rules <<J
{"match":"(?i)(?<![^\\\\W_])red(?![^\\\\W_])","instructions":"the whole word","replies":[$call,"Noted."]}
{"match":"(?i)(?<![^\\\\W_])red(?![^\\\\W_])","instructions":"in capitals","replies":[{"tool_calls":[{"name":"red_mentioned","arguments":{"word":"RED"}}]},"Noted."]}
{"match":"(STOP|Pick one)","instructions":"a little","replies":[$call,"Noted."]}
{"match":"","replies":["Fine."]}
J
use red red.rules
printf 'Call the tool when you see fit.\n' >machines/red/instructions.md
git add -A && git commit -qm one
echo 'A line of the person, not committed.' >>machines/red/instructions.md
says 'Call red_mentioned once for the whole word, else never.'
expect 0 optimize red --rounds 1
eq "$(git status --short)" " M machines/red/instructions.md"
eq "$(cat machines/red/instructions.md)" 'Call red_mentioned once for the whole word, else never.'
has "$out" "cases: +0.500"
has "$out" "held-out cases: +0.500"
has "$out" "Kept: instructions.md of red is changed, and not committed."
has "$out" "One proposal only"
has "$err" "red: 0 runs stored, 384 run; 0 of the author stored, 1 run"
[ "$(wc -L <"$out")" -le 80 ] || die "wider than 80 columns"
# what the author saw: purpose, tools, rubric, the work tree's instructions, why each case failed, what passed
expect 0 machine-show optimizer@{0}
jq -r '.messages[1].content' "$out" >page
for text in "Notice the word red" "- red_mentioned: Report that" "- calls_tool (weight 1): If the message" \
  "A line of the person" "# Cases that fail: 12 of 24" "input: \"STOP MEANS RED\"" 'calls_tool 0.00: "the word red in the message, no call"' \
  "# Cases that pass: 12 of 24" "- input: \"Please redo the last exercise.\""; do has page "$text"; done
eq "$(get '[.machine,.case.target.answers[0],.scorecard.passed]')" '["optimizer",[],true]'
while read -r held; do hasnt page "$held"; done < <(jq -r .input machines/red/holdout.jsonl)
# the gate makes it live
expect 0 machine-gate red
expect 0 machine-commit red
eq "$(git status --short machines)" ""

# --- brief: what is discarded leaves every byte as it was -------------------------------------------------
good='"It is a fact."' bad='"It is one. It is two."'
held=$(jq -r .input machines/brief/holdout.jsonl | sed 's/[.?]/\\\\&/g' | paste -sd'|')
cat >brief.rules <<J
{"match":"$held","instructions":"only here","replies":[""]}
{"match":"","instructions":"(all fine|only here)","replies":[$good]}
{"match":"(sky|capital of France)","instructions":"two more","replies":[$good]}
{"match":"(sky|capital of France|Italy|opposite|puppy|baby)","trial":1,"instructions":"lucky","replies":[$good]}
{"match":"(sky|capital of France|Italy|opposite|puppy|baby)","trial":2,"instructions":"lucky","replies":[$good]}
{"match":"","instructions":"worse","replies":["no"]}
{"match":"(spider|week|cows drink|largest planet|freeze|bees)","replies":[$good]}
{"match":"","instructions":"facts","replies":["Blue, Paris, Rome, 8, 7, water, Jupiter, 0, honey. The sun rises in the east, and blood is red."]}
{"match":"","replies":[$bad]}
J
use brief brief.rules
git add -A && git commit -qm brief
state >before
# noise: two cases in forty
says "Answer. In two more cases be brief."
expect 1 optimize brief --rounds 1 --json
unchanged
eq "$(get '[.decision,.reasons[0][:6],.wins,.losses,.instructions,.exam,.held_out,.bought.measured]')" '["discard","noise:",2,0,null,null,24,1]'
jq -e '(.z - 1.433) | fabs < 0.001' "$out" >/dev/null || die "not the z of two cases in forty"
eq "$(get '[.moves[0].screen.cases, .moves[0].screen.passed]')" '[8,true]'
cp "$out" record
expect 1 optimize brief --rounds 1 --json # the same again: all of it is stored
jq -S 'del(.id,.measured_at,.bought)' record >one; jq -S 'del(.id,.measured_at,.bought)' "$out" >two; same one two; rm one two
eq "$(get '[.bought.runs_now,.bought.author_now,.bought.runs]')" '[0,0,240]'
expect 1 optimize brief --rounds 1
has "$out" "Discarded as noise: +0.025 is 1.43 standard errors, 2.00 are needed."
has "$out" "held-out cases: not run"
has "$out" "Next: machine-optimize brief --seed 1"
unchanged
# what noise is, is the person's to say; a weak gain must hold again on fresh trials, and here it does
expect 0 optimize brief --rounds 1 --min-z 1.2 --json
eq "$(get '[.decision,.confirmed,.exam.decision,.exam.mean_diff]')" '["keep",true,"pass",0]'
git checkout -q machines/brief
# one that had luck in trials 1 and 2 has none in 4, 5 and 6
says "Be lucky."
expect 1 optimize brief --rounds 1 --json
eq "$(get '[.decision,.confirmed,.confirm.mean_diff,.exam]')" '["discard",false,0,null]'
has <(get .reasons) not_confirmed
expect 0 optimize brief --rounds 1 --no-confirm
has "$out" "warning: few cases, or few that moved"
git checkout -q machines/brief; unchanged

# the veto of the held-out cases, with its z; the gate counts that look as a try
says "Be brief only here."
expect 1 optimize brief --rounds 1 --json
unchanged
eq "$(get '[.decision,.exam.decision,.exam.losses,.exam.wins]')" '["discard","veto",24,0]'
jq -e '.z > 5 and .exam.mean_diff == -0.5' "$out" >/dev/null || die "not vetoed by the held-out cases alone"
expect 1 optimize brief --rounds 1
has "$out" "Discarded, vetoed by the held-out cases: -0.5"
has "$out" "held-out cases: -0.500, error 0.000, over 24"
unchanged
echo "all fine" >machines/brief/instructions.md
expect 0 machine-gate brief
eq "$(jq .tries "$out")" 4 # this one, the vetoed, and the two that were kept and thrown away
git checkout -q machines/brief; state >before
# another file of held-out cases decides otherwise; one that shares a case is refused
echo '["Another one entirely.","And one more."]' >own.jsonl
expect 0 optimize brief --rounds 1 --holdout own.jsonl --json
eq "$(get '[.held_out,.exam.n]')" '[2,2]'
git checkout -q machines/brief
head -1 machines/brief/cases.jsonl >own.jsonl
expect 128 optimize brief --holdout own.jsonl
has "$err" "case 'sky-color' of cases.jsonl is held-out case 'sky-color' too"
# a guarded criterion that falls: no gain makes up for it
echo "Give facts." >machines/brief/instructions.md; git commit -qam facts
says "It is all fine."
expect 1 optimize brief --rounds 1 --json
has <(get .reasons) "guard_fell: states_fact"
eq "$(get .exam)" null
git reset -q --hard HEAD~1; state >before
git reset -q --hard HEAD

# no proposal, in every way there is: nothing but the baseline is run
line() { jq -cn --argjson n "$1" --argjson r "$2" '{match: "", trial: $n, replies: [$r]}'; }
own=$(cat machines/brief/instructions.md)
{ line 1 '"I have no idea."'
  line 2 '"<instructions>a</instructions><instructions>b</instructions>"'
  line 3 '"<instructions>\n \n</instructions>"'
  line 4 "$(jq -n --arg t "$own" '"<instructions>\n\($t)  \n</instructions>"')"
  line 5 '"<instructions>Say honey, Jupiter or puppy, as the case may be.</instructions>"'
  line 6 '"<instructions>To What do you call a baby dog? say it.</instructions>"'
  line 7 '{"content": "<instructions>cut", "finish_reason": "length"}'
  line 8 '{"error": "the endpoint is down"}'
  line 9 "$(jq -n '"<instructions>" + ("word " * 601) + "</instructions>"')"; } >author.rules
expect 1 optimize brief --rounds 9 --json
unchanged
eq "$(get '[.decision,.bought.proposals,.bought.author,.bought.runs,(.moves | map(.outcome) | unique)]')" '["discard",0,9,120,["failed","no_proposal"]]'
get '.moves[] | .why' >whys
for text in "no <instructions> block" "2 <instructions>" "the block is empty" "unchanged" "answers of 3 cases" \
  "the input of a case: 'What do you call a baby dog?'" "stopped by length" "the endpoint is down" "601 words, at most 600"; do has whys "$text"; done
rm whys
eq "$(get '.reasons')" '["no_proposal: the author made none that could be used"]'
line 1 '{"error": "the endpoint is down"}' >author.rules
expect 125 optimize brief --rounds 1
has "$out" "Cannot be judged, nothing is kept: the author failed: the endpoint is down."

# the screen: worse on a few cases, so it is not run on all
says "Do worse."
expect 1 optimize brief --rounds 1 --json
unchanged
eq "$(get '[.moves[0].outcome,.moves[0].screen.passed,.bought.proposals,.bought.measured,.bought.runs]')" '["screened_out",false,1,0,128]'
expect 1 optimize brief --rounds 1 --screen 0 --json
eq "$(get '[.moves[0].outcome,.bought.measured,.bought.runs,.reasons[0][:11]]')" '["measured",1,240,"not_higher:"]'
unchanged

# a pending candidate in place of a changed file, and the gate measures it
says "It is all fine."
expect 0 optimize brief --rounds 1 --no-write --json
eq "$(git status --short machines)" ""
candidate=$(get .pending | tr -d '"')
[ "$candidate" = "$(git for-each-ref --format='%(refname:lstrip=-1)' refs/machine/brief/-/candidate)" ] || die "no candidate $candidate"
expect 0 machine-show "$(jq -r .id "$out")" --json
eq "$(get '[.type,.pending,.instructions]')" "[\"optimization\",\"$candidate\",\"It is all fine.\"]"
expect 0 machine-gate brief
eq "$(jq -r '[.decision, .candidate[:12]] | join(" ")' "$out")" "promote $candidate"
git update-ref -d "refs/machine/brief/-/candidate/$candidate"; state >before

# --- merge: two from the baseline, each better where the other is not, and one of both ------------------------
cat >merge.rules <<J
{"match":"","instructions":"alpha and beta","replies":[$good]}
{"match":"(Which|How)","instructions":"alpha","replies":[$good]}
{"match":"What","instructions":"beta","replies":[$good]}
{"match":"^(?!.*(Which|How|What))","instructions":"exactly one","replies":[$good]}
{"match":"","replies":[$bad]}
J
use brief merge.rules
says "First alpha." "Then beta."
{ jq -cn '{match: "# Its second instructions", replies: ["<instructions>Both alpha and beta.</instructions>"]}'; cat author.rules; } >author2 && mv author2 author.rules
expect 0 optimize brief --screen 0 --trials 1 --json
eq "$(get '.moves | map([.move,.parents,.outcome])')" '[["reflect",[0],"measured"],["reflect",[0],"measured"],["merge",[1,2],"measured"]]'
eq "$(get '[.pool[] | [.number, .on_front]]')" '[[0,false],[1,false],[2,false],[3,true]]'
eq "$(cat machines/brief/instructions.md)" "Both alpha and beta."
has <(get .warnings) "single_trial: "
expect 0 machine-show optimizer@{0}
jq -r '.messages[1].content' "$out" >page
has page "# Cases on which the first do better"; has page "# Cases on which the second do better"
has page "First alpha."; has page "Then beta."
git checkout -q machines/brief/instructions.md
expect 1 optimize brief --screen 0 --trials 1 --no-merge --json # neither alone is beyond noise
eq "$(get '[([.moves[].move] | unique), (.moves | map(.outcome)), .reasons[0][:6]]')" '[["reflect"],["measured","measured","known"],"noise:"]'
git checkout -q machines/brief

# --- money: what was bought is stored, told, and goes on ------------------------------------------------------
sed 's/"replies":\[\("[^]]*"\)\]/"replies":[{"content":\1,"cost_usd":0.01}]/' brief.rules >dear.rules
use brief dear.rules; state >before
jq -cn '{match: "", replies: [{content: "<instructions>It is all fine.</instructions>", cost_usd: 0.1}]}' >author.rules
expect 4 optimize brief --budget 0.305 --concurrency 1
unchanged
eq "$(machine-runs brief --json 2>/dev/null | jq -c 'select(.usage.cost_usd > 0)' | wc -l)" 30
has "$err" "to go on: machine-optimize brief --budget 0.305"
has "$out" "Not finished, nothing is kept"
expect 4 optimize brief --budget 2.25 --concurrency 1 # the rest of the baseline, the author, all of one proposal
unchanged
has "$err" "fatal: the budget of \$2.25 is reached"
has "$out" "bought: 1 proposal, 1 measured on all cases; 240 runs"
has "$out" "One proposal only"
expect 0 machine-spend --by kind
has "$out" author
expect 0 optimize brief --budget 10
has "$err" "brief: 240 runs stored, 144 run; 1 of the author stored, 2 run"
git checkout -q machines/brief

# --- kill -9, twice, and the same command again comes to the same -------------------------------------------
use brief brief.rules
says "Answer. In two more cases be brief, and two." "Do worse, and two." "Be brief only here, and two."
MACHINE_DIR=$work/other expect 1 optimize brief --json
jq -S 'del(.id,.measured_at,.bought,.moves[].run)' "$out" >record
rm -rf .machine
for step in 300 900; do
  MACHINE_FAULT=kill:$step expect 137 optimize brief --json
  eq "$(wc -c <"$out")" 0; done
kept=$(runs brief)
[ "$kept" -gt 60 ] || die "only $kept runs were kept"
expect 1 optimize brief --json
jq -S 'del(.id,.measured_at,.bought,.moves[].run)' "$out" >record2; same record record2
eq "$(get '.bought.runs - .bought.runs_now')" "$kept"
expect 0 machine-fsck
git checkout -q machines/brief

# --- a file that the person changes meanwhile stays as it is: here a check does it in the person's place ------
machine say
sed -i 's/^def good.*/&\n    open("machines\/say\/instructions.md", "w").write("Mine.\\n")/' machines/say/machine.py
for i in 1 2 3 4 5 6; do echo "\"case $i\""; done >machines/say/cases.jsonl
printf '{"match":"","instructions":"all fine","replies":["good"]}\n{"match":"","replies":["poor"]}\n' >say.rules
use say say.rules; echo "Speak." >machines/say/instructions.md
says "It is all fine."
expect 128 optimize say --rounds 1
eq "$(cat machines/say/instructions.md)" "Mine."
has "$err" "changed meanwhile and is left as it is"
sed -n 's/.*would be kept: //p' "$err" >kept
expect 0 sh kept
eq "$(cat "$out")" "It is all fine."

# --- what is refused before anything is bought ----------------------------------------------------------------
machine say; use say brief.rules; before_runs=$(runs say)
rm machines/say/instructions.md
expect 128 optimize say; has "$err" "'say' has no instructions.md to improve"
machine say; use say brief.rules
sed -i 's/intent=/instructions="Say it.", intent=/' machines/say/machine.py
expect 128 optimize say; has "$err" "sets instructions in code; move it to its file"
machine say; use say brief.rules
expect 128 optimize nosuch; expect 128 optimize say --no-write
has "$err" "HEAD has no machine 'say'"
rm machines/say/cases.jsonl; expect 125 optimize say; has "$err" "no cases"
eq "$(runs say)" "$before_runs"
expect 129 machine-optimize; expect 129 optimize say --rounds 0
# nothing to improve; no held-out cases
machine say; printf '{"match":"","replies":["good"]}\n' >say.rules; use say say.rules
expect 1 optimize say; has "$out" "Nothing is kept: every case passes in every trial."
hasnt "$out" "round 1"
printf '{"match":"","instructions":"good","replies":["good"]}\n{"match":"","replies":["poor"]}\n' >say.rules
for i in 1 2 3 4 5 6; do echo "\"case $i\""; done >machines/say/cases.jsonl
rm machines/say/holdout.jsonl; echo "Speak." >machines/say/instructions.md
says "Say good."
expect 0 optimize say --rounds 1
has "$err" "warning: 'say' has no held-out cases"
has "$out" "warning: no held-out cases; the gain is judged on the cases alone"

# --- a child: its parent's text is fixed and shown, its parent's exam judges, and no held-out case is seen ----
machine kid; use kid kid.rules
printf '{"match":"","instructions":"Fixed text.*loud","replies":["good"]}\n{"match":"","replies":["poor"]}\n' | sed 's/Fixed/(?s)Fixed/' >kid.rules
echo "Fixed text of the parent." >machines/kid/instructions.md
printf '"a canary in the mine"\n"another canary, also there"\n"the canary in metadata"\n' >machines/kid/holdout.jsonl
mkdir machines/kid/son
echo 'from libmachine import Machine
machine = Machine(intent="Say it to sons.")' >machines/kid/son/machine.py
echo "Be quiet." >machines/kid/son/instructions.md
{ for i in 1 2 3 4 5 6 7; do echo "\"question $i\""; done; echo '"a canary in the mine"'; } >machines/kid/son/cases.jsonl
git add -A && git commit -qm kid
# shellcheck source=/dev/null
. "$root/tests/lib-fake.sh"
says_fake() { jq -cn --arg t "$1" '{reply: "<instructions>\($t)</instructions>"}' >"$rules"; : >"$log"; }
says_fake "Be loud."
expect 0 machine-optimize kid/son --author fake/author --rounds 1 --json
eq "$(git status --short machines)" " M machines/kid/son/instructions.md"
eq "$(cat machines/kid/son/instructions.md)" "Be loud."
eq "$(get '[.cases,.held_out,.exam.wins,.engine.author[0]]')" '[7,3,3,"fake/author"]'
has "$err" "warning: 1 case of cases.jsonl left out: held out"
eq "$(asked)" 1
grep -qi canary "$log" && die "the author was shown a held-out case"
jq -r '.user' "$log" >page
has page "<fixed>"; has page "Fixed text of the parent."; has page "question 7"; has page "Be quiet."
