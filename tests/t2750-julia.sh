#!/bin/bash
# julia: what a program sees of Julia and of its user, and what is said where there is no Julia. The Julia
# here is a stand-in in an installation as juliaup makes it: it runs the lines that begin with "#sh ".
. "$(dirname "$0")/lib.sh"
unset JULIAUP_CHANNEL JULIAUP_DEPOT_PATH
home=$HOME/.julia/juliaup bin=$work/bin without=$PATH
real=$home/julia-1.12.4+0.x64.linux.gnu
mkdir -p "$real/bin" "$real/lib/julia" "$real/share/julia" "$HOME/.juliaup/bin" "$HOME/.julia/config" "$bin"
printf '#!/bin/sh\nfor last; do :; done\necho "options: $*"\nsed -n "s/^#sh //p" "$last" >/tmp/lines; . /tmp/lines\n' >"$real/bin/julia"
echo base >"$real/share/julia/base.jl"
echo secret | tee "$HOME/.julia/config/startup.jl" "$HOME/.julia/logs" "$home/other" "$HOME/.juliaup/bin/juliaup" >"$HOME/.key"
printf '#!/bin/sh\necho the launcher was started; exit 1\n' >"$HOME/.juliaup/bin/julialauncher"
chmod +x "$HOME"/.juliaup/bin/* "$real/bin/julia"
ln -s julialauncher "$HOME/.juliaup/bin/julia"; ln -s "$HOME/.juliaup/bin/julia" "$bin/julia"
jq -n --arg path "./${real##*/}" '{Default: "release", InstalledVersions: {"1.12.4": {Path: $path}},
  InstalledChannels: {release: {Version: "1.12.4"}}}' >"$home/juliaup.json"
