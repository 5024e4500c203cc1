# Sourced by every t*.sh: a fresh project in a private directory, and a few assertions.
#
#   . "$(dirname "$0")/lib.sh"
#   expect 0 machine-run say --harness echo hi     runs it: $out and $err are files
#   same FILE FILE, has FILE TEXT, hasnt FILE TEXT, eq GOT WANTED
#
# A failed assertion ends the script and says where. Never pipe the tool under test: that hides its status.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'chmod -R u+rwx "$work" 2>/dev/null; rm -rf "$work"' EXIT
out=$work/out err=$work/err
for name in $(env | sed -n 's/^\(MACHINE_[A-Z_]*\|GIT_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
export HOME=$work/home PATH=$root/bin:$PATH NO_COLOR=1 LC_ALL=C.UTF-8 MACHINE_FSYNC=0
export MACHINE_LOCAL_DAEMON=0 # no server is left behind; a test that wants one says so, and stops it
export MACHINE_CACHE=${TEST_CACHE:-$work/cache}
export GIT_CONFIG_NOSYSTEM=1
mkdir -p "$HOME" "$work/project/machines"
git config --global user.name tester
git config --global user.email tester@localhost
git config --global init.defaultBranch main
cd "$work/project" || exit 99

die() { echo "FAILED $(caller 1 2>/dev/null | cut -d' ' -f1): $*" >&2
  for file in "$out" "$err"; do [ -s "$file" ] && { echo "--- ${file##*/}:"; head -c 2000 "$file"; } >&2; done
  exit 1; }
expect() { # expect CODE COMMAND...: run it with $out and $err, want this exit code
  wanted=$1; shift
  "$@" >"$out" 2>"$err"; got=$?
  [ "$got" = "$wanted" ] || die "exit $got, wanted $wanted: $*"; }
same() { cmp -s "$1" "$2" || die "differ: $1 $2: $(diff "$1" "$2" | head -5)"; }
has() { grep -qF -- "$2" "$1" || die "no '$2' in ${1##*/}"; }
hasnt() { ! grep -qF -- "$2" "$1" || die "'$2' in ${1##*/}"; }
eq() { [ "$1" = "$2" ] || die "got '$1', wanted '$2'"; }
lines() { wc -l <"$1" | tr -d ' '; }
# machine NAME: a machine of the project that echo and scripted rules can serve; its check passes on "good"
machine() { mkdir -p "machines/$1"
  cat >"machines/$1/machine.py" <<'PY'
from libmachine import Machine, check


def good(run):
    return "good" in run.output, "it says good" if "good" in run.output else "it does not say good"


machine = Machine(intent="Say something good.", graders={"good": check(good)})
PY
  printf '[good]\ndescription = "The answer says good."\nweight = 1\n' >"machines/$1/rubric.toml"
  echo "Say something good." >"machines/$1/instructions.md"
  echo '{"model": "echo", "harness": "echo"}' >"machines/$1/model.json"
  printf '{"id": "a", "input": "a good day"}\n{"id": "b", "input": "a bad day"}\n{"id": "c", "input": "good grief"}\n' \
    >"machines/$1/cases.jsonl"
  printf '{"id": "h", "input": "a good exam"}\n' >"machines/$1/holdout.jsonl"; }
