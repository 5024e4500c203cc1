#!/bin/bash
# Bad input: a clear message, the right exit code, nothing lost, no traceback of ours.
# As root in a mount namespace of its own: the small disk made below goes with it.
if [ "$(id -u)" = 0 ] && [ -z "${ALONE-}" ] && unshare -m true 2>/dev/null; then ALONE=1 exec unshare -m bash "$0"; fi
. "$(dirname "$0")/lib.sh"
machine say
full=
trap '[ -z "$full" ] || umount "$full"; chmod -R u+rwx "$work" 2>/dev/null; rm -rf "$work"' EXIT

die() { echo "FAILED at line ${BASH_LINENO[-2]}: $*" >&2 # of this script, however deep it was
  for file in "$out" "$err"; do [ -s "$file" ] && { echo "--- ${file##*/}:"; head -c 2000 "$file"; } >&2; done
  exit 1; }
quiet() { hasnt "$err" Traceback; hasnt "$err" "bug:"; hasnt "$err" '  File "'; }
# told CODE TEXT COMMAND...: this exit code, this said on stderr, no traceback
told() { code=$1 text=$2; shift 2; expect "$code" "$@"; [ -z "$text" ] || has "$err" "$text"; quiet; }
# refuse: told, and nothing on stdout
refuse() { told "$@"; eq "$(wc -c <"$out")" 0; }
stored() { machine-runs --json 2>/dev/null | wc -l; }
# plain COMMAND...: without the powers of root over file modes
plain() { if [ "$(id -u)" = 0 ]; then setpriv --bounding-set=-dac_override,-dac_read_search "$@"; else "$@"; fi; }

