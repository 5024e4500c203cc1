#!/bin/bash
# Machines that act: workspaces, the tools, graders that open what a run left, and what show makes of it.
. "$(dirname "$0")/lib.sh"
references=$root/tests/data/references
# rules CASES REFERENCES: rules for --harness scripted that give each case its reference replies
rules() { jq -c -n --slurpfile cases "$1" --slurpfile references "$2" '
  ($cases | map({key: .id, value: .input}) | from_entries) as $input | $references[]
  | {match: ("^" + ($input[.id] | gsub("(?<c>[\\^$.*+?()\\[\\]{}|\\\\])"; "\\\(.c)")) + "$"),
     replies: [.output[] | if type == "string" then {content: .} else . end]}'; }
call() { jq -nc --arg tool "$1" --argjson arguments "$2" '{tool_calls: [{name: $tool, arguments: $arguments}]}'; }
# acts NAME INPUT CALL...: a run of NAME that makes these calls
acts() { local name=$1 input=$2; shift 2
  printf '%s\n' "$@" | jq -cs '{match: "", replies: [.[], "done"]}' >"$work/acts.rules"
  machine-run "$name" --harness scripted --model "$work/acts.rules" --no-resume <<<"$input" >"$work/run" 2>"$err" || die "$name"; }
told() { jq -r '.messages[] | select(.role == "tool") | .content' "$work/run"; }
empty() { eq "$(find .machine/sandboxes -mindepth 1 | wc -l)" 0; }

# --- dev, end to end: a broken project in, a fixed one out, by its own tests --------------------------
rules "$root/machines/dev/cases.jsonl" $references/dev-cases.jsonl >rules
expect 0 machine-run dev --harness scripted --model rules --cases cases.jsonl --ordered --concurrency 6
cp "$out" runs
eq "$(jq -r .status runs | sort | uniq -c | tr -s ' ')" " 12 ok"
eq "$(jq -c 'select(.steps[].tools[].ok | not) | .case.id' runs)" ""
empty
# a change has other files after than before, all else has the same
eq "$(jq -r 'select((.workspace.before != .workspace.after) != .case.metadata.change) | .case.id' runs)" ""
machine-grade <runs >graded 2>/dev/null
eq "$(jq -c '[.case.metadata.change, (.scorecard.grades[] | select(.criterion == "verified") | .score)]' graded | sort | uniq -c | tr -s ' ')" \
  $' 5 [false,null]\n 7 [true,1]'
id=$(jq -r 'select(.case.id == "csv-total") | .id' runs)
before=$(jq -r 'select(.case.id == "csv-total") | .workspace.before' runs)
after=$(jq -r 'select(.case.id == "csv-total") | .workspace.after' runs)
expect 0 machine-show "$id" --diff
has "$out" "+import csv"; hasnt "$out" sales.csv
cp "$out" patch
# git reads it as a patch that makes of the one tree the other
mkdir patched; git --git-dir=.machine archive "$before" | tar xC patched
(cd patched && git init -q . && git apply ../patch && git add -A && git write-tree) >tree || die "git apply"
eq "$(cat tree)" "$after"
expect 0 machine-show "$id" --checkout left; has "$err" "the files of run ${id:0:12} are in 'left'"
rm -rf patched/.git; diff -r patched left || die "not what it left"
(cd left && python3 -m unittest 2>/dev/null) || die "the tests fail"
expect 128 machine-show "$id" --checkout left; has "$err" "'left' is not empty"
expect 0 machine-show "$(jq -r 'select(.case.id == "test") | .id' runs)" --diff; eq "$(wc -c <"$out")" 0
expect 129 machine-show "$id" --diff --messages
machine-run brief --harness echo "Rain." >plain 2>/dev/null
expect 128 machine-show "$(jq -r .id plain)" --diff; has "$err" "had no files"
# replayed: the same record, no command run
expect 0 machine-run dev --harness scripted --model rules --cases cases.jsonl --ordered
has "$err" "12 stored, 0 run"; same "$out" runs
# every reference proves itself and an empty answer nothing, in both files of both machines
for what in cases holdout; do
  expect 0 machine-suite dev --on $what.jsonl --oracle $references/dev-$what.jsonl --noop
  expect 0 machine-suite dev/datetime --on $what.jsonl --oracle $references/datetime-$what.jsonl --noop
  expect 0 machine-suite assistant --on $what.jsonl --oracle $references/assistant-$what.jsonl --noop
done
expect 0 machine-suite coder --noop
# assistant acts where a case asks for it and nowhere else; what is on this computer is refused, and told so
rules "$root/machines/assistant/cases.jsonl" $references/assistant-cases.jsonl >rules
expect 0 machine-run assistant --harness scripted --model rules --cases cases.jsonl --ordered
eq "$(jq -r 'select((.workspace.before != .workspace.after) != .case.metadata.change) | .case.id' "$out")" ""
eq "$(jq -r 'select(.steps[].tools[].ok | not) | .case.metadata.kind' "$out")" refused
eq "$(jq -r '.messages[] | select(.role == "tool") | .content | select(startswith("error: "))' "$out")" \
  "error: 'http://localhost:8080/status' is refused: 'localhost' is an internal name; only public pages are fetched"

# --- names and bytes survive, within the directory and in the store ---------------------------------------
sh() { call run "$(jq -nc --arg command "$1" '{$command}')"; }
acts dev '{"input": "odd", "files": {"a b/c.txt": "x\ny"}}' "$(sh 'printf "\377\000" > "$(printf "b\351d\nname")"; mkdir empty
  ln -s /etc/passwd out; ln -s "a b" in; cp in/c.txt tool; chmod +x tool; git init -q repo; mkfifo pipe; echo more >> in/c.txt')"
told | head -3 >"$out"; same "$out" <(printf 'exit 0\nchanged: a b/c.txt\n(it printed nothing)\n')
expect 0 machine-fsck
git --git-dir=.machine fsck --strict 2>&1 | grep -v '^dangling\|^notice' >"$out"; eq "$(wc -c <"$out")" 0
expect 0 machine-show 'dev@{0}' --checkout odd
eq "$(cd odd && find . -mindepth 1 -printf '%y %#m %P -> %l\0' | sort -z | tr '\0\n' '\n?')" \
  "$(printf 'd 0755 a b -> \nd 0755 empty -> \nd 0755 repo -> \nf 0644 a b/c.txt -> \nf 0644 b\351d?name -> \nf 0755 tool -> \nl 0777 in -> a b\nl 0777 out -> /etc/passwd')"
eq "$(od -An -tx1 odd/b*d*)" " ff 00"
expect 0 machine-show 'dev@{0}' --diff

has "$out" 'Binary files /dev/null and "b/b\351d\nname" differ'
has "$out" "new file mode 120000"; has "$out" '\ No newline at end of file'
cp "$out" patch; mkdir -p texts; git --git-dir=.machine archive "$(jq -r .workspace.before "$work/run")" | tar xC texts
(cd texts && git init -q . && git apply --exclude='b*name' ../patch) || die "git apply of odd names"
eq "$(cat "texts/a b/c.txt")" $'x\nymore'
# the final tree is what a next run, or a check, would see: links that lead out are not followed
acts dev '"links"' "$(call run '{"command": "ln -s /etc/hostname h; ln -s .. up; echo x > f; ln -s f g"}')" "$(call read_file '{"path": "h"}')" \
  "$(call write_file '{"path": "up/evil", "text": "x"}')" "$(call read_file '{"path": "../records"}')" "$(call read_file '{"path": "g"}')"
eq "$(jq -c '[.steps[].tools[].ok]' "$work/run")" '[true,false,false,false,true]'
[ ! -e .machine/sandboxes/evil ] || die "it got out"

# --- the tools: one run, all calls in its one turn --------------------------------------------------------
calls=() results=()
tool() { calls+=("$(call "$1" "$2")"); results+=("$3"); }
tool edit_file '{"path": "a.py", "old": "two", "new": "2"}' "error: nothing was changed: the snippet occurs 2 times in 'a.py' (lines 2, 3)"
tool edit_file '{"path": "a.py", "old": "three", "new": "3"}' "error: nothing was changed: the snippet occurs 0 times in 'a.py'"
tool edit_file '{"path": "d/b.txt", "old": "Two\nlines", "new": "x"}' "Windows line ends"
tool edit_file '{"path": "a.py", "old": "", "new": "x"}' "error: nothing was changed: the snippet is empty"
tool edit_file '{"path": "none", "old": "x", "new": "y"}' "error: 'none': no such file"
tool edit_file '{"path": "a.py", "old": "one"}' "error: arguments of 'edit_file' do not fit: new: Field required"
tool read_file '{"path": "a.py"}' $'one\ntwo\ntwo'
tool edit_file '{"path": "a.py", "old": "one\ntwo", "new": "1\n2"}' "edited a.py at line 1"
tool read_file '{"path": "a.py", "first_line": 2, "lines": 1}' $'2\n[lines 2 to 2 of 3; first_line=3 shows more]'
tool read_file '{"path": "a.py", "first_line": 9}' "error: 'a.py' has 3 lines; there is no line 9"
tool write_file '{"path": "new/deep.txt", "text": "é\n"}' "wrote new/deep.txt: 3 bytes"
tool write_file '{"path": "new/deep.txt", "text": ""}' "replaced new/deep.txt: 0 bytes"
tool write_file '{"path": "/etc/x", "text": ""}' "error: '/etc/x': it is an absolute path"
tool list_files '{}' $'a.py  8\nd/\nd/b.txt  12\nnew/\nnew/deep.txt  0'
tool search_files '{"text": "two"}' "a.py:3: two"
tool search_files '{"text": "two", "ignore_case": true}' $'a.py:3: two\nd/b.txt:1: Two'
tool search_files '{"text": "nowhere"}' "(found nowhere)"
tool run '{"command": "false | true"}' $'exit 1\n(it printed nothing)'
tool run '{"command": "echo exit 0; echo odd >&2; exit 3"}' $'exit 3\n\nexit 0\n[stderr]\nodd'
tool run '{"command": "cat", "stdin": "from stdin"}' $'exit 0\n\nfrom stdin'
tool run '{"command": "yes 2>/dev/null | head -c 300000; true"}' "characters cut"
tool run '{"command": "sleep 50", "timeout_s": 1}' "stopped: over the limit of time"
tool run '{"command": "sed -i s/2/4/ a.py; echo > made"}' $'exit 0\nchanged: a.py\n(it printed nothing)'
tool run '{"command": "(sleep 70; touch late) & echo started"}' $'exit 0\n\nstarted'
tool run '{"command": "env | grep -c MACHINE_; ls /root /home $HOME/.."}' "exit 2"
export MACHINE_SECRET_KEY=hush-hush-hush
printf '%s\n' "${calls[@]}" | jq -cs '{match: "", replies: [{tool_calls: map(.tool_calls[])}, "done"]}' >tools
expect 0 machine-run dev --harness scripted --model tools <<<'{"input": "x", "files": {"a.py": "one\ntwo\ntwo\n", "d/b.txt": "Two\r\nlines\r\n"}}'
cp "$out" "$work/run"
unset MACHINE_SECRET_KEY
for number in "${!calls[@]}"; do
  jq -r --argjson n "$number" '[.messages[] | select(.role == "tool") | .content][$n]' "$work/run" >"$out"
  case $(cat "$out") in "${results[number]}"*) ;; *"${results[number]}"*) [ "${results[number]}" = "characters cut" ] || [ "${results[number]}" = "Windows line ends" ] || die "$number" ;;
    *) die "call $number wanted ${results[number]}" ;; esac
