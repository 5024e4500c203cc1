#!/bin/bash
# Crash: kill -9 in mid-run loses at most what was under way, and is not paid for twice. What a crash, a
# full disk or a careless hand leaves of the files around the objects changes no answer.
# (A fault at every single step, random kills and ^C are in test_faults.py.)
. "$(dirname "$0")/lib.sh"
die() { echo "FAILED at line ${BASH_LINENO[-2]}: $*" >&2
  for file in "$out" "$err"; do [ -s "$file" ] && { echo "--- ${file##*/}:"; head -c 2000 "$file"; } >&2; done
  exit 1; }
mkdir -p machines/counted
cat >machines/counted/machine.py <<'PY'
import os

from libmachine import Machine, check


def note(word: str) -> str:
    """Note a word.

    word: the word
    """
    fd = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"called\n")
    os.close(fd)
    return "noted"


def good(run):
    return run.output == "good", "as it should be"


machine = Machine(intent="Note a word.", graders={"good": check(good)}, tools=[note])
PY
printf '[good]\ndescription = "The answer says good."\nweight = 1\n' >machines/counted/rubric.toml
cat >slow <<'J'
{"match": "", "replies": [{"tool_calls": [{"name": "note", "arguments": {"word": "x"}}]}, {"content": "good", "delay_s": 0.1}]}
J
for n in $(seq 40); do echo "\"case $n\""; done >cases
export CALLS=$work/calls
run="machine-run counted --harness scripted --model slow --concurrency 4"
calls() { [ -e "$CALLS" ] && lines "$CALLS" || echo 0; }
rows() { machine-runs --json 2>/dev/null | jq -r .id | sort -u | wc -l; }
until_calls() { for _ in $(seq 3000); do [ "$(calls)" -ge "$1" ] && return; sleep 0.02; done; die "it never called"; }
whole() { expect 0 machine-fsck; eq "$(wc -c <"$out")" 0; eq "$(find .machine/tmp -type f | wc -l)" 0; }

# --- kill -9 in mid-run, twice, then to the end -------------------------------------------------------
kills=0
for wanted in 10 22; do
  $run <cases >partial 2>"$err" &
  until_calls $wanted
  kill -9 $!; wait $! 2>/dev/null; eq $? 137
  called=$(calls) kept=$(rows) kills=$((kills + 1))
  # what was called and is not kept was under way when it was killed: at most what works at once
  [ "$kept" -lt 40 ] && [ "$called" -ge "$kept" ] && [ $((called - kept)) -le $((4 * kills)) ] || die "called $called, kept $kept"
  # what was printed is stored, and whole; no line is torn
  jq -r .id partial | sort >printed || die "a torn line"
  machine-runs --json 2>/dev/null | jq -r .id | sort | comm -13 - printed >lost
  eq "$(lines lost)" 0
done
expect 0 $run --ordered <cases
has "$err" "40 cases: $kept stored, $((40 - kept)) run"
eq "$(calls)" $((called + 40 - kept)) # exactly the missing calls
eq "$(rows)" 40
eq "$(lines "$out")" 40
cp "$out" runs
whole
# shuffled, and by way of the runs themselves: nothing is called
shuf cases >shuffled
expect 0 $run <shuffled; has "$err" "40 cases: 40 stored, 0 run"
expect 0 $run --ordered <runs; has "$err" "40 cases: 40 stored, 0 run"; same "$out" runs
eq "$(calls)" $((called + 40 - kept))
# every record is in the chain, also those of the killed
git --git-dir=.machine fsck --strict 2>&1 | grep -v "^dangling\|^notice" >"$out"; eq "$(wc -c <"$out")" 0
git --git-dir=.machine log --all --format=%T | while read -r tree; do git --git-dir=.machine ls-tree --name-only "$tree"; done | sort >chained
jq -r .id runs | sort | comm -23 - chained >"$out"; eq "$(lines "$out")" 0