# --- lines that are no cases: told by number, skipped, the others run ---------------------------------
cat >mixed <<'J'
{"input": "first"}
{"input": "broken
not json at all
{"no": "input"}
{}
null
7
["a", "list"]
{"input": null}
{"input": 7}
{"input": []}
{"input": [{"content": "no role"}]}
{"input": [{"role": "wizard", "content": "x"}]}
{"input": "x", "inptu": "misspelt"}
{"input": "x", "files": ["a"]}
{"input": "x", "files": {"../../etc/passwd": "root"}}
{"input": "x", "files": {"a": "file", "a/b": "and directory"}}
{"input": "x", "metadata": "text"}
{"input": "x", "id": {"a": 1}}
{"input": "x", "metadata": {"n": 9007199254740993}}
{"input": "x", "metadata": {"n": NaN}}
{"input": "x", "metadata": {"n": -Infinity}}
{"input": "x", "metadata": {"n": 1e999}}
{"input": "last"}
J
told 3 "line 2: no JSON" machine-run say --ordered <mixed
eq "$(jq -r .output "$out" | tr '\n' ' ')" "first last "
has "$err" "line 3: no JSON"
has "$err" "line 4: case has an unknown field 'no'"
has "$err" "line 5: case has no 'input'"
has "$err" "line 6: a case is a text or an object, not null"
has "$err" "line 8: a case is a text or an object, not a list"
has "$err" "line 14: case has an unknown field 'inptu'"
has "$err" "line 16: file '../../etc/passwd' of a case is outside its directory"
has "$err" "line 17: case has 'a' both as a file and as a directory"
has "$err" "line 20: integer 9007199254740993 is beyond 2^53; write it as a string"
has "$err" "further ones are counted, not shown"
has "$err" "2 cases: 0 stored, 2 run"
expect 0 machine-run say --allow-failed 22 <mixed
expect 3 machine-run say --allow-failed 21 <mixed
told 3 "line 2: no JSON" machine-run say --strict --concurrency 1 <mixed
eq "$(lines "$err")" 2 # it stopped there
told 128 "case 2: no JSON" machine-run say --cases mixed

# the same id with other content; the same case twice is more trials
printf '{"id":"a","input":"one"}\n{"id":"a","input":"two"}\n{"id":"a","input":"one"}\n' >twice
told 3 "line 2: id 'a' is taken by line 1 with another input" machine-run say --ordered <twice
eq "$(jq -r '.output + (.trial|tostring)' "$out" | tr '\n' ' ')" "one1 one2 "

# --- valid, but strange -------------------------------------------------------------------------------
# lone surrogates (valid JSON escapes), NUL, other controls
printf '{"id":"s","input":"a\\ud800b\\udc00"}\n{"input":"nul \\u0000 and \\u001b[31m bell \\u0007"}\n{"id":"n\\u0000l","input":"id"}\n' >strange
told 0 "3 cases: 0 stored, 3 run" machine-run say --ordered <strange
cp "$out" strange-runs
eq "$(jq -r '.output' strange-runs | head -1)" $'a\xef\xbf\xbdb\xef\xbf\xbd'
eq "$(jq -r '.output|explode|map(tostring)|.[4]' strange-runs | sed -n 2p)" 0
told 0 "3 runs: 3 graded" machine-grade <strange-runs
told 0 "" machine-select <strange-runs
same "$out" strange-runs
told 0 "3 stored, 0 run" machine-run say --ordered <strange
same "$out" strange-runs
expect 0 script -qec "machine-run say --cases strange; machine-runs" /dev/null
! grep -q $'\x1b\\[31m\|\x07\|\\x00' "$out" || die "controls of a model reached a terminal"
expect 0 machine-run say $'not \xff utf-8'
eq "$(jq -r .output "$out")" $'not \xef\xbf\xbd utf-8'

# 5 MB
{ printf '{"input":"'; head -c 5000000 /dev/zero | tr '\0' x; printf '"}\n'; } >big
told 0 "1 case: 0 stored, 1 run" machine-run say <big
eq "$(jq '.output|length' "$out")" 5000000
cp "$out" big-run
told 0 "1 graded" machine-grade <big-run
told 0 "1 stored, 0 run" machine-run say <big
{ printf '{"input":"x","target":"'; head -c 5000000 /dev/zero | tr '\0' y; printf '"}\n'; } >big
told 0 "1 case: 0 stored, 1 run" machine-run say <big
eq "$(jq '.case.target|length' "$out")" 5000000
eq "$(sort -n -k5 <(ls -l .machine/records) | awk '{print ($5 < 100000)}')" 1 # the log stays small

# BOM, CRLF, no newline at the end, blank lines; an array with a BOM; nothing but a BOM
printf '\xef\xbb\xbf{"input":"bom"}\r\n\r\n{"input":"crlf"}\r\n{"input":"end"}' >windows
told 0 "3 cases: 0 stored, 3 run" machine-run say --ordered <windows
eq "$(jq -r .output "$out" | tr '\n' ' ')" "bom crlf end "
printf '\xef\xbb\xbf[{"input":"bom"},\r\n{"input":"crlf"}]' >array
told 0 "2 cases: 2 stored, 0 run" machine-run say <array
printf '\xef\xbb\xbf' >only-bom
told 0 "0 cases" machine-run say <only-bom
sed 's/$/\r/' strange-runs | head -c -2 >crlf-runs
told 0 "" machine-select <crlf-runs
eq "$(jq -r .id "$out" | tr -d '\n')" "$(jq -r .id strange-runs | tr -d '\n')"
told 3 "no JSON" machine-run say < <(printf '\xff\xfe{\0"\0i\0') # UTF-16
refuse 3 "no JSON" machine-run say <<<'[{"input": "an array"}, {"that is": "cut"'

# binary
head -c 100000 /bin/ls >binary
for command in "machine-run say" machine-grade machine-select; do
  refuse 3 "line 1: no JSON" $command <binary
  [ "$(lines "$err")" -lt 30 ] || die "a message a line of garbage"
done

# nested deeply: as deep as it may be, and then not
deep() { printf '{"input":"deep %d","metadata":{"a":%s%s}}\n' "$1" "$(printf '[%.0s' $(seq "$1"))" "$(printf ']%.0s' $(seq "$1"))"; }
deep 90 >deep
told 0 "1 case" machine-run say <deep
cp "$out" deep-run
told 0 "1 graded" machine-grade <deep-run
jq -c . deep-run >deep-jq
told 0 "1 known already" machine-grade <deep-jq
for depth in 110 260 600 1100 100000; do
  { deep $depth; echo '"after"'; } >deep
  told 3 "line 1: " machine-run say <deep
  eq "$(jq -r .output "$out")" after
done
{ printf '%0100000d' 0 | tr 0 '['; echo; } >deep
for command in "machine-run say" machine-grade machine-select; do refuse 3 "line 1: no JSON" $command <deep; done
jq -c . deep-run | sed "s/}\$/,\"note\":$(printf '[%.0s' $(seq 300))$(printf ']%.0s' $(seq 300))}/" >deep-note
for command in machine-grade machine-select; do told 3 "line 1: " $command <deep-note; done

# --- runs that are none -------------------------------------------------------------------------------
head -1 strange-runs >one
told 3 "line 1: run: 'status' is missing" machine-grade < <(jq -c 'del(.status)' one)
told 3 "changed since it was stored" machine-grade < <(jq -c '.output = "better"' one)
told 3 "update it" machine-grade < <(jq -c '.v = 2' one)
told 3 "'v' is missing" machine-select < <(jq -c 'del(.v)' one)
told 3 "it has no 'type'" machine-select <<<'{"input": "a case"}'
told 3 "'usage' is a list, not an object" machine-select < <(jq -c '.usage = []' one)
told 3 "'steps[0].retries' is a text" machine-select < <(jq -c '.steps[0].retries = "0"' one)

# --- the machine --------------------------------------------------------------------------------------
refuse 128 "fatal: no machine 'sya'; did you mean 'say'?" machine-run sya hi
refuse 128 "fatal: no machine 'zzzz'; there are:" machine-run zzzz hi
for name in ../say machines/../say /etc .. "" -- 'say/' 'SAY' 'say@' $'s\xffay' 'a b' v1 .machine; do
  [ "$name" = -- ] && continue
  refuse 128 "is no machine name" machine-run "$name" hi
done
refuse 128 "is no machine name" machine-runs ../say
refuse 128 "names no record" machine-show ../../etc/passwd
# a line that names a machine elsewhere loads nothing from there and stores nothing
mkdir -p "$work/elsewhere"; echo 'open("/tmp/ran-by-a-line", "w")' >"$work/elsewhere/machine.py"
before=$(stored)
told 128 "is no machine name" machine-grade --adopt < <(jq -c '.machine = "../../elsewhere"' one)
[ ! -e /tmp/ran-by-a-line ] || die "a line loaded code from elsewhere"
eq "$(stored)" "$before"

cp -r machines/say "$work/good"
# wrong FILE TEXT MESSAGE...: a machine with this file must be refused before any call
wrong() { rm -rf machines/w; cp -r "$work/good" machines/w; printf "$2" >"machines/w/$1"; file=$1; shift 2
  refuse 128 "machines/w/$file" machine-run w hi
  for message; do has "$err" "$message"; done; }
wrong machine.py 'from libmachine import Machine\n\nmachine = Machine(\n' "machine.py:3: syntax error"
wrong machine.py 'import os\n\nraise ValueError("on import")\n' "machine.py:3: ValueError: on import"
wrong machine.py 'def f():\n    return 1 / 0\n\n\nf()\n' "machine.py:2: ZeroDivisionError"
wrong machine.py 'import no_such_package\n' "machine.py:1: ModuleNotFoundError" no_such_package
wrong machine.py 'import sys\nsys.exit(0)\n' "machine.py:2: SystemExit"
wrong machine.py 'x = "\\xff\\xfe"\n' "it has no 'machine = Machine(...)'"
wrong machine.py "x = '\xff\xfe'\n" "syntax error"
wrong machine.py 'machine = 7\n' "it has no 'machine = Machine(...)'"
wrong machine.py 'from libmachine import Machine\nmachine = Machine(intent="")\n' "'intent' is empty"
wrong machine.py 'from libmachine import Machine, check\nmachine = Machine(intent="x", graders={"goood": check(len)})\n' \
  "grader 'goood' is for no criterion" "did you mean 'good'?"
wrong machine.py 'from libmachine import Machine\nmachine = Machine(intent="x")\n' "criterion 'good' of rubric.toml has no grader"
wrong machine.py 'from libmachine import Machine\nmachine = Machine(intent="x", graders={"good": len})\n' "bare function" "check(good)"
wrong rubric.toml '[good\n' "line 1"
wrong rubric.toml '\xff\xfe' "utf-8"
wrong rubric.toml '[good]\ndescription = "x"\nwieght = 1\n' "unknown field 'wieght'" "weight"
wrong rubric.toml '[good]\ndescription = "x"\nweight = 0\n' "no criterion has a positive weight"
wrong rubric.toml '[good]\ndescription = "x"\nweight = -1\n' "weight is -1"
wrong rubric.toml '[good]\ndescription = "x"\nweight = nan\n' "weight is nan"
wrong rubric.toml '[good]\nweight = 1\n' "has no description"
wrong rubric.toml '[Good]\ndescription = "x"\n' "'Good' is no criterion name"
wrong model.json '{"model": ' "no JSON"
wrong model.json '[1]' "a model is an object, not a list"
wrong model.json '{"modle": "x"}' "unknown field 'modle'"
wrong model.json '{"model": "echo", "sampling": {"temprature": 1}}' "unknown field 'temprature'"
wrong model.json '{"model": "echo", "sampling": {"temperature": 3}}' "temperature is 3"
wrong instructions.md '\xff\xfe' "no UTF-8 at byte 0"
wrong cases.jsonl '{"input": "x"}\n{"no": 1}\n' "case 2: case has an unknown field"
cp machines/say/cases.jsonl "$work/good/"
rm -rf machines/w; cp -r "$work/good" machines/w
printf '{"id": "exam", "input": [{"role": "user", "content": "a bad day"}]}\n' >machines/w/holdout.jsonl
refuse 128 "case 'b' of cases.jsonl is 'exam' of holdout.jsonl" machine-run w hi
rm machines/w/machine.py
refuse 128 "has no machine.py" machine-run w hi
rm -r machines/w

# what a machine's code prints is no part of the product
cp -r "$work/good" machines/w
cat >>machines/w/machine.py <<'PY'
print("at import")
PY
sed -i 's/    return "good"/    print("in a grader")\n&/' machines/w/machine.py
told 0 "at import" machine-run w <<<'"good"'
eq "$(jq -r .output "$out")" good
cp "$out" printed
told 0 "in a grader" machine-grade <printed
eq "$(jq -r .scorecard.score "$out")" 1
rm -r machines/w

# --- options ------------------------------------------------------------------------------------------
for command in run grade select runs show list init doctor fsck; do
  refuse 129 "--no-such-option" machine-$command --no-such-option </dev/null
done
for option in "--trials 0" "--trials x" "--trials" "--temperature 3" "--temperature hot" "--max-tokens 0" "--max-steps 0" \
  "--timeout 0" "--timeout -1" "--concurrency 0" "--seed x" "--allow-failed -1"; do
  refuse 129 "usage: " machine-run say hi $option
  has "$err" "--${option:2:4}"
done
refuse 129 "usage: " machine-select --best 0 </dev/null
refuse 129 "usage: " machine-select --min-score x </dev/null
refuse 129 "usage: " machine-run say one two
refuse 128 "no harness 'nonesuch'" machine-run say --harness nonesuch hi
refuse 128 "no file of rules" machine-run say --harness scripted --model nowhere hi
refuse 128 "no file of cases 'nowhere'" machine-run say --cases nowhere
refuse 128 "no file of cases 'machines'" machine-run say --cases machines
refuse 128 "no directory 'nowhere'" machine-run -C nowhere say hi
printf '{"match": "("}\n' >rules; refuse 128 "rules: rule 1:" machine-run say --harness scripted --model rules hi
printf '{"match": "x", "replies": []}\n' >rules; refuse 128 "rules: rule 1:" machine-run say --harness scripted --model rules hi
told 0 "" machine-run say --concurrency 500 <windows

# --- standard streams ---------------------------------------------------------------------------------
fresh() { rm -rf .machine; }
closed() { machine-run say hi >&- 2>"$err"; eq $? 128; has "$err" "stdout is closed"; quiet; }
fresh; closed; [ ! -e .machine/records ] || die "something was bought that could not be told"
machine-run --help >&- 2>"$err"; eq $? 128; quiet
told 0 "0 cases" machine-run say <&-
machine-run say "a good word" >"$out" 2>&-; eq $? 0; eq "$(jq -r .output "$out")" "a good word"
told 0 "" machine-grade <&-

# | head -1: nothing new begins, what was bought is stored
fresh
for n in $(seq 50); do echo "\"case $n\""; done >fifty
cat >rules <<'J'
{"match": "", "replies": [{"content": "good", "delay_s": 0.05}]}
J
machine-run say --harness scripted --model rules <fifty 2>"$err" | head -1 >"$out"
eq "${PIPESTATUS[0]}" 141; quiet
eq "$(jq -r .output "$out")" good
bought=$(sed -n 's/.*stored, \([0-9]*\) run.*/\1/p' "$err")
[ "$bought" -lt 50 ] || die "it bought all for a reader that was gone"
eq "$(stored)" "$bought"
expect 0 machine-run say --harness scripted --model rules <fifty
has "$err" "50 cases: $bought stored, $((50 - bought)) run"
cp "$out" fifty-runs
for command in machine-grade machine-select "machine-runs --json" "machine-show --schema run"; do
  $command <fifty-runs 2>"$err" | head -c 1 >/dev/null
  case ${PIPESTATUS[0]} in 0 | 141) ;; *) die "$command | head: ${PIPESTATUS[0]}" ;; esac
  quiet
