# Sourced after lib.sh: the fake endpoint of fake_judge.py at $url, without any key of the caller's.
#
#   says RULE...     what it answers from now on; empties the log of requests
#   asked            requests since then;  $log has them, a JSON line each
#   judged NAME GRADER [DESCRIPTION]   a machine of one judged criterion that echoes
#   runs_of NAME TEXT...               its runs into the file runs, one a text
#   scores, counted, grade FIELD       of the runs in $out
for name in $(env | sed -n 's/^\([A-Z_]*_API_KEY\|OPENAI_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
log=$work/log rules=$work/rules
python3 "$root/tests/fake_judge.py" --url "$work/url" --log "$log" --rules "$rules" &
for _ in $(seq 300); do [ -e "$work/url" ] && break; sleep 0.1; done
url=$(cat "$work/url") || die "the fake endpoint did not start"
export MACHINE_ENDPOINTS="fake=$url"
says() { printf '%s\n' "$@" >"$rules"; : >"$log"; }
asked() { lines "$log"; }
judged() {
  mkdir -p "machines/$1"
  printf 'from libmachine import Machine, judge\n\nmachine = Machine(intent="x", graders={"kind": %s})\n' "$2" \
    >"machines/$1/machine.py"
  printf '[kind]\ndescription = "%s"\n[kind.levels]\n"0" = "rude: it insults"\n"1" = "kind: it helps"\n' \
    "${3:-The answer of $1 is kind.}" >"machines/$1/rubric.toml"
  echo '{"model": "echo", "harness": "echo"}' >"machines/$1/model.json"; }
runs_of() {
  name=$1; shift
  for text in "$@"; do jq -cn --arg text "$text" '$text'; done |
    machine-run "$name" --ordered >runs 2>/dev/null || die "no runs"; }
scores() { jq -c .scorecard.score "$out" | tr '\n' ' '; }
counted() { jq -rs 'group_by(.scorecard.score) | map("\(length) of \(.[0].scorecard.score)") | join(", ")' "$out"; }
grade() { jq -c ".scorecard.grades[0].$1" "$out" | tr '\n' ' '; }
