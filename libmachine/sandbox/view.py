"""What a sandbox looks like from inside, as bubblewrap's options: pure, so that a test can take parts away.

It begins with an empty root, and what is not named here is not there. Masking a full one instead would
leave open every directory that nobody thought of.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from libmachine.errors import MachineError
from libmachine.sandbox.base import Limits

UID = 1000
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class Part(NamedTuple):
    """Options that belong together. name: what the person reads when it is missing."""

    name: str
    words: tuple[str, ...]


ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "ssl/certs", "ssl/openssl.cnf"),
    *("ca-certificates", "pki/tls/certs", "pki/ca-trust", "localtime", "timezone", "mime.types"),
    *("protocols", "services", "python3", "perl", "fonts", "magic", "bash.bashrc", "inputrc", "terminfo"),
    *("R", "julia"),
)
"""Of /etc: what compilers, interpreters and certificates need; nothing that says who uses this machine."""
ETC_FAMILIES = ("python3.", "java-")

FILES = {
    "/etc/passwd": f"root:x:0:0:root:/:/bin/sh\nsandbox:x:{UID}:{UID}:sandbox:/tmp:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/sh\n",
    "/etc/group": f"root:x:0:\nsandbox:x:{UID}:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/resolv.conf": "",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
"""Files of its own, with what is written in them."""

MASKED = (
    *("kcore", "keys", "key-users", "kmsg", "timer_list", "sched_debug", "config.gz", "kpagecount"),
    *("kpageflags", "kpagecgroup", "kallsyms", "vmallocinfo", "slabinfo", "pagetypeinfo", "latency_stats"),
)
"""Of /proc: what tells of the kernel or of other people's work, seen as /dev/null."""
HIDDEN = ("acpi", "fs", "scsi", "driver", "dynamic_debug")
"""Of /proc: directories, seen empty."""

# Where no command may be run, nor what is read be mounted: the system, or all of it.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev", "/boot")


def namespaces(userns_off: bool) -> list[Part]:
    """What is cut off from the rest of the machine. userns_off: does this bubblewrap know the option?"""
    parts = [
        Part("user namespace", ("--unshare-user",)),
        Part("process namespace", ("--unshare-pid",)),
        Part("ipc namespace", ("--unshare-ipc",)),
        Part("host name", ("--unshare-uts", "--hostname", "sandbox")),
        Part("cgroup namespace", ("--unshare-cgroup-try",)),
        Part("network namespace", ("--unshare-net",)),
        Part("dies with us", ("--die-with-parent",)),
        Part("no terminal", ("--new-session",)),
        Part("no capabilities", ("--cap-drop", "ALL")),
        Part("ordinary user", ("--uid", str(UID), "--gid", str(UID))),
    ]
    return [*parts, Part("no further namespaces", ("--disable-userns",))] if userns_off else parts


_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_STORES = ("/nix/store", "/gnu/store")


def programs() -> list[str]:
    """Directories that programs and their libraries are in."""
    return [path for path in ("/usr", *(f"/{name}" for name in _LINKS), *_STORES) if os.path.isdir(path)]


def etc() -> list[str]:
    """The files and directories of /etc that may be seen."""
    found = sorted(os.listdir("/etc")) if os.path.isdir("/etc") else []
    names = (*ETC, *(name for name in found if name.startswith(ETC_FAMILIES)))
    return [path for path in (f"/etc/{name}" for name in names) if os.path.exists(path)]


def system() -> list[Part]:
    """The programs and the few files of /etc that they read, all read-only."""
    parts = []
    for path in programs():
        if os.path.islink(path):
            parts.append(Part(path, ("--symlink", os.readlink(path), path)))
        else:
            parts.append(Part(path, ("--ro-bind", path, path)))
    words = ["--perms", "0755", "--dir", "/etc"]
    for path in etc():
        words += ["--ro-bind-try", path, path]
    return [*parts, Part("few files of /etc", tuple(words))]


def own_files(descriptors: dict[str, int]) -> Part:
    """path -> descriptor to read it from, as files of its own."""
    words: list[str] = []
    for path, descriptor in descriptors.items():
        words += ["--perms", "0444", "--ro-bind-data", str(descriptor), path]
    return Part("files of its own in /etc", tuple(words))


