"""Is the sandbox one? Asked of a command inside, and judged here: a part counts when it is seen in force."""

from __future__ import annotations

import os
from collections.abc import Mapping

from libmachine.sandbox import view
from libmachine.sandbox.base import Limits

LIMITS = Limits(wall_s=20.0, cpu_s=17, open_files=321, processes=97, tmp=3 << 20)
"""Odd figures, so that none is right by chance."""

SPACES = {
    **{"user": "user namespace", "pid": "process namespace", "net": "network namespace"},
    **{"ipc": "ipc namespace", "uts": "host name", "mnt": "mount namespace"},
}

# What it finds, one `name=value` a line; only the shell and the plainest tools.
PROBE = r"""
for space in user pid net ipc uts mnt; do echo "ns.$space=$(readlink /proc/self/ns/$space)"; done
for top in /* /.[!.]*; do [ -e "$top" ] && echo "top=$top"; done
for one in /proc/[0-9]*; do echo "pid=${one#/proc/}"; done
for one in /etc/*; do echo "etc=$one"; done
tr '\0' '\n' < /proc/1/environ | sed 's/^/outer=/; s/=[^=]*$//'
env | sed 's/^/env=/'
sed -n 's/^\(Cap[A-Za-z]*\|NoNewPrivs\|Seccomp\):[[:space:]]*/status.\1=/p' /proc/self/status
sed -n '3,$s/^ *\([^:]*\):.*/link=\1/p' /proc/net/dev
sed -n 's/^[^)]*) *[A-Z] *[0-9]* *[0-9]* *[0-9]* *\([0-9-]*\).*/tty=\1/p' /proc/self/stat
for place in / /usr /etc /dev /run /var /proc; do
    if (: > "$place/.probe") 2>/dev/null; then echo "wrote=$place"; fi
done
for file in sys/kernel/core_pattern sysrq-trigger 1/mem; do
    [ -w "/proc/$file" ] && echo "writable=$file"
done
for file in $MASKED; do
    [ -e "/proc/$file" ] && [ ! -c "/proc/$file" ] && echo "unmasked=$file"
done
for place in /tmp /dev/shm; do echo "size.$place=$(stat -f -c '%b %S' "$place")"; done
if command -v unshare >/dev/null && unshare --user true 2>/dev/null; then echo nested=made; fi
sed -n 's/^Max \([a-z ]*[a-z]\)  *\([0-9a-z]*\)  *\([0-9a-z]*\).*/limit.\1=\3/p' /proc/self/limits
echo "uid=$(id -u)"
echo end=1
"""

_TOPS = {
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/proc", "/dev", "/tmp"),
    *("/var", "/run", "/nix", "/gnu"),
}


def found(output: bytes) -> dict[str, list[str]]:
    """What PROBE printed: name -> values."""
    seen: dict[str, list[str]] = {}
    for line in output.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition("=")
        seen.setdefault(name, []).append(value)
    return seen


def spaces() -> dict[str, str]:
    """The namespaces of this process, as the probe names its own."""
    return {name: os.readlink(f"/proc/self/ns/{name}") for name in SPACES}


def missing(seen: Mapping[str, list[str]], ours: Mapping[str, str], directory: str) -> list[str]:
    """The parts that are not in force. ours: spaces(); directory: where the probe ran."""
    if seen.get("end") != ["1"]:
        return ["the probe did not end"]
    faults = [told for name, told in SPACES.items() if seen.get(f"ns.{name}", [ours[name]]) == [ours[name]]]
    allowed = _TOPS | {"/" + directory.split("/")[1]}
    for top in sorted(set(seen.get("top", ["?"])) - allowed):
        faults.append(f"{top} is visible")
    etc = {f"/etc/{name.split('/')[0]}" for name in view.ETC} | set(view.FILES)
    for path in seen.get("etc", ["?"]):
        if path not in etc and not path.startswith(tuple(f"/etc/{start}" for start in view.ETC_FAMILIES)):
            faults.append(f"{path} is visible")
    if len(seen.get("pid", [])) > 6:
        faults.append("processes of others are visible")
    faults += [f"environment of bubblewrap ({name})" for name in seen.get("outer", []) if name]
    wanted = view.variables(directory, ())
    for line in seen.get("env", ["?"]):
        name, _, value = line.partition("=")
        if wanted.get(name) != value and name not in ("_", "SHLVL", "OLDPWD", "MASKED"):
            faults.append(f"empty environment ({name} is set)")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int("".join(seen.get(f"status.{name}", ["f"])), 16):
            faults.append(f"no capabilities ({name})")
    if seen.get("status.NoNewPrivs") != ["1"]:
        faults.append("no new privileges")
    if seen.get("status.Seccomp") != ["2"]:
        faults.append("system call filter")
    faults += [f"network device {name}" for name in seen.get("link", []) if name != "lo"]
    if seen.get("tty") != ["0"]:
        faults.append("no terminal")
    faults += [f"read-only {place}" for place in seen.get("wrote", [])]
    faults += [f"read-only /proc/{name}" for name in seen.get("writable", [])]
    faults += [f"masked /proc/{name}" for name in seen.get("unmasked", [])]
    faults += ["no further namespaces"] * ("nested" in seen)
    for place in ("/tmp", "/dev/shm"):
        blocks, _, size = "".join(seen.get(f"size.{place}", ["x"])).partition(" ")
        if not (blocks.isdigit() and size.isdigit() and int(blocks) * int(size) == LIMITS.tmp):
            faults.append(f"bounded {place}")
    if seen.get("uid") != [str(view.UID)]:
        faults.append("ordinary user")
    for name, most in _LIMITS.items():
        told = "".join(seen.get(f"limit.{name}", []))
        if not told.isdigit() or int(told) > most:
            faults.append(f"limit of {name}")
    return faults


_LIMITS = {
    **{"cpu time": LIMITS.cpu_s + 2, "file size": LIMITS.file, "data size": LIMITS.memory},
    **{"processes": LIMITS.processes, "open files": LIMITS.open_files, "core file size": 0},
}
