#!/bin/bash
# A wheel in a clean environment gives the same commands, pages and built-in machines as a checkout.
. "$(dirname "$0")/lib.sh"
python=$root/.venv/bin/python
mkdir "$work/source" && cp -r "$root"/{pyproject.toml,README.md,libmachine,machines,man,hooks} "$work/source" || die copy
"$python" -m build --wheel --no-isolation --outdir "$work/wheel" "$work/source" >"$out" 2>"$err" || die build
"$python" -m venv --without-pip "$work/venv" || die venv
"$python" -m pip --python "$work/venv/bin/python" install -q --no-deps --no-index "$work"/wheel/*.whl >"$out" 2>"$err" || die install
# the dependencies are the test environment's; the package itself must not be
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/dependencies.pth"
export PATH=$work/venv/bin:/usr/bin:/bin
unset -f machine
expect 0 "$work/venv/bin/python" -c 'import libmachine; print(libmachine.__file__)'
has "$out" "$work/venv"

expect 0 machine --list-cmds
cp "$out" verbs
"$root/bin/machine" --list-cmds >wanted && same verbs wanted
while read -r verb; do
  expect 0 "machine-$verb" --help
  expect 0 machine help "$verb"
  has "$out" "SYNOPSIS"
done <verbs
expect 0 machine help machine-record
expect 0 machine help sdk
has "$out" "from libmachine import machine"
expect 0 machine-list
same <(jq -r .name "$out") <(cd "$root/machines" && find . -name machine.py | sed 's|^\./||; s|/machine.py$||' | sort)
machine-run brief --harness echo --cases cases.jsonl 2>/dev/null >runs || die run
expect 0 machine-grade <runs
eq "$(lines "$out")" "$(lines "$root/machines/brief/cases.jsonl")"
expect 0 machine-init --examples
[ -e machines/red/machine.py ] || die "no examples"