def kernel() -> list[Part]:
    """/proc and /dev. Root may write /proc/sys even without capabilities, so it is mounted read-only."""
    masks: list[str] = []
    for name in MASKED:
        if os.path.exists(f"/proc/{name}"):
            masks += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in HIDDEN:
        if os.path.isdir(f"/proc/{name}"):
            masks += ["--tmpfs", f"/proc/{name}", "--remount-ro", f"/proc/{name}"]
    return [
        Part("/proc of its own", ("--proc", "/proc")),
        Part("/dev of its own", ("--dev", "/dev")),
        Part("kernel's secrets masked", tuple(masks)),
        Part("read-only /proc", ("--remount-ro", "/proc")),
    ]


def scratch(limits: Limits) -> list[Part]:
    """Memory that can be written as files, each bounded."""
    size = str(limits.tmp)
    return [
        Part("bounded /dev/shm", ("--size", size, "--perms", "1777", "--tmpfs", "/dev/shm")),
        Part("bounded /tmp", ("--size", size, "--perms", "1777", "--tmpfs", "/tmp")),
        Part("/var", ("--dir", "/var", "--symlink", "../tmp", "/var/tmp", "--dir", "/run")),
    ]


def places(directory: str, mounts: Sequence[str], sources: Mapping[str, str]) -> list[Part]:
    """The directory, writable; mounts, read-only, above or below it. sources: path -> where it is found,
    if not there."""
    inside = [path for path in mounts if _within(path, directory)]
    outside = [path for path in mounts if path not in inside]
    return [
        Part(
            "mounts", tuple(word for path in outside for word in ("--ro-bind", sources.get(path, path), path))
        ),
        Part("directory", ("--bind", sources.get(directory, directory), directory)),
        Part(
            "mounts in it",
            tuple(word for path in inside for word in ("--ro-bind", sources.get(path, path), path)),
        ),
        Part("read-only root", ("--remount-ro", "/")),
        Part("read-only /dev", ("--remount-ro", "/dev")),
    ]


def variables(directory: str, extra: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The whole environment of a command: the fixed few, then extra."""
    fixed = {
        **{"PATH": PATH, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1"},
        **{"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache"},
        **{"GIT_CONFIG_NOSYSTEM": "1", "HOME": directory, "PWD": directory},
    }
    for name, value in extra:
        if not name or "=" in name or "\0" in name + value:
            raise MachineError(f"environment variable '{name}' cannot be passed on: its name or value is odd")
    return {**fixed, **dict(extra)}


def environment(values: Mapping[str, str], directory: str) -> list[Part]:
    words = [word for name, value in values.items() for word in ("--setenv", name, value)]
    return [
        Part("empty environment", ("--clearenv",)),
        Part("fixed environment", tuple(words)),
        Part("starts in the directory", ("--chdir", directory)),
    ]


def checked_command(argv: Sequence[str]) -> None:
    """Raises MachineError for a command that cannot be one."""
    if not argv or any("\0" in word for word in argv):
        raise MachineError("a command is at least one word, and no word holds a zero byte")


def checked_directory(directory: Path) -> str:
    """Where it really is. Raises MachineError if it is none, or one of the system's."""
    path = os.path.realpath(directory)
    if not os.path.isdir(path):
        raise MachineError(f"'{directory}' is no directory to run a command in")
    _refuse_system(path, "cannot be the directory of a command")
    return path


def checked_mounts(mounts: Sequence[Path]) -> list[str]:
    """Where they are, parents before what is in them. Raises MachineError for one that is not there."""
    paths = []
    for mount in mounts:
        path = os.path.normpath(mount)
        if not os.path.isabs(path) or not os.path.exists(path):
            raise MachineError(f"'{mount}' cannot be mounted: name what is there, by an absolute path")
        _refuse_system(path, "cannot be mounted in a sandbox")
        paths.append(path)
    return sorted(set(paths))


def _refuse_system(path: str, told: str) -> None:
    if "\0" in path or path in ("/", "//", "/tmp", "/var") or any(_within(path, top) for top in _SYSTEM):
        raise MachineError(f"'{path}' {told}: it belongs to the system")


def _within(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top.rstrip('/')}/")
