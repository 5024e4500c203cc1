"""The system calls a sandboxed command may not make, as the program the kernel runs for each call.

A list of what is refused, not of what is allowed: compilers, interpreters and servers must work. Refused
are the calls that reach past namespaces (sockets of other families, keys, handles of files), those that
make new ones, and those that gave the kernel most of its holes (io_uring, bpf, userfaultfd). EPERM is
answered, or ENOSYS where libraries then fall back to an older call.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from typing import NamedTuple


class _Machine(NamedTuple):
    """arch: AUDIT_ARCH_*. x32: calls of the second ABI carry this bit. calls: name -> number."""

    arch: int
    x32: int
    calls: dict[str, int]


# Calls numbered alike on every architecture (those since Linux 5.1).
_NEW = {
    **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428},
    **{"move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435},
    **{"pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443},
    **{"memfd_secret": 447, "set_mempolicy_home_node": 450, "open_tree_attr": 467},
}
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        0x40000000,
        {
            **{"shmget": 29, "ioctl": 16, "socket": 41, "clone": 56, "ptrace": 101, "syslog": 103},
            **{"uselib": 134, "personality": 135, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155},
            **{"_sysctl": 156, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165},
            **{"umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170},
            **{"setdomainname": 171, "iopl": 172, "ioperm": 173, "create_module": 174, "init_module": 175},
            **{"delete_module": 176, "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212},
            **{"clock_settime": 227, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239},
            **{"kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256},
            **{"unshare": 272, "vmsplice": 278, "move_pages": 279, "perf_event_open": 298},
            **{"fanotify_init": 300, "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308},
            **{"process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313},
            **{"memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, **_NEW},
        },
    ),
    "aarch64": _Machine(
        0xC00000B7,
        0,
        {
            **{"lookup_dcookie": 18, "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41},
            **{"nfsservctl": 42, "chroot": 51, "vhangup": 58, "quotactl": 60, "vmsplice": 75, "acct": 89},
            **{"personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105},
            **{"delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142},
            **{"sethostname": 161, "setdomainname": 162, "settimeofday": 170, "shmget": 194, "socket": 198},
            **{"add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224},
            **{"swapoff": 225, "mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237},
            **{"migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262},
            **{"open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270},
            **{"process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280},
            **{"userfaultfd": 282, "kexec_file_load": 294, **_NEW},
        },
    ),
}

# What libraries try first and do without. memfd: its pages are in no process's size, so no limit holds.
_ABSENT = {
    *("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret"),
    *("lookup_dcookie", "nfsservctl", "uselib", "_sysctl", "create_module"),
}
_BY_ARGUMENT = {"clone", "ioctl", "socket", "shmget"}

_NAMESPACES = 0x7E020000  # CLONE_NEW*, without NEWTIME, which clone cannot make
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # type into a terminal
_FAMILIES = (2, 10)  # inet, inet6: the namespace has only a loopback
_NETLINK = 16  # with protocol 0 (routes), which getaddrinfo asks
_SHARED_BYTES = 64 << 10  # a System V segment outlives its processes: many small ones are bounded

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _GREATER_EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_NR, _ARCH, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


class _Step(NamedTuple):
    code: int
    value: int
    then: int = 0
    otherwise: int = 0


@functools.cache
def program(machine: str, sockets: bool = True) -> bytes | None:
    """The filter as struct sock_filter records, None for a processor it is not known for.

    machine: as os.uname() says it. sockets: may it have those of the network? There should be a network
    namespace then.
    """
    known = _MACHINES.get(machine)
    if known is None:
        return None
    steps = [_Step(_LOAD, _ARCH), _Step(_EQUAL, known.arch, 1, 0), _Step(_RETURN, _KILL), _Step(_LOAD, _NR)]
    if known.x32:
        steps += [_Step(_GREATER_EQUAL, known.x32, 0, 1), _refuse(errno.ENOSYS)]
    for name, number in known.calls.items():
        block = (
            _by_argument(name)
            if name in _BY_ARGUMENT and (sockets or name != "socket")
            else [_refuse(errno.ENOSYS if name in _ABSENT else errno.EPERM)]
        )
        steps += [_Step(_EQUAL, number, 0, len(block)), *block]
    steps.append(_Step(_RETURN, _ALLOW))
    return b"".join(struct.pack("=HBBI", step.code, step.then, step.otherwise, step.value) for step in steps)


def calls(machine: str) -> dict[str, int]:
    """The system calls the filter looks at, by number; empty for a processor it is not known for."""
    known = _MACHINES.get(machine)
    return dict(known.calls) if known else {}


def _refuse(number: int) -> _Step:
    return _Step(_RETURN, _ERRNO | number)


def _argument(number: int, high: bool = False) -> _Step:
    """Load half of an argument; both processors are little-endian. The kernel itself reads the low half
    only of int arguments, so a filter that compared both could be passed by setting the high one."""
    return _Step(_LOAD, _ARGUMENTS + 8 * number + 4 * high)


def _by_argument(name: str) -> list[_Step]:
    allow, refuse = _Step(_RETURN, _ALLOW), _refuse(errno.EPERM)
    if name == "clone":
        return [_argument(0), _Step(_ANY_BIT, _NAMESPACES, 1, 0), allow, refuse]
    if name == "ioctl":
        return [
            _argument(1),
            _Step(_EQUAL, _TIOCSTI, 2, 0),
            _Step(_EQUAL, _TIOCLINUX, 1, 0),
            allow,
            refuse,
        ]
    if name == "shmget":
        return [
            _argument(1, high=True),
            _Step(_EQUAL, 0, 0, 3),
            _argument(1),
            _Step(_GREATER, _SHARED_BYTES, 1, 0),
            allow,
            _refuse(errno.ENOMEM),
        ]
    inet, inet6 = _FAMILIES
    return [  # socket
        _argument(0),
        _Step(_EQUAL, inet, 4, 0),
        _Step(_EQUAL, inet6, 3, 0),
        _Step(_EQUAL, _NETLINK, 0, 3),
        _argument(2),
        _Step(_EQUAL, 0, 0, 1),
        allow,
        _refuse(errno.EAFNOSUPPORT),
    ]


def memfd(content: bytes, name: str = "machine") -> int:
    """A descriptor of an anonymous file that holds content, at its beginning."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
