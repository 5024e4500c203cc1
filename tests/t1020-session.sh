#!/bin/bash
# machine-run NAME on a terminal: a session, exchange by exchange, each a stored run.
. "$(dirname "$0")/lib.sh"
machine say
cat >say.rules <<'J'
{"match":"name\\?$","replies":["You are \u001b[31mAda, which is good."]}
{"match":"fail","replies":[{"error":"it is down"}]}
{"match":"look","replies":[{"tool_calls":[{"name":"look","arguments":{}}]},"I looked."]}
{"match":"","replies":["Hello."]}
J
echo "{\"model\": \"$work/project/say.rules\", \"harness\": \"scripted\"}" >machines/say/model.json
cat >drive.py <<'PY'
"""drive.py COMMAND LINE...: type each line after a prompt; what the terminal showed goes to stdout."""
import os, pty, select, sys, time

pid, fd = pty.fork()
if pid == 0:
    os.execvp("bash", ["bash", "-c", sys.argv[1]])
seen, lines, end, at = b"", sys.argv[2:], time.monotonic() + 120, 0
while time.monotonic() < end:
    if select.select([fd], [], [], 0.2)[0]:
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        seen += data
    while b"> " in seen[at:] and lines is not None:
        at = seen.index(b"> ", at) + 2
        os.write(fd, lines.pop(0).encode() + b"\n" if lines else b"\x04")
else:
    os.kill(pid, 9)
sys.stdout.buffer.write(seen.replace(b"\r\n", b"\n"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PY
talk() { python3 drive.py "$@"; }
newest() { machine-show "say@{$1}" --json | jq -c "$2"; }

expect 0 talk "machine-run say" "/good" "/score" "I am Ada." "/bad" "what is my name?" "/score" "/good nice" \
  "/correct say less" "/correct" "/nosuch" "/machine" "  " "/help"
has "$out" "say: Say something good. (/help has the commands, ^D ends)"
eq "$(grep -c 'error: there is no exchange yet; say something first' "$out")" 2
has "$out" "You are Ada, which is good."
has "$out" "score     1.00, passed"
has "$out" "error: say what should change: /correct NOTE"
has "$out" "error: no command '/nosuch'"
has "$out" "2 exchanges, \$0.00"
eq "$(machine-runs say 2>/dev/null | wc -l)" 2
eq "$(newest 0 '[.messages[] | .role]')" '["system","user","assistant","user","assistant"]'
eq "$(newest 0 '[.scorecard.score, (.marks[] | .grades[0] | .score, .reason)]')" '[1,0,"say less",1,"nice"]'
eq "$(newest 1 '[.scorecard, .marks[0].score]')" '[null,0]'
eq "$(newest 0 '.case.metadata.exchange')" 2

# another session forgets; --continue goes on, with that machine alone; --eval grades each
machine other
echo "{\"model\": \"$work/project/say.rules\", \"harness\": \"scripted\"}" >machines/other/model.json
expect 0 talk "machine-run other --eval" "I am Bob." "/quit"
has "$out" "score     0.00, not passed"
first=$(newest 0 .case.metadata.session)
expect 0 talk "machine-run say --continue" "what is my name?"
has "$out" "going on after 2 exchanges"
eq "$(newest 0 '[.case.metadata.exchange, (.messages | length)]')" "[3,7]"
eq "$(newest 0 .case.metadata.session)" "$first"
expect 0 talk "machine-run say" "I am Ada." "/exit"
eq "$(newest 0 '[(.messages | length), .trial, .case.metadata.exchange]')" "[3,2,1]" # bought again, never replayed

# what fails is told and forgotten
expect 3 talk "machine-run say" "fail" "/score" "hello"
has "$out" "the exchange failed: it is down"
has "$out" "there is no exchange yet"
eq "$(newest 0 '[.messages[] | .content] | .[1:]')" '["hello","Hello."]'

# exchanges feed the pipe as any run does
machine-runs say | machine-grade 2>/dev/null | machine-select --passing >good
eq "$(jq -r .output good | sort -u | tr -d '\033')" "You are [31mAda, which is good."
machine-export <good >rows 2>/dev/null
eq "$(jq -c '[.messages[] | select(.role == "assistant") | .weight]' rows | sort -u | head -1)" '[0,0,1]'

# tools act on the files here, which may not be the store's own directory
cat >>machines/say/machine.py <<'PY'


from dataclasses import replace

from libmachine import Workspace


def look(workspace: Workspace) -> str:
    """Look around."""
    workspace.write("seen", "yes")
    return ", ".join(entry.path.decode() for entry in workspace.listing())


machine = replace(machine, tools=[look])
PY
expect 128 talk "machine-run say" "look"
has "$out" "the store is inside '$work/project'"
mkdir "$work/desk" && echo x >"$work/desk/file"
expect 0 talk "cd $work/desk && machine-run say -C $work/project" "look"
has "$out" "its tools act on the files in $work/desk"
has "$out" "(calls) look {}"
eq "$(cat "$work/desk/seen")" yes
eq "$(newest 0 '.messages[-2].content')" '"file, seen"'

# where nobody sits, there is no session
expect 129 machine-run say --continue hi
expect 129 talk "machine-run say --json"
expect 129 talk "machine-run say --dry-run"
expect 129 talk "machine-run say | cat; exit \${PIPESTATUS[0]}"
expect 128 talk "machine-run brief --harness echo --continue"
has "$out" "no session with 'brief' to continue; begin one"