done
{ cat fifty-runs; sleep 1; cat fifty-runs; } | { machine-grade 2>"$err"; echo $? >code; } | head -1 >/dev/null
eq "$(cat code)" 141; quiet

# stdout on a full disk: told, and what was under way is stored
fresh
machine-run say --harness scripted --model rules <fifty >/dev/full 2>"$err"; eq $? 128
has "$err" "stdout: no space left on device"; quiet
bought=$(sed -n 's/.*stored, \([0-9]*\) run.*/\1/p' "$err")
[ "$(stored)" -ge 1 ] || die "what was bought is lost"
machine-run say --harness scripted --model rules <fifty >"$out" 2>"$err"; eq $? 0
eq "$(stored)" 50
for command in machine-grade machine-select "machine-runs --json"; do
  $command <fifty-runs >/dev/full 2>"$err"; eq $? 128; has "$err" "no space left"; quiet
done
for command in run grade select runs show fsck; do
  machine-$command --help >/dev/full 2>"$err"; code=$?; [ $code != 0 ] || die "help written to a full disk: 0"; quiet
done

# --- places -------------------------------------------------------------------------------------------
# a store that may only be read: everything stored can be had, nothing can be bought
fresh
machine-run say --cases cases.jsonl --ordered >runs 2>/dev/null || die run
machine-grade <runs >graded 2>/dev/null || die grade
rm -f .machine/index.db*
chmod -R a-w .machine
told 0 "3 stored, 0 run" plain machine-run say --cases cases.jsonl --ordered
same "$out" runs
told 0 "3 known already" plain machine-grade <runs
same "$out" graded
told 0 "" plain machine-runs --json; eq "$(lines "$out")" 3
told 0 "" plain machine-show "$(jq -r .id runs | head -1)"
told 0 "3 runs, 3 scorecards; 0 faults" plain machine-fsck
refuse 128 "permission denied" plain machine-run say "another word"
has "$err" "MACHINE_DIR"
[ ! -e .machine/index.db ] || die "wrote into a read-only store"
chmod -R u+w .machine
# a project that may only be read
fresh; chmod a-w .
refuse 128 "permission denied" plain machine-run say hi
has "$err" "MACHINE_DIR"
MACHINE_DIR=$work/store told 0 "1 run" plain machine-run say hi
chmod u+w .; rm -rf "$work/store"
# one that may not be read
machine-run say hi >runs 2>/dev/null; chmod 000 .machine
refuse 128 "permission denied" plain machine-run say hi
refuse 128 "permission denied" plain machine-runs
chmod 700 .machine

