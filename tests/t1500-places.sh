#!/bin/bash
# machine-init, machine-list, machine-doctor: the project, the places machines are found in, what works.
. "$(dirname "$0")/lib.sh"
mkdir ../fresh && cd ../fresh || exit 1

# init: a project and a private store that git does not see
git init -q
umask 000
expect 0 machine-init
[ -d machines ] || die "no machines/"
eq "$(stat -c %a .machine)" 700
eq "$(find .machine -type f ! -perm 600 | wc -l)" 0
git status --porcelain >"$out"; hasnt "$out" .machine
expect 0 machine-init
has "$err" "is there already"
eq "$(grep -c '^/.machine/$' .git/info/exclude)" 1
git clean -fdxq
[ -e .machine/format ] || die "git clean ate the store"
expect 0 machine-init --examples
[ -e machines/brief/machine.py ] || die "no examples"
[ -z "$(find machines -name __pycache__)" ] || die "byte code copied"
echo "mine" >machines/brief/instructions.md
expect 0 machine-init --examples
eq "$(cat machines/brief/instructions.md)" mine
expect 128 machine-init nowhere

# list: names, without running any of them
mkdir -p machines/evil/child
echo 'open("ran", "w")' | tee machines/evil/machine.py >machines/evil/child/machine.py
expect 0 machine-list
eq "$(jq -r .name "$out" | grep -c evil)" 2
[ ! -e ran ] || die "machine-list ran machine.py"
eq "$(jq -r 'select(.name == "red") | .criteria[0]' "$out")" calls_tool
echo '[broken' >machines/evil/rubric.toml
expect 3 machine-list
has "$err" "machines/evil/rubric.toml"

# found from a subdirectory, by -C, by MACHINE_WORKSPACE, by MACHINE_PATH, among the built-in ones
mkdir -p deep/er && cd deep/er || exit 1
expect 0 machine-run brief --harness echo hi
[ -e ../../.machine/records ] || die "store not in the project"
cd / && expect 0 machine-run -C "$work/fresh" brief --harness echo hi
has "$err" "1 stored"
MACHINE_WORKSPACE=$work/fresh expect 0 machine-run brief --harness echo hi
has "$err" "1 stored"
MACHINE_DIR=$work/store expect 0 machine-run -C "$work/fresh" brief --harness echo hi
has "$err" "1 run"
[ -e "$work/store/records" ] || die "MACHINE_DIR not used"
cd "$work/project" || exit 1
machine say
mkdir "$work/alone"; cd "$work/alone" || exit 1
expect 128 machine-run say hi
has "$err" "fatal: no machine 'say'"
MACHINE_PATH=$work/project/machines expect 0 machine-run say hi
expect 0 machine-run wordmath --harness echo hi
expect 128 machine-run breif hi
has "$err" "did you mean 'brief'"
expect 128 machine-run -C /no/such brief hi

# another store, another key: no harness is invented
cd "$work/project" || exit 1
rm machines/say/model.json
expect 128 machine-run say hi
has "$err" "no endpoint"
has "$err" "--harness"
MACHINE_HARNESS=echo expect 0 machine-run say hi
expect 128 machine-run say --harness nosuch hi
expect 128 machine-run say --harness scripted hi

# doctor
expect 0 machine-doctor
has "$out" "python"
expect 0 machine-doctor --json
eq "$(jq -r .type "$out")" doctor
eq "$(jq -r '.findings[] | select(.thing == "sandbox") | .state | test("^(ok|missing)$")' "$out")" true
MACHINE_SANDBOX=plain expect 0 machine-doctor
has "$out" "plain, which does not isolate"
MACHINE_SANDBOX=nosuch expect 1 machine-doctor
has "$out" "'nosuch' is no sandbox"
echo 'raise ValueError("broken here")' >machines/say/machine.py
expect 1 machine-doctor
has "$out" "broken here"

# nothing of ours is written into the project
cd "$work/fresh" || exit 1
rm -rf machines/evil
git add -A && git commit -qm one
machine-run red --harness echo --cases cases.jsonl 2>/dev/null | machine-grade >/dev/null 2>&1
eq "$(git status --porcelain)" ""
machine-run red --harness echo hi >run 2>/dev/null
eq "$(jq -r .revision.commit run)" "$(git rev-parse HEAD)"
eq "$(jq -r .revision.dirty run)" false
tree=$(jq -r .version run)
eq "$tree" "$(for f in instructions.md model.json rubric.toml; do
  printf '100644 blob %s\t%s\n' "$(git rev-parse HEAD:machines/red/$f)" $f; done | git mktree)"
git gc -q --prune=now; git cat-file -e "$(git rev-parse HEAD)" || die
echo >>machines/red/instructions.md
machine-run red --harness echo hi >run 2>/dev/null
eq "$(jq -r .revision.dirty run)" true

# a directory with letters that a pattern would take for its own
git init -q "$work/odd" && mkdir -p "$work/odd/a[x]*b" && cd "$work/odd/a[x]*b" || exit 1
expect 0 machine-init
eq "$(git -C "$work/odd" status --porcelain -uall)" ""

# the price table, dated and with its sources
expect 0 machine-doctor --prices
has "$out" "USD per million tokens"
expect 0 machine-doctor --prices --json
eq "$(jq -r 'select(.date == "" or .source == "") | .model' "$out")" ""
