#!/bin/bash
# machine-compare: the work tree's version beside an old one, interleaved, on the same cases; nothing is written.
. "$(dirname "$0")/lib.sh"
fits() { [ "$(wc -L <"$1")" -le 80 ] || die "wider than 80 columns: $(awk 'length > 80' "$1" | head -3)"; }
near() { jq -e --argjson want "$2" "($1) as \$got | \$got != null and ((\$got - \$want) | fabs) < 1e-9" "$out" >/dev/null ||
  die "$1 is $(jq -c "$1" "$out"), not $2"; }
state() { git -C "$work/project" status --porcelain --ignored -uall -- machines; git rev-parse HEAD; git for-each-ref
  find machines -type f -not -name '*.pyc' -exec sha1sum {} + | sort; }
machine say
use() { echo "{\"model\": \"$1\", \"harness\": \"scripted\"}" >machines/say/model.json; }

# outside git, before the first commit, in a base that has no such machine: cannot be judged
expect 128 machine-compare say
has "$err" "no git repository"
git init -q
printf '.machine/\nout\nerr\n' >.gitignore
expect 125 machine-compare say
has "$err" "no commit yet"
git add .gitignore && git commit -qm zero
expect 125 machine-compare say
has "$err" "'HEAD' has no machine 'say'"
expect 128 machine-compare nosuch
expect 128 machine-compare say --base nosuch

# eight cases; the new version gets three right that the old one does not, and loses one
for i in 1 2 3 4 5 6 7 8; do printf '{"id":"c%s","input":"case %s"}\n' $i $i; done >machines/say/cases.jsonl
printf '{"match":"case [1-2]","replies":["good"]}\n{"match":"case 3","trial":1,"replies":["good"]}\n{"match":"","replies":["poor"]}\n' >old.rules
printf '{"match":"case [2-5]","replies":["good"]}\n{"match":"","replies":["poor thing"]}\n' >new.rules
use old.rules
git add -A && git commit -qm one
use new.rules
state >before
expect 0 machine-compare say --json
state >after; same before after
cp "$out" record
eq "$(jq -c '[.v,.type,.machine,.base,.on,.cases,.trials,.changed,.evidence]' "$out")" \
  '[1,"comparison","say","HEAD","cases.jsonl",8,3,["model"],"none"]'
eq "$(jq -r .base_commit "$out")" "$(git rev-parse HEAD)"
eq "$(jq -r .baseline "$out")" "$(git stash -q && machine-list --json 2>/dev/null | jq -r 'select(.name == "say").version'; git stash pop -q)"
# by hand: differences -1 (c1), 0, 2/3, 1, 1, 0, 0, 0
d='[-1,0,2/3,1,1,0,0,0]'
near .mean_diff "$(jq -n "$d | add / 8")"
near .se "$(jq -n "$d | (add/8) as \$m | (map(pow(.-\$m;2)) | add/7/8) | sqrt")"
near .z "$(jq -n "$d | (add/8) as \$m | \$m / ((map(pow(.-\$m;2)) | add/7/8) | sqrt)")"
eq "$(jq -c '[.wins,.losses,.ties,.n]' "$out")" '[3,1,4,8]'
# the sixteen sign choices of 1, 2/3, 1, 1 that sum to at least 5/3: five
near .p_flip "$(jq -n '5/16')"
near .p_two_sided "$(jq -n '10/16')"
near .about.live.mean "$(jq -n '(2 + 1/3) / 8')"
near .about.live.stderr "$(jq -n '[1,1,1/3,0,0,0,0,0] | (add/8) as $m | (map(pow(.-$m;2)) | add/7/8) | sqrt')"
near .about.live.pass_rate "$(jq -n '7/24')"
near .about.live.pass_at_k "$(jq -n '3/8')"
near .about.live.all_good "$(jq -n '2/8')"
near .about.candidate.mean 0.5
eq "$(jq -c '[.about.live.runs,.about.candidate.runs,.about.live.distinct_outputs]' "$out")" '[24,24,2]'
# the figures follow from the arms in the record
eq "$(jq -c '[.arms | .ids, (.live | map(add / length * 3 | round)), (.candidate | map(add / length * 3 | round))] | transpose | sort | map(.[1:]) | tojson' "$out")" \
  '"[[3,0],[3,3],[1,3],[0,3],[0,3],[0,0],[0,0],[0,0]]"'

