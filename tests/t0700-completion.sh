#!/bin/bash
# Completion in real shells: verbs, options, choices, machines, files; from the commands themselves.
. "$(dirname "$0")/lib.sh"
machine qa; unset -f machine
touch cases.txt
expect 0 machine --complete machine ""
machine --list-cmds | while read -r verb; do grep -qxF "$verb" "$out" || die "no $verb"; done || exit 1
expect 0 machine --complete machine-export --to ""
eq "$(tr '\n' ' ' <"$out")" "inspect openai promptfoo "
expect 0 machine --complete machine export --no
eq "$(tr '\n' ' ' <"$out")" "--no-distinct --no-passing --not-cases "
expect 0 machine --complete machine run -C . q
eq "$(cat "$out")" qa
expect 0 machine --complete machine-run -C nowhere q
eq "$(cat "$out")" ""
expect 0 machine --complete machine-cases qa ""
eq "$(cat "$out")" ""
expect 0 machine --complete machine nosuch ""
expect 129 machine --completion tcsh

# bash itself: what TAB would put there
machine --completion bash >bash.sh
cat >ask.sh <<'B'
. ./bash.sh
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$(complete -p "$1" | sed 's/.*-F \([^ ]*\).*/\1/') "$1" "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
B
expect 0 bash --norc ask.sh machine-run --harn
eq "$(cat "$out")" "--harness"
expect 0 bash --norc ask.sh machine suite q
eq "$(cat "$out")" qa
expect 0 bash --norc -i -c '. ./bash.sh; complete -p machine-gate'
has "$out" "-o default -F _machine machine-gate"
# a person's terminal: the words typed, TAB, and what bash made of them
cat >drive.py <<'PY'
import os, pty, re, select, sys, time

shell, typed, wanted = sys.argv[1].split(), sys.argv[2], sys.argv[3]
pid, fd = pty.fork()
if pid == 0:
    os.execvp(shell[0], shell)


def until(text, seconds=60):
    seen, end = "", time.monotonic() + seconds
    while text not in seen and time.monotonic() < end:
        if select.select([fd], [], [], 0.5)[0]:
            seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]", "", os.read(fd, 65536).decode("utf-8", "replace"))
    return text in seen, seen


for line in sys.argv[4:]:
    os.write(fd, line.encode() + b"\r")
os.write(fd, b"echo re''ady\r")
ok, seen = until("ready\r")
os.write(fd, typed.encode() + b"\t")
ok, more = until(wanted)
os.kill(pid, 9)
sys.exit(0 if ok else f"no {wanted!r} in {seen + more!r}")
PY
expect 0 python3 drive.py "bash --norc -i" "echo: ; machine-suite q" "machine-suite qa " ". ./bash.sh"
expect 0 python3 drive.py "bash --norc -i" "machine-cases qa cas" "cases.txt" ". ./bash.sh"
if command -v zsh >/dev/null; then
  machine --completion zsh >zsh.sh
  expect 0 python3 drive.py "zsh -f -i" "machine-suite q" "machine-suite qa" "autoload -U compinit; compinit -u -D" ". ./zsh.sh"
  expect 0 python3 drive.py "zsh -f -i" "machine-cases qa cas" "cases.txt" "autoload -U compinit; compinit -u -D" ". ./zsh.sh"
fi
if command -v fish >/dev/null; then
  machine --completion fish >fish.fish
  expect 0 fish --no-config -c 'source fish.fish; complete -C "machine-suite q"'
  eq "$(cat "$out")" qa
  expect 0 fish --no-config -c 'source fish.fish; complete -C "machine export --to i"'
  eq "$(cat "$out")" inspect
  expect 0 fish --no-config -c 'source fish.fish; complete -C "machine-cases qa cas"'
  has "$out" cases.txt
fi