# a current directory that is gone; a place where nothing can be made
mkdir "$work/gone"; cd "$work/gone" || exit 1; rmdir "$work/gone"
refuse 128 "the current directory is gone" machine-run say hi
cd "$work/project" || exit 1
MACHINE_DIR=/proc/no/store refuse 128 "fatal: '/proc/no': no such file or directory" machine-run say hi
MACHINE_DIR=/dev/null refuse 128 "is no directory" machine-run say hi

# a link, a file, a foreign directory, a newer store where .machine should be
fresh
mkdir "$work/target"; ln -s "$work/target" .machine
refuse 128 "symbolic link" machine-run say hi
refuse 128 "symbolic link" machine-runs
refuse 128 "symbolic link" machine-fsck
eq "$(ls -A "$work/target" | wc -l)" 0
rm .machine; echo text >.machine; refuse 128 "is no directory" machine-run say hi; eq "$(cat .machine)" text
rm .machine; mkdir .machine; echo mine >.machine/notes; refuse 128 "is no store" machine-run say hi; eq "$(cat .machine/notes)" mine
fresh; machine-run say hi >runs 2>/dev/null; echo 2 >.machine/format
for command in "machine-run say hi" machine-runs machine-fsck machine-grade "machine-show say@{0}"; do
  refuse 128 "is of format '2'; this program knows 1" $command <runs
