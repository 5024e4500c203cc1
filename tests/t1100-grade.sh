#!/bin/bash
# machine-grade: scorecards, reuse and staleness, graders that fail.
. "$(dirname "$0")/lib.sh"
machine say
machine-run say --cases cases.jsonl --ordered >runs 2>/dev/null || die run

expect 0 machine-grade <runs
cp "$out" graded
eq "$(jq -r '[.scorecard.score,.scorecard.passed] | map(tostring) | join("/")' graded | tr '\n' ' ')" \
  "1/true 0/false 1/true "
eq "$(jq -r '.scorecard.grades[0].reason' graded | head -1)" "it says good"
eq "$(jq -r .id graded | tr -d '\n')" "$(jq -r .id runs | tr -d '\n')"
has "$err" "3 runs: 3 graded"

# what is known is not asked again
expect 0 machine-grade <runs
has "$err" "0 graded, 3 known already"
same "$out" graded
expect 0 machine-grade <graded
same "$out" graded
expect 0 machine-grade --regrade <runs
has "$err" "3 runs: 3 graded"
eq "$(jq -r .scorecard.id "$out" | sort | comm -12 - <(jq -r .scorecard.id graded | sort) | wc -l)" 0

# another weight: a new scorecard from the old grades
sed -i 's/weight = 1/weight = 2/' machines/say/rubric.toml
sed -i 's/return "good"/open("asked", "a").write("x"); return "good"/' machines/say/machine.py
expect 0 machine-grade <runs
eq "$(wc -c <asked)" 3
sed -i 's/weight = 2/weight = 3/' machines/say/rubric.toml
expect 0 machine-grade <runs
eq "$(wc -c <asked)" 3
has "$err" "3 graded"
eq "$(jq -r '.scorecard.grades[0].weight' "$out" | sort -u)" 3

# another target in today's file makes the grade stale, though the run is the same
sed -i 's/{"id": "a",/{"id": "a", "target": "new",/' machines/say/cases.jsonl
expect 0 machine-grade <runs
has "$err" "1 graded, 2 known already"
eq "$(head -1 "$out" | jq -r .case.target)" new

# graders that raise, return nonsense, or do not apply
cat >machines/say/machine.py <<'PY'
from libmachine import Machine, check

def wild(run):
    kind = run.input.split()[0]
    if kind == "raise":
        raise ValueError("no such thing")
    return {"nan": float("nan"), "big": 8, "neg": -0.1, "text": "yes", "none": None, "half": (0.5, "so so"),
            "one": 1, "true": True, "dust": 1 + 1e-13, "pair": (True, 3)}[kind]

machine = Machine(intent="x", graders={"good": check(wild)})
PY
for kind in raise nan big neg text none half one true dust pair; do echo "\"$kind\""; done |
  machine-run say --ordered >wild 2>/dev/null || die run
expect 3 machine-grade <wild
eq "$(jq -r '.scorecard.score|tostring' "$out" | tr '\n' ' ')" "null null null null null null 0.5 1 1 null 1 "
eq "$(jq -c '.scorecard.grades[0].error' "$out" | head -1)" '"ValueError: no such thing"'
eq "$(jq -c '.scorecard.grades[0].applies' "$out" | sed -n 6p)" false
has "$err" "7 ungraded"
hasnt "$out" NaN
expect 0 machine-grade --allow-failed 7 <wild
expect 3 machine-grade --strict --concurrency 1 <wild
[ "$(lines "$out")" -le 3 ] || die "--strict went on"

# a failed run flows on without a scorecard
printf '{"match": "fails", "replies": [{"error": "down"}]}\n{"match": "", "replies": ["good"]}\n' >rules
printf '"fails"\n"works"\n' >mixed
expect 3 machine-run say --harness scripted --model rules --ordered <mixed
eq "$(jq -r .status "$out" | tr '\n' ' ')" "failed ok "
has "$err" "down"
cp "$out" mixed-runs
machine again; cp machines/again/machine.py machines/say/machine.py
expect 3 machine-grade <mixed-runs
eq "$(jq -c '.scorecard.score' "$out" | tr '\n' ' ')" "null 1 "

# a run that was changed is a bad line; --adopt takes it as another run
jq -c '.output = "good"' runs >forged
expect 3 machine-grade <forged
eq "$(lines "$out")" 0
has "$err" "line 1: run"
has "$err" "changed since it was stored"
expect 0 machine-grade --adopt <forged
eq "$(jq -r .id "$out" | sort | comm -12 - <(jq -r .id runs | sort) | wc -l)" 0
expect 0 machine-fsck

# fields that nobody knows travel
jq -c '. + {note: "mine"}' runs >noted
expect 0 machine-grade <noted
eq "$(jq -r .note "$out" | sort -u)" mine
eq "$(jq -r .id "$out" | tr -d '\n')" "$(jq -r .id runs | tr -d '\n')"