# --- a killed holder of a claim, and two at once ------------------------------------------------------
rm -rf .machine "$CALLS"
$run <cases >one 2>one.err & one=$!
$run <cases >two 2>two.err & two=$!
wait $one || die "the one failed"; wait $two || die "the other failed"
eq "$(lines one) $(lines two) $(calls) $(rows)" "40 40 40 40"
same <(jq -r .id one | sort) <(jq -r .id two | sort)
eq "$(sed -n 's/.*stored, \([0-9]*\) run.*/\1/p' one.err two.err | awk '{ n += $1 } END { print n }')" 40
whole
rm -rf .machine "$CALLS"
$run <cases >one 2>/dev/null & one=$!
until_calls 4
$run <cases >two 2>two.err & two=$!
until_calls 12
kill -9 $one; wait $one 2>/dev/null
wait $two || die "the other failed: $(cat two.err)"
eq "$(lines two) $(rows)" "40 40"
[ "$(calls)" -ge 40 ] && [ "$(calls)" -le 44 ] || die "$(calls) calls"
whole

machine-grade <two >graded 2>"$err" || die grade
jq -r .scorecard.id graded | sort -u >cards; eq "$(lines cards)" 40

# --- what is left of the files around the objects -----------------------------------------------------
everything() { machine-runs --json 2>/dev/null >"$1" || die runs; }
everything before; eq "$(lines before)" 40
check_same() { everything now; same before now
  expect 0 $run <cases; has "$err" "40 cases: 40 stored, 0 run"
  expect 0 machine-grade <two; has "$err" "0 graded, 40 known already"; }
rm .machine/index.db*; check_same
head -c "$(stat -c %s .machine/index.db)" /dev/urandom >.machine/index.db; check_same
head -c 5000 .machine/index.db >short; cat short >.machine/index.db; check_same
: >.machine/index.db; check_same
head -c 60000 /dev/urandom | dd of=.machine/index.db bs=4096 seek=2 conv=notrunc status=none; check_same
head -c 40000 /dev/urandom >.machine/index.db-wal; check_same
echo "not a database" >.machine/index.db; check_same
whole

# a torn tail: readers pass it over, the next write cuts it off
size=$(stat -c %s .machine/records); cp .machine/records log
printf '{"type":"run","id":"%040d","machine":"coun' 1 >>.machine/records
check_same
expect 1 machine-fsck; has "$out" "torn line at byte $size"
expect 0 $run <<<'"one more"'
same <(head -c "$size" .machine/records) log
whole
eq "$(machine-runs --json 2>/dev/null | wc -l)" 41
# the last line lost its newline, as a crash in the very last byte leaves it: bought again, nothing else
truncate -s -1 .machine/records
called=$(calls)
expect 0 $run < <(cat cases; echo '"one more"'); has "$err" "41 cases: 40 stored, 1 run"
eq "$(calls)" $((called + 1))
# but the first of the two hangs on the chain still, and the log can have it back
expect 1 machine-fsck; has "$out" "log-lacks: record "; eq "$(lines "$out")" 1
expect 0 machine-fsck --repair; has "$out" "mended: log-lacks: "
eq "$(machine-runs --json 2>/dev/null | wc -l)" 42
whole
everything before

# the chain's offset, lost or nonsense; a lock that the dead left
for harm in 'rm .machine/chained' 'echo 999999999 >.machine/chained' 'echo 17 >.machine/chained' 'echo x >.machine/chained' \
  'ln -s machine .machine/refs/runs/counted/-/chain.lock' 'rm -r .machine/refs/runs/counted'; do
  eval "$harm"
  expect 0 $run --no-resume <<<'"again"'
  git --git-dir=.machine log --all --format=%T | while read -r tree; do git --git-dir=.machine ls-tree --name-only "$tree"; done | sort -u >chained
  machine-runs --json 2>/dev/null | jq -r .id | sort | comm -23 - chained >"$out"
  case $harm in *refs*counted) ;; *) eq "$(lines "$out")" 0 ;; esac
  rm -f .machine/chained # all is chained once more
done
whole

# --- the clock ----------------------------------------------------------------------------------------
# Nothing is ordered or told apart by a clock: newest is later in the log, ids come from content, durations
# from a clock that never steps. test_store.py stores runs of 2099 before runs of 1999; with faketime we can
# also run whole commands in another year.
if command -v faketime >/dev/null; then
  rm -rf .machine
  expect 0 faketime '2031-01-01' $run <<<'"clock"'; cp "$out" late
  expect 0 faketime '2001-01-01' machine-run counted --harness scripted --model slow --no-resume <<<'"clock"'; cp "$out" early
  expect 0 machine-show 'counted@{0}'; eq "$(jq -r .id "$out")" "$(jq -r .id early)"
  expect 0 faketime '1999-01-01' machine-run counted --harness scripted --model slow <<<'"clock"'; has "$err" "1 stored, 0 run"
  whole
fi
exit 0