done
echo 1 >.machine/format; told 0 "1 stored, 0 run" machine-run say hi

# --- a full disk --------------------------------------------------------------------------------------
# what was stored stays readable on it; when there is room again, exactly the missing calls are made
mkdir "$work/small"
for n in $(seq 60); do printf '{"input":"%s %0800d"}\n' "$n" "$n"; done >sixty
after() { # how many are stored now, all of them readable, and everything is fine afterwards
  rows=$(MACHINE_DIR=$work/small/store machine-runs --json 2>"$err" | jq -r .id | sort -u | wc -l); quiet
  [ "$rows" -gt 0 ] && [ "$rows" -lt 60 ] || die "$rows rows"
  MACHINE_DIR=$work/small/store told 0 "0 faults" machine-fsck
  eq "$(find "$work/small/store/tmp" -type f | wc -l)" 0; }
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=200k none "$work/small" 2>/dev/null; then
  full=$work/small
  MACHINE_DIR=$work/small/store told 128 "no space left on device; make room and run the command again" machine-run say <sixty
  printed=$(lines "$out")
  after
  [ "$printed" -le "$rows" ] || die "printed $printed, stored $rows"
  MACHINE_DIR=$work/small/store told 128 "no space left" machine-run say <sixty # still full
  mount -o remount,size=4m "$full"
  MACHINE_DIR=$work/small/store told 0 "60 cases: " machine-run say <sixty
  umount "$full"; full=
fi
# a limit on the size of files, for whom that is the same
(ulimit -f 16; MACHINE_DIR=$work/small/store machine-run say <sixty >/dev/null 2>"$err"; echo $? >code)
eq "$(cat code)" 128; has "$err" "file too large"; quiet
after
MACHINE_DIR=$work/small/store told 0 "60 cases: $rows stored, $((60 - rows)) run" machine-run say <sixty
MACHINE_DIR=$work/small/store told 0 "60 runs; 0 faults" machine-fsck