PATH=$bin:$PATH
# acts NAME CALL...: a run of NAME that makes these calls; their results are in $out, the n-th in $out.n
acts() { local name=$1; shift
  printf '%s\n' "$@" | jq -cs '{match: "", replies: [.[], "done"]}' >"$work/rules"
  machine-run "$name" --harness scripted --model "$work/rules" --no-resume <<<'"x"' >"$work/run" 2>"$err" || die "$name"
  jq -r '.messages[] | select(.role == "tool") | .content' "$work/run" >"$out"
  for n in $(seq $#); do jq -r --argjson n "$n" '[.messages[] | select(.role == "tool") | .content][$n - 1]' "$work/run" >"$out.$n"; done; }
code() { jq -nc --arg code "$1" --argjson s "${2:-60}" '{tool_calls: [{name: "run_julia", arguments: {$code, timeout_s: $s}}]}'; }
sh() { code "print(1)"$'\n#sh '"$1" "${2:-60}"; }
graded() { machine-grade <"$work/run" 2>"$err" | jq -c '.scorecard.grades[]
  | select(.criterion | IN("runs", "type_parameters", "no_concrete_types", "times_work", "all_inline"))
  | [.criterion, .score, .reason // .error]'; }

# --- what a program sees, and how it ends ------------------------------------------------------------------
acts julia "$(sh "cat '$real/share/julia/base.jl'; ls -A '$HOME' '$HOME/.julia' '$home'")" \
  "$(sh "cat '$HOME/.key' '$HOME/.julia/logs' '$home/juliaup.json' '$home/other' '$HOME/.julia/config/startup.jl'; env")" \
  "$(sh "echo x > '$real/share/julia/base.jl'; rm -r '$real/share'; touch left; ls")" \
  "$(sh 'sed -n "3,\$s/:.*//p" /proc/net/dev; bash -c "exec 3<>/dev/tcp/127.0.0.1/22" 2>/dev/null || echo closed')" \
  "$(sh '(sleep 50; touch late) & sleep 50' 1)" "$(sh 'yes | head -c 3000000; exit 7')"
has "$out.1" "options: --startup-file=no --history-file=no --color=no --threads=1 program.jl"
eq "$(sed '1,3d' "$out.1" | tr -s '\n' ' ')" "base $HOME: .julia $HOME/.julia: juliaup $home: ${real##*/} "
has "$out.2" "JULIA_DEPOT_PATH=/tmp/.julia:"; hasnt "$out.2" secret; hasnt "$out.2" Default; hasnt "$out.2" "$bin"
eq "$(cat "$real/share/julia/base.jl")" base; eq "$(sed -n 4,5p "$out.3")" $'left\nprogram.jl'
eq "$(tail -2 "$out.4" | tr -d ' ' | tr '\n' ' ')" "lo closed "
has "$out.5" "stopped: over the limit of time"
has "$out.6" "exit 7"; has "$out.6" "characters cut"; has "$out.6" "it printed 3000"
hasnt "$out" launcher
eq "$(jq -c '[.steps[].tools[] | [.ok, .truncated]] | unique' "$work/run")" '[[true,false],[true,true]]'
# the last program counts, by how it ended
eq "$(graded)" '["runs",0,"the last program ended with exit status 7"]'
acts julia "$(sh 'exit 1')" "$(sh 'echo "exit 1"')"; eq "$(graded)" '["runs",1,"the last program ended with exit status 0"]'
acts julia "$(sh 'true')" "$(sh 'sleep 50' 1)"; eq "$(graded)" '["runs",0,"the last program was stopped"]'
acts julia "$(code '# nothing #= at all =#')"; eq "$(graded)" '["runs",0,"the last program has nothing but comments"]'
acts julia "$(code ' ')"; has "$out" "error: the program is empty"; eq "$(graded)" '["runs",0,"no program was run"]'
found=$(jq -r .key "$work/run")
acts julia/inline "$(code 'function f() end')" "$(code 'f() = 1')"
eq "$(graded)" $'["runs",1,"the last program ended with exit status 0"]\n["all_inline",1,"1 methods, all short or @inline"]'
acts julia/inline "$(code 'f() = 1')" "$(code $'\nfunction f() end')"; eq "$(graded | tail -1)" '["all_inline",0,"line 2: function f"]'
acts julia/parametric "$(code 'f(x::T) where T = x')"; eq "$(graded | tail -1)" '["type_parameters",1,"f where T"]'
acts julia/generic "$(code 'f(x::Int) = x')"; eq "$(graded | tail -1)" '["no_concrete_types",0,"line 1: x::Int"]'
acts julia/fast "$(code '@time sum(1:9)')"; eq "$(graded | tail -1)" '["times_work",1,"line 1: @time"]'

# --- another Julia, no Julia, no sandbox: said plainly, and not held against the run -------------------------
touch "$real/bin/other"; acts julia "$(code '1')"; rm "$real/bin/other"
has "$out" "error: no program was run: '$real/bin/julia' shares its directory with other things"
eq "$(graded | jq -c '.[0:2]')" '["runs",null]'; has "$err" "shares its directory"
MACHINE_SANDBOX=plain acts julia "$(code '1')"; has "$out" "error: commands are not run here, as the sandbox does not isolate"
eq "$(graded | jq -c '.[0:2]')" '["runs",null]'
PATH=$without
if ! command -v julia >/dev/null; then
  acts julia/inline "$(code '')"
  [ "$(jq -r .key "$work/run")" != "$found" ] || die "one key with Julia and without"
  eq "$(graded)" $'["runs",0,"no program was run"]\n["all_inline",0,"no program was run"]'
  why="no program was run: Julia is not installed here (there is no 'julia' on PATH)"
  acts julia/inline "$(code 'f() = 1')"; eq "$(cat "$out")" "error: $why"
  eq "$(graded)" "$(printf '["%s",null,"MachineError: %s"]\n' runs "$why" all_inline "$why")"
  # nothing else needs it
  expect 0 machine-run brief --harness echo "Rain."
  expect 0 machine-list; has "$out" julia/fast
  expect 0 machine-suite julia/fast --noop
fi
expect 0 machine-fsck
