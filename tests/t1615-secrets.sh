#!/bin/bash
# No value of a key in what is stored, printed, said, shown to the model, or given to a child.
. "$(dirname "$0")/lib.sh"
. "$root/tests/lib-fake.sh"
machine say
rm machines/say/model.json
export OPENAI_API_KEY=sk-test-openai-0123456789 MACHINE_ENDPOINTS=
cat >machines/say/machine.py <<'PY'
import base64
import os
from urllib.parse import quote

from libmachine import Machine, check


def look(at: str) -> str:
    """Look at a variable.

    at: its name
    """
    value = os.environ.get(at, "nothing")
    if at.startswith("FAIL"):
        raise ValueError("cannot use " + os.environ["MY_TOKEN"])
    return f"{at}: {value} {quote(value, safe='')} {base64.b64encode(b'u:' + value.encode()).decode()}"


def good(run):
    return "good" in run.output, "checked with " + os.environ.get("MY_TOKEN", "nothing")


machine = Machine(intent="x", tools=[look], graders={"good": check(good)})
PY
call='"tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\": \"MY_TOKEN\"}"}}]'
export MY_TOKEN=my/secret+token-0123456789
hidden() { # hidden FILE: none of the secrets, in any form
  for value in "$OPENAI_API_KEY" "$MY_TOKEN" "my%2Fsecret%2Btoken" "bXkvc2VjcmV0K3Rva2VuLTAx" "c2stdGVzdC1vcGVuYWkt"; do
    ! grep -qF -- "$value" "$1" || die "'$value' in $1"
  done; }
mkdir -p "$work/spy"
cat >"$work/spy/git" <<S
#!/bin/sh
tr '\0' '\n' </proc/\$\$/environ >>$work/environs
exec $(command -v git) "\$@"
S
chmod +x "$work/spy/git"
git init -q
fails=${call/MY_TOKEN/FAIL}
says "{\"times\": 1, \"match\": \"tool\", \"reply\": \"\", \"message\": {$call}}" \
  "{\"times\": 1, \"match\": \"fails\", \"reply\": \"\", \"message\": {$fails}}" \
  '{"match": "tool|fails", "reply": "good, you sent {authorization}"}' \
  "{\"match\": \"refused\", \"status\": 400, \"reply\": \"no good: {authorization} $MY_TOKEN\"}" \
  '{"match": "busy", "times": 1, "status": 503, "reply": "no good: {authorization}"}'
printf '%s\n' '"the tool"' '"it fails"' '"is refused"' '"is busy"' "{\"input\": \"say $MY_TOKEN\", \"metadata\": {\"key\": \"$OPENAI_API_KEY\"}}" >cases
PATH=$work/spy:$PATH expect 3 machine-run say --harness openai --model m --base-url "$url" --ordered <cases
[ -s "$work/environs" ] || die "git was not started"
hidden "$work/environs"
hidden "$out"
hidden "$err"
cp "$out" runs
has "$out" "you sent Bearer [redacted:OPENAI_API_KEY]"
eq "$(jq -r 'select(.case.input == "the tool") | .messages[] | select(.role == "tool") | .content' "$out")" \
  "MY_TOKEN: [redacted:MY_TOKEN] [redacted:MY_TOKEN] dTp[redacted:MY_TOKEN]Q=="
jq -c '.body' "$log" | grep -v "say $MY_TOKEN" >seen # what a user types goes to the model as it is typed
hidden seen
has "$work/project/seen" "cannot use [redacted:MY_TOKEN]"
PATH=$work/spy:$PATH expect 3 machine-grade <runs
hidden "$out"
hidden "$err"
has "$out" "checked with [redacted:MY_TOKEN]"
expect 3 machine-run say --harness openai --model m --base-url "$url" --ordered <cases # replayed
has "$err" "5 cases: 4 stored, 1 run"
hidden "$out"
git --git-dir=.machine cat-file --batch --batch-all-objects >stored
hidden stored
find .machine -type f -not -path '*/objects/*' >files
while IFS= read -r file; do hidden "$file"; done <files
hidden "$work/environs"
expect 0 machine-fsck
