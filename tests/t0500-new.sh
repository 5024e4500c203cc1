#!/bin/bash
# machine-new: a folder that loads and runs at once, fails honestly, and is there whole or not at all.
. "$(dirname "$0")/lib.sh"
expect 0 machine-new qa
has "$out" "made: machines/qa"
has "$out" 'machine-run qa "hello"'
expect 0 machine-list --json
has "$out" '"name":"qa"'
expect 0 machine-run qa hello
cp "$out" run
expect 0 machine-grade <run
eq "$(jq -r .scorecard.passed "$out")" false
reason=$(jq -r '.scorecard.grades[0].reason' "$out")
# the reason names the file and the line, and that line is the one to edit
file=$(echo "$reason" | sed 's/.*edit \(.*\), line.*/\1/') line=$(echo "$reason" | sed 's/.*line //')
sed -n "${line}p" "$file" >told
has told "return False"
sed -i "${line}s/.*/    if run.target is None:\n        return None\n    return run.target.lower() in run.output.lower(), f\"looked for {run.target!r}\"/" "$file"
machine-run qa --harness echo --cases cases.jsonl 2>/dev/null >runs || die run
expect 0 machine-grade <runs
# what the docstring shows works as it stands
eq "$(sed -n '/^    if run/,/^    return run/p' "$file" | sort | uniq -d | wc -l)" 3
eq "$(jq -r '.scorecard.grades[0].reason' "$out" | sort -u | head -n 1)" "looked for 'eight'"
expect 0 machine-cases qa --check
has "$err" "samples of machine-new"

# a model of one's own, in a project that is elsewhere
mkdir elsewhere && expect 0 machine-new talk -C elsewhere --model local/smollm2-135m-instruct
eq "$(jq -c . elsewhere/machines/talk/model.json)" '{"model":"local/smollm2-135m-instruct"}'
has "$out" "made: elsewhere/machines/talk"

# a child: in its parent's folder, with a criterion of its own and its parent's model
expect 0 machine-new kid --parent qa
[ ! -e machines/qa/kid/model.json ] || die "a child has its parent's model"
expect 0 machine-tree qa --json
eq "$(jq -c 'select(.name == "qa/kid") | [.inherits.criteria, .adds.criteria]' "$out")" '[["good"],["good_kid"]]'
expect 0 machine-run qa/kid hello
cp "$out" run
expect 0 machine-grade <run
eq "$(jq -c '[.scorecard.grades[].criterion]' "$out")" '["good","good_kid"]'
expect 0 machine-new 2nd --parent qa/kid
expect 0 machine-run qa/kid/2nd hello
expect 0 machine-new qa/other # the same by its whole name

# refused, and nothing is left
find machines | sort >before
expect 128 machine-new qa
has "$err" "is there already"
expect 128 machine-new Bad_Name
expect 128 machine-new v3
expect 128 machine-new ../out
expect 128 machine-new suite
has "$err" "is a verb"
expect 128 machine-new none/kid
has "$err" "machine-new none"
expect 128 machine-new kid --parent nosuch
expect 128 machine-new kid --parent brief
has "$err" "outside this project"
echo 'raise ValueError("broken")' >>machines/qa/kid/machine.py
expect 128 machine-new late --parent qa/kid
has "$err" "broken"
chmod 500 machines
if [ "$(id -u)" != 0 ]; then expect 128 machine-new shut; fi
chmod 700 machines
find machines | sort >after
same before after
