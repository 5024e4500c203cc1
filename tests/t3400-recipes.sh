#!/bin/bash
# What lies in hooks/ beside the hooks: make, the workflow of a pull request, several hosts and one store.
. "$(dirname "$0")/lib.sh"
machine say
unset -f machine
git init -q && echo .machine >.gitignore && git add -A && git commit -qm first

# make: trains once, again when cases changed, not for another time or branch; an error is tried again
cat >Makefile <<M
include $root/hooks/machine.mk
TRAIN = echo NAME >>\$(CURDIR)/../trained; machine-suite NAME --json >/dev/null 2>&1; exit \$(CODE)
CODE = 0
M
trained() { cat ../trained 2>/dev/null | wc -l | tr -d ' '; }
expect 0 make train-say
eq "$(trained)" 1
expect 0 make train-say
has "$out" "nothing changed"
touch machines/say/cases.jsonl
expect 0 make train-say
eq "$(trained)" 1
echo '{"id": "n", "input": "a new day"}' >>machines/say/cases.jsonl
expect 2 make train-say CODE=4
expect 0 make train-say CODE=1
has "$out" "not better"
eq "$(trained)" 3
expect 0 make train-say
eq "$(trained)" 3
git checkout -q machines
expect 0 make train-say
eq "$(trained)" 4
# the real line is a pipe of ours, each with options it has
expect 0 make -n train-say -f "$root/hooks/machine.mk"
for verb in run grade sft gate commit; do has "$out" "machine-$verb"; done

# the workflow's own lines, with a fork's pull request: no verdict, then one in the fork's notes
cd "$work" || exit 99
sed -n '/^        run: |$/,$p' "$root/hooks/verify.yml" | sed '1d; s/^          //' >verify.sh
has verify.sh machine-gate
printf '{"match": "", "replies": ["good"]}\n' >good.rules; printf '{"match": "", "replies": ["bad"]}\n' >bad.rules
cd "$work/project" || exit 99
cp ../*.rules . && for n in $(seq 12); do echo "{\"id\": \"h$n\", \"input\": \"exam $n\"}"; done >machines/say/holdout.jsonl
echo '{"model": "bad.rules", "harness": "scripted"}' >machines/say/model.json
git add -A && git commit -qm base
git init -q --bare "$work/origin.git" && git push -q "$work/origin.git" HEAD:main
git clone -q "$work/origin.git" "$work/fork" && cd "$work/fork" || exit 99
git checkout -qb better && echo '{"model": "good.rules", "harness": "scripted"}' >machines/say/model.json
git commit -qam better && git push -q "$work/origin.git" HEAD:refs/pull/7/head
git clone -q "$work/origin.git" "$work/ci" -b main && cd "$work/ci" || exit 99
export BASE NUMBER=7 FORK=$work/fork
BASE=$(git rev-parse HEAD)
expect 125 bash -e ../verify.sh
has "$err" "no verdicts are here"
(cd "$work/fork" && git checkout -q main && git checkout -q better -- machines && machine-gate say >/dev/null 2>&1) || die gate
expect 0 bash -e ../verify.sh
eq "$(git status --porcelain)" "" # nothing of the request is in the work tree
# a later commit of the request has no verdict of its own
(cd "$work/fork" && git checkout -qf better && echo worse >>machines/say/instructions.md && git commit -qam more &&
  git push -q "$work/origin.git" HEAD:refs/pull/7/head) || die push
expect 1 bash -e ../verify.sh
has "$err" "no_verdict"

# several hosts, one store
command -v parallel >/dev/null || { echo "no GNU parallel: spread is not tried"; exit 0; }
cd "$work/project" || exit 99
export MACHINE_FSYNC=0
for n in $(seq 12); do echo "{\"id\": \"c$n\", \"input\": \"a day, number $n\"}"; done >many
spread="$root/hooks/spread"
SPREAD_RUN="env MACHINE_DIR=$work/far.\$PARALLEL_JOBSLOT machine-run" SPREAD_CASES=4 \
  expect 0 "$spread" 2/: say --harness echo --trials 2 <many
cp "$out" graded
eq "$(jq -r '[.case.id, .trial] | @tsv' graded | sort -u | wc -l)" 24
eq "$(jq -r .scorecard.passed graded | sort -u)" false
[ -d "$work/far.1" ] && [ -d "$work/far.2" ] || die "both slots worked"
# all of them are here now, whole, and are not run again
expect 0 machine-fsck
expect 0 machine-run say --harness echo --trials 2 --cases many
has "$err" "24 stored, 0 run"
SPREAD_RUN=false expect 3 "$spread" : say <many
has "$err" "parts of the cases did not run"
expect 129 "$spread" :
sshd=$(command -v sshd || echo /usr/sbin/sshd)
[ -x "$sshd" ] && command -v ssh >/dev/null || { echo "no sshd: not tried over ssh"; exit 0; }
keys=$work/keys && mkdir "$keys" && chmod 700 "$keys"
ssh-keygen -qt ed25519 -N '' -f "$keys/host" && ssh-keygen -qt ed25519 -N '' -f "$keys/user" && cp "$keys/user.pub" "$keys/known" || die keys
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
port=$((20000 + $$ % 20000))
"$sshd" -D -e -p $port -o ListenAddress=127.0.0.1 -o HostKey="$keys/host" -o AuthorizedKeysFile="$keys/known" -o PidFile=none \
  -o StrictModes=no -o UsePAM=no -f /dev/null 2>"$work/sshd.log" &
server=$!
trap 'kill $server 2>/dev/null; chmod -R u+rwx "$work"; rm -rf "$work"' EXIT
printf '#!/bin/sh\nexec ssh -q -p %s -i %s -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "$@"\n' $port "$keys/user" >"$work/to"
chmod +x "$work/to"
for _ in $(seq 100); do "$work/to" 127.0.0.1 true 2>/dev/null && break; sleep 0.1; done
"$work/to" 127.0.0.1 true || die "no ssh to this host: $(cat "$work/sshd.log")"
sed 's/a day/a night/' many >nights
PARALLEL_SSH=$work/to SPREAD_CASES=4 SPREAD_RUN="env MACHINE_DIR=$work/ssh.\$PARALLEL_JOBSLOT PATH=$PATH machine-run" \
  expect 0 "$spread" 127.0.0.1,localhost say --harness echo <nights
eq "$(jq -r .case.id "$out" | sort -u | wc -l)" 12
grep -q . "$work"/ssh.*/records || die "no run was made over ssh"
expect 0 machine-run say --harness echo --cases nights
has "$err" "12 stored, 0 run"