done
# what was cut is recorded as cut: the two that were
eq "$(jq -c '[.steps[0].tools[] | select(.truncated) | .name]' "$work/run")" '["read_file","run"]'
# no model sees the argument that the run fills
eq "$(jq -c '[.tools[].function.parameters.properties | keys] | add | index("workspace")' "$work/run")" null

# --- where the sandbox does not isolate, nothing of a model's is run, and that is another answer ------------
export MACHINE_SANDBOX=plain
acts coder '"x"' "$(call write_file '{"path": "a.py", "text": "print(1)"}')" "$(call run '{"command": "python3 a.py"}')"
has "$err" "warning: commands are not run here"
eq "$(jq -c '[.steps[].tools[].ok]' "$work/run")" '[true,false]'
plain=$(jq -r .key "$work/run")
unset MACHINE_SANDBOX
acts coder '"x"' "$(call write_file '{"path": "a.py", "text": "print(1)"}')" "$(call run '{"command": "python3 a.py"}')"
eq "$(jq -c '[.steps[].tools[].ok]' "$work/run")" '[true,true]'
[ "$(jq -r .key "$work/run")" != "$plain" ] || die "one key for both"

# --- coder: what counts is what ran --------------------------------------------------------------------------
ran() { acts coder '"x"' "$@"; machine-grade <"$work/run" 2>/dev/null | jq -c '.scorecard.grades[0] | [.score, .reason]'; }
file=$(call write_file '{"path": "p/a.py", "text": "print(42)"}')
eq "$(ran "$file" "$(call run '{"command": "cd p && python3 a.py 2>&1 | head"}')")" "[1,\"p/a.py was run: 'cd p && python3 a.py 2>&1 | head'\"]"
eq "$(ran "$file" "$(call run '{"command": "cat p/a.py; echo exit 0"}')")" '[0,"nothing that was written was run with success (exits: 0)"]'
eq "$(ran "$file" "$(call run '{"command": "python3 p/a.py; false"}')")" '[0,"nothing that was written was run with success (exits: 1)"]'
eq "$(ran "$file" "$(call run '{"command": "python3 -c \"raise SystemExit(1)\" p/a.py || true"}')")" '[0,"nothing that was written was run with success (exits: 0)"]'
eq "$(ran "$(call run '{"command": "python3 -c 1 p/a.py"}')" "$file")" '[0,"nothing that was written was run with success (exits: 0)"]'
eq "$(ran "$file")" '[0,"nothing was run"]'