# interleaved: in the store each trial of a case has both versions side by side (at concurrency 1)
rm -rf .machine
expect 0 machine-compare say --concurrency 1
machine-runs say --json 2>/dev/null | jq -r '"\(.case.id).\(.trial) \(.version)"' >order
eq "$(lines order)" 48
awk 'NR % 2 { id = $1; v = $2; next } $1 != id || $2 == v { exit 1 }' order || die "not in pairs"
[ "$(awk 'NR % 2 { sub(/\..*/, "", $1); print $1 }' order | uniq | wc -l)" -gt 12 ] || die "case after case, not mixed"

# the text: wins and losses first, both versions, the rule of two standard errors, the next command
fits "$out"
eq "$(awk '$4 ~ /^c[0-9]$/ { print $4 }' "$out" | head -4 | sort | tr '\n' ' ')" "c1 c3 c4 c5 "
has "$out" "3 better, 1 worse, 4 alike"
has "$out" "A difference within about two standard errors is no evidence."
eq "$(tail -1 "$out" | cut -c1-6)" "Next: "
hasnt "$out" "note:"
expect 0 script -qec "stty cols 80; machine-compare say" /dev/null
has "$out" "No evidence of a difference"
has "$out" '48 runs graded, $0.00'

# stored runs are taken; --no-resume runs all anew; an imbalance is told
runs=$(machine-runs say --json 2>/dev/null | wc -l); eq "$runs" 48
expect 0 machine-compare say --json
eq "$(jq -c .stored "$out")" '{"candidate":24,"live":24}'
jq -cS 'del(.id,.measured_at,.stored)' "$out" >one; jq -cS 'del(.id,.measured_at,.stored)' record >two; same one two
expect 0 machine-compare say --no-resume --trials 1 --json
eq "$(jq -c '.stored' "$out")" '{"candidate":0,"live":0}'
eq "$(machine-runs say --json 2>/dev/null | wc -l)" 64
rm -rf .machine
expect 0 machine-suite say
expect 0 machine-compare say --trials 1
has "$out" "note: 0 runs of the base and 8 of the work tree were stored before"

# better and worse beyond doubt
printf '{"match":"case [1-7]","replies":["good"]}\n{"match":"","replies":["poor"]}\n' >best.rules
use best.rules
expect 0 machine-compare say --json
eq "$(jq -r .evidence "$out")" better
expect 0 machine-compare say
has "$out" "The work tree is better on these cases"
has "$out" "Next: machine-gate say"
git commit -qam best; use old.rules
expect 0 machine-compare say
has "$out" "The work tree is worse on these cases"
has "$out" "Next: git diff HEAD -- machines/say"
# other bases: a commit, and a recorded version by its number
expect 0 machine-compare say --base HEAD~1 --json
# the same version: the arms have trials of their own (1-3 and 4-6), so the luck of trial 1 shows as luck
eq "$(jq -c '[.base,.changed,.losses,.ties,.evidence]' "$out")" '["HEAD~1",[],1,7,"none"]'
machine-versions say >/dev/null 2>&1
number=$(machine-versions say 2>/dev/null | jq -r 'select(.live).number // select(.live).version' | head -1)
expect 0 machine-compare say --base "v${number#v}" --json
eq "$(jq -r .evidence "$out")" worse

# nothing changed: said, and both versions get trials of their own
git checkout -q machines/say
expect 0 machine-compare say --trials 2 --json
has <(jq -r '.notes[]' "$out") "nothing_changed: nothing has changed since HEAD"
eq "$(jq -c '[.baseline == .candidate, .mean_diff, .evidence]' "$out")" '[true,0,"none"]'
expect 0 machine-compare say --trials 2
has "$out" "No difference: every case scored the same"
has "$out" "note: nothing has changed since HEAD"
fits "$out"

# held-out cases, a file, one case, none
expect 0 machine-compare say --cases holdout.jsonl --json
eq "$(jq -c '[.on,.cases,.se]' "$out")" '["holdout.jsonl",1,null]'
expect 0 machine-compare say --cases holdout.jsonl
has "$out" "One case"
echo '["case 1","case 9"]' >own.jsonl
expect 0 machine-compare say --cases own.jsonl --json
eq "$(jq .cases "$out")" 2
mv machines/say/cases.jsonl kept
expect 125 machine-compare say
has "$err" "no cases"
mv kept machines/say/cases.jsonl