# --- a machine's own tool and check on a workspace; a crash leaves nothing -------------------------------------
machine own
cat >machines/own/machine.py <<'PY'
import os
import signal
import time

from libmachine import Machine, Workspace, check


def lines(path: str, workspace: Workspace) -> int:
    """Count lines.

    path: of the file
    """
    workspace.write("seen", path)
    return workspace.read(path).count(b"\n")


def die(workspace: Workspace) -> str:
    """Die."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def wait(workspace: Workspace) -> str:
    """Wait."""
    open(os.environ["WAITS"], "w").close()
    time.sleep(60)
    return ""


def good(run):
    with run.workspace() as first:
        assert first.run("rm seen && echo $(pwd) > mine").ok
        assert not first.exists("seen")
    with run.workspace() as second:
        assert second.directory != first.directory and not first.directory.exists()
        return second.read("seen") == b"a" and not second.exists("mine"), oct(second.directory.stat().st_mode)


machine = Machine(intent="x", tools=[lines, die, wait], graders={"good": check(good)})
PY
acts own '{"input": "x", "files": {"a": "1\n2\n"}}' "$(call lines '{"path": "a"}')"
eq "$(told)" 2
machine-grade <"$work/run" >"$out" 2>/dev/null || die grade
eq "$(jq -c '.scorecard.grades[0] | [.score, .reason]' "$out")" '[1,"0o40700"]'
empty
# a tool of another machine finds no workspace in a run without one; a run from elsewhere has none here
jq -c '.workspace = null | del(.id, .scorecard)' "$work/run" | machine-grade --adopt >"$out" 2>/dev/null
has "$out" "files of run"; eq "$(jq .scorecard.score "$out")" null
export WAITS=$work/waits
jq -nc '{match: "die", replies: [{tool_calls: [{name: "die"}]}]}, {match: "", replies: [{tool_calls: [{name: "wait"}]}]}' >harm
machine-run own --harness scripted --model harm <<<'{"input": "die", "files": {"a": "1"}}' >/dev/null 2>&1; eq $? 137
eq "$(find .machine/sandboxes -name a | wc -l)" 1
chmod 0 "$(dirname "$(find .machine/sandboxes -name a)")"
expect 0 machine-runs; empty
# what another process uses stays
machine-run own --harness scripted --model harm <<<'{"input": "wait", "files": {"a": "1"}}' >/dev/null 2>waiter.err & waiter=$!
until [ -e "$WAITS" ]; do sleep 0.05; done
expect 0 machine-runs; eq "$(find .machine/sandboxes -name a | wc -l)" 1
kill -INT $waiter; until grep -q "^interrupted" waiter.err; do sleep 0.05; done
kill -INT $waiter; wait $waiter; eq $? 130
expect 0 machine-runs; empty

# --- the local model drives coder: it may fail the task, the run is whole ---------------------------------------
expect 0 machine-run coder --max-steps 2 --max-tokens 40 <<<'"Print the squares of 1 to 3, one a line."'
eq "$(jq -c '[(.status | IN("ok", "limit")), .error, (.steps | length > 0), (.workspace | keys), [.tools[].function.name]]' "$out")" \
  '[true,null,true,["after","before"],["write_file","run"]]'
cp "$out" local
expect 3 machine-grade <local
eq "$(jq -c '[.scorecard.grades[] | [.criterion, .score != null]]' "$out")" '[["ran",true],["fits_task",false]]'
expect 0 machine-fsck; empty