# only the rubric or the graders changed: told, and today's grade both
sed -i 's/weight = 1/weight = 2/' machines/say/rubric.toml
printf '[polite]\ndescription = "It is polite."\n' >>machines/say/rubric.toml
sed -i 's/graders={/graders={"polite": check(lambda run: "please" in run.output), /' machines/say/machine.py
expect 0 machine-compare say --json
has <(jq -r '.notes[]' "$out") "rubric_changed: the rubric has changed since HEAD (added polite, changed good)"
has <(jq -r '.notes[]' "$out") "code_changed"
eq "$(jq -c '[.criteria.polite.live,.criteria.polite.candidate,.mean_diff]' "$out")" '[0,0,0]'
near .about.live.mean "$(jq -n '7/8 * 2/3')"
git checkout -q machines/say

# runs that fail and cannot be graded: counted, in no mean, exit 3; nothing left to compare: 125
printf '{"match":"case 1","replies":[{"error":"down"}]}\n{"match":"","replies":["good"]}\n' >down.rules
use down.rules
expect 3 machine-compare say --trials 1 --json
eq "$(jq -c '[.failed,.ungraded,.n,.dropped | if type == "array" then length else . end]' "$out")" '[1,0,7,1]'
near .mean_diff "$(jq -n '1/7')"
has "$err" "case 'c1' trial 1 failed: down"
expect 3 machine-compare say --trials 1
has "$out" "1 run failed, 0 ungraded"
printf '{"match":"","replies":[{"error":"down"}]}\n' >dead.rules
use dead.rules
expect 125 machine-compare say --trials 1 --json
eq "$(jq -c '[.mean_diff,.evidence]' "$out")" '[null,null]'
printf '{"match":"","replies":[{"content":"good","cost_usd":0.4}]}\n' >dear.rules
use dear.rules
expect 4 machine-compare say --budget 1 --concurrency 1
has "$err" "to go on: machine-compare say --budget 1"
git checkout -q machines/say

# each version runs with its own tools, also where only a helper of one has changed
mkdir -p machines/tool
cat >machines/tool/machine.py <<'PY'
from libmachine import Machine, check


def look(word: str) -> str:
    """Look a word up.

    word: the word
    """
    from .words import MEANING  # found at the call: the key cannot see it

    return MEANING


machine = Machine(
    intent="Look up.",
    graders={"looked": check(lambda run: "right" in str(run.tool_calls[0].result))},
    tools=[look],
)
PY
echo 'MEANING = "wrong"' >machines/tool/words.py
printf '[looked]\ndescription = "It looked up."\n' >machines/tool/rubric.toml
echo '{"model": "tool.rules", "harness": "scripted"}' >machines/tool/model.json
printf '"sky"\n"sea"\n"sun"\n"ice"\n"fog"\n"dew"\n' >machines/tool/cases.jsonl
printf '{"match":"","replies":[{"tool_calls":[{"name":"look","arguments":{"word":"sky"}}]},"done"]}\n' >tool.rules
git add -A && git commit -qm tool
expect 0 machine-suite tool --trials 6
echo 'MEANING = "right"' >machines/tool/words.py
expect 0 machine-compare tool --json
eq "$(jq -c '[.about.live.mean,.about.candidate.mean,.changed,.evidence]' "$out")" '[0,1,["code"],"better"]'
has <(jq -r '.notes[]' "$out") "fresh_trials"
sed -i 's/return MEANING/return MEANING + word/' machines/tool/machine.py
expect 0 machine-compare tool --json
eq "$(jq -c '[.about.live.mean,.about.candidate.mean,.changed]' "$out")" '[0,1,["tools","code"]]'
has <(jq -r '.notes[]' "$out") "tools_changed"
[ -z "$(find machines -name __pycache__)" ] || die "byte code in the machine's folder"

# a base that does not load today cannot be judged
git commit -qam right; cp machines/tool/machine.py kept
echo 'machine = 1' >machines/tool/machine.py; git commit -qam broken; cp kept machines/tool/machine.py
expect 125 machine-compare tool
has "$err" "'tool' of 'HEAD' does not load: machines/tool/machine.py"

# from a subdirectory and a linked worktree
expect 0 machine-compare say -C . --trials 1
mkdir -p deep && cp best.rules deep/ && (cd deep && expect 0 machine-compare say --trials 1) || exit 1
git worktree add -q "$work/linked" && cp ./*.rules "$work/linked/" 2>/dev/null
(cd "$work/linked" && expect 0 machine-compare say --trials 1) || exit 1
eq "$(git stash list)" ""
