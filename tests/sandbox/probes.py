"""What hostile code tries in a sandbox, as functions that return true when it has worked.

This file is sent into the sandbox as it is and run by the system's python3; it imports nothing of ours.
`@probe(taken away, where)`: the parts without which the same function must succeed, which shows that it can
and that the part is what holds it. `where` names those for whom: "user" (an ordinary one), "nobody" (root
that was given up) and "root" (root that was not). `needs`: a path or a fact of the machine, without which
the attack proves nothing. No part named: nothing safe can be taken away.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

ALL = ("user", "nobody", "root")
FILTER, MASKS, USERNS = "system call filter", "kernel's secrets masked", "no further namespaces"
NET, PID, CAPS, USER = "network namespace", "process namespace", "no capabilities", "ordinary user"
ROOT_RO = "read-only root"
PROC_RO, WHOLE, OUTER = "read-only /proc", "WHOLE FILE SYSTEM", "OUTER ENVIRONMENT"

HOST: dict[str, Any] = json.loads(os.environ.get("PROBE", "{}"))
GIVEN = {int(name) for name in os.listdir("/proc/self/fd")}
libc = ctypes.CDLL(None, use_errno=True)


class Probe(NamedTuple):
    attack: Callable[[], object]
    without: frozenset[str]
    where: tuple[str, ...]
    needs: str


PROBES: dict[str, Probe] = {}


def probe(*without: str, where: Iterable[str] = ALL, needs: str = "") -> Callable[[Any], Any]:
    def keep(attack: Callable[[], object]) -> Callable[[], object]:
        add(attack.__name__, attack, without, where, needs)
        return attack

    return keep


def add(
    name: str,
    attack: Callable[[], object],
    without: Iterable[str],
    where: Iterable[str] = ALL,
    needs: str = "",
) -> None:
    assert name not in PROBES
    PROBES[name] = Probe(attack, frozenset(without), tuple(where), needs)


def call(name: str, *arguments: Any) -> bool:
    """Did the kernel look at this system call? The filter answers with one of two errors."""
    result = libc.syscall(HOST["calls"][name], *arguments)
    return bool(result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS))


def holds(path: str, text: str) -> bool:
    with open(path, errors="replace") as file:
        return text in file.read()


def makes(path: str) -> bool:
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)
    return True


# files that should not be there ---------------------------------------------------------


@probe(WHOLE, where=["root"])
def reads_shadow() -> object:
    return holds("/etc/shadow", "root:")


@probe(WHOLE)
def reads_a_secret_beside_the_directory() -> object:
    return holds(HOST["beside"], HOST["canary"])


@probe(WHOLE)
def reads_a_secret_through_a_link() -> object:
    os.symlink(HOST["beside"], "link-out")
    try:
        return holds("link-out", HOST["canary"])
    finally:
        os.unlink("link-out")


@probe(WHOLE)
def reads_a_secret_through_the_root_of_a_process() -> object:
    return holds("/proc/1/root" + HOST["beside"], HOST["canary"]) or holds(
        "/proc/self/root" + HOST["beside"], HOST["canary"]
    )


@probe(WHOLE, "bounded /tmp", where=["user", "root"])
def reads_a_file_in_tmp() -> object:
    return holds(HOST["in_tmp"], HOST["canary"])


@probe(WHOLE)
def reads_the_users_of_this_machine() -> object:
    return holds("/etc/passwd", "daemon:")


for _path in ("/home", "/root", "/opt", "/srv", "/mnt", "/media", "/boot", "/sys", "/var/log", "/var/lib"):
    add(f"sees_{_path}", lambda path=_path: os.path.lexists(path), [WHOLE], needs=_path)
for _path in ("/etc/hostname", "/etc/machine-id", "/etc/fstab", "/etc/shadow", "/etc/sudoers", "/etc/ssh"):
    add(f"sees_{_path}", lambda path=_path: os.path.lexists(path), [WHOLE], needs=_path)
for _path in ("/run/docker.sock", "/run/dbus", "/run/user", "/tmp/.X11-unix"):
    add(f"sees_{_path}", lambda path=_path: os.path.lexists(path), [])


@probe("/dev of its own", "read-only /dev", "bounded /dev/shm")
def sees_devices() -> object:
    known = "console core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"
    return set(os.listdir("/dev")) - set(known.split())


@probe("/dev of its own", "read-only /dev", "bounded /dev/shm", needs="/dev/shm")
def reads_shared_memory_files() -> object:
    return holds(HOST["in_shm"], HOST["canary"])


@probe()
def links_a_system_file_into_the_directory() -> object:
    os.link("/usr/bin/env", "linked")
    return True


# places that should not be written ------------------------------------------------------

for _path in ("/probe", "/etc/probe", "/run/probe", "/var/probe", "/home-probe"):
    add(f"writes_{_path}", lambda path=_path: makes(path), [ROOT_RO])
add("writes_/dev/probe", lambda: makes("/dev/probe"), ["read-only /dev"])
add("writes_/usr", lambda: os.access("/usr", os.W_OK), ["/usr"], ["root"])
add("writes_/usr/bin", lambda: os.access("/usr/bin", os.W_OK), ["/usr"], ["root"])


@probe("mounts")
def writes_an_extra_mount() -> object:
    return makes(HOST["mount"] + "/probe")


@probe("mounts in it")
def writes_a_mount_in_the_directory() -> object:
    return makes(HOST["mount_in_it"] + "/probe")


@probe("mounts in it")
def moves_a_mount_in_the_directory_away() -> object:
    os.rename(HOST["mount_in_it"], "moved")
    os.rename("moved", HOST["mount_in_it"])
    return True


@probe(PROC_RO, where=["root"])
def sets_the_core_pattern() -> object:
    return os.access("/proc/sys/kernel/core_pattern", os.W_OK)


@probe(PROC_RO, where=["root"], needs="/proc/sys/kernel/modprobe")
def sets_the_program_of_modules() -> object:
    return os.access("/proc/sys/kernel/modprobe", os.W_OK)


@probe()
def presses_sysrq() -> object:
    return os.access("/proc/sysrq-trigger", os.W_OK)


@probe(PROC_RO)
def writes_the_memory_of_process_1() -> object:
    with open("/proc/1/mem", "r+b"):
        return True


@probe(PROC_RO)
def takes_itself_out_of_the_killers_sight() -> object:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    return True


@probe()
def overwrites_bubblewrap() -> object:
    with open("/proc/1/exe", "r+b"):
        return True


# what tells of the kernel ---------------------------------------------------------------

for _name in ("kcore", "keys", "key-users", "kmsg", "timer_list", "config.gz", "kpagecount", "kpageflags"):
    add(
        f"reads_/proc/{_name}",
        lambda name=_name: stat.S_ISREG(os.stat(f"/proc/{name}").st_mode),
        [MASKS],
        needs=f"/proc/{_name}",
    )
for _name in ("kallsyms", "vmallocinfo", "slabinfo", "pagetypeinfo", "sched_debug", "latency_stats"):
    add(
        f"reads_/proc/{_name}",
        lambda name=_name: stat.S_ISREG(os.stat(f"/proc/{name}").st_mode),
        [MASKS],
        needs=f"/proc/{_name}",
    )
add("lists_/proc/fs", lambda: os.listdir("/proc/fs"), [MASKS], needs="/proc/fs/ext4")
add("lists_/proc/acpi", lambda: os.listdir("/proc/acpi"), [MASKS], needs="/proc/acpi/wakeup")


# keys -----------------------------------------------------------------------------------


@probe(OUTER, "empty environment")
def has_a_key_in_its_environment() -> object:
    return HOST["canary"] in "".join(os.environ.get(name, "") for name in os.environ if name != "PROBE")


@probe(OUTER)
def reads_a_key_in_the_environment_of_process_1() -> object:
    return holds("/proc/1/environ", HOST["canary"])


@probe()
def reads_a_variable_in_the_command_line_of_bubblewrap() -> object:
    return holds("/proc/1/cmdline", HOST["canary"])


@probe()
def has_descriptors_it_was_not_given() -> object:
    return GIVEN - {0, 1, 2, 3}  # 3 was the listing itself


@probe()
def has_a_file_of_the_host_open_in_process_1() -> object:
    found = [os.readlink(f"/proc/1/fd/{name}") for name in os.listdir("/proc/1/fd")]
    return [path for path in found if path.startswith("/") and not path.startswith("/dev/")]


# other processes ------------------------------------------------------------------------


@probe(PID)
def sees_a_process_of_the_host() -> object:
    return holds(f"/proc/{HOST['pid']}/cmdline", HOST["sleeper"])


@probe(PID, where=["user", "root"])
def signals_a_process_of_the_host() -> object:
    os.kill(HOST["pid"], 0)
    return True


@probe(PID)
def sees_more_than_its_own_processes() -> object:
    return len([name for name in os.listdir("/proc") if name.isdigit()]) > 8


@probe("ipc namespace", needs="sysv")
def sees_shared_memory_of_the_host() -> object:
    with open("/proc/sysvipc/shm") as file:
        return any(line.split()[1] == str(HOST["sysv"]) for line in file.readlines()[1:])


@probe()
def puts_itself_first() -> object:
    return os.nice(-10) is not None


@probe()
def raises_its_limits() -> object:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard + 100, hard + 100))
    return True


# network --------------------------------------------------------------------------------


@probe(NET)
def connects_to_a_server_of_the_host() -> object:
    with socket.create_connection(("127.0.0.1", HOST["port"]), 3):
        return True


@probe(NET)
def connects_to_a_server_of_the_host_by_ipv4_in_ipv6() -> object:
    with socket.create_connection(("::ffff:127.0.0.1", HOST["port"]), 3):
        return True


@probe(NET)
def sees_the_ports_of_the_host() -> object:
    return holds("/proc/net/tcp", f":{HOST['port']:04X} ")


@probe(NET, needs="interfaces")
def sees_the_interfaces_of_the_host() -> object:
    return [name for _, name in socket.if_nameindex() if name != "lo"]


@probe(NET, FILTER)
def connects_to_an_abstract_socket() -> object:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(HOST["abstract"])
    return True


@probe(FILTER)
def connects_to_a_socket_in_the_directory() -> object:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(HOST["socket"])
    return True


@probe(FILTER)
def connects_to_a_socket_in_a_mount() -> object:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(HOST["mount"] + "/socket")
    return True


for _address in ("1.1.1.1", "169.254.169.254", "10.0.0.1", "192.168.0.1"):

    def _reach(address: str = _address) -> object:
        with socket.create_connection((address, 80), 2):
            return True

    add(f"reaches_{_address}", _reach, [])


@probe()
def resolves_a_name() -> object:
    return socket.getaddrinfo("example.com", 80)


@probe()
def sends_a_datagram() -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        return one.sendto(b"x", ("8.8.8.8", 53))


for _family, _number in (("vsock", 40), ("packet", 17), ("alg", 38), ("bluetooth", 31), ("can", 29)):

    def _socket(family: int = _number) -> object:
        try:
            return socket.socket(family, socket.SOCK_SEQPACKET if family == 38 else socket.SOCK_STREAM, 0)
        except OSError as error:
            # another error than the filter's, and than "this kernel has none", is the kernel's own
            return error.errno not in (errno.EAFNOSUPPORT, errno.ENOSYS)

    add(f"opens_a_socket_of_{_family}", _socket, [FILTER], needs=f"family {_number}")


@probe(FILTER)
def listens_to_kernel_events() -> object:
    return socket.socket(16, socket.SOCK_DGRAM, 15)


@probe(CAPS, USER, USERNS, where=["root"])
def opens_a_raw_socket() -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)


@probe(CAPS, USER, USERNS, where=["root"])
def takes_a_low_port() -> object:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 81))
    return True


# rights ---------------------------------------------------------------------------------


@probe(USER, needs="not 1000")
def is_somebody_else() -> object:
    return os.getuid() != 1000 or os.getgid() != 1000


@probe(CAPS, where=["root"])
def has_capabilities() -> object:
    with open("/proc/self/status") as file:
        return any(line.startswith("Cap") and int(line.split()[1], 16) for line in file)


@probe(CAPS, USER, FILTER, USERNS, where=["root"])
def makes_usr_writable() -> object:
    return libc.mount(None, b"/usr", None, 32 | 4096, None) == 0  # MS_REMOUNT | MS_BIND


@probe(CAPS, USER, FILTER, USERNS, where=["root"])
def mounts_something() -> object:
    return libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0


@probe()
def becomes_root() -> object:
    os.setuid(0)
    return True


@probe()
def becomes_root_by_a_program() -> object:
    path = next(path for path in ("/usr/bin/su", "/usr/bin/mount", "/usr/bin/passwd") if os.path.exists(path))
    with open("/proc/self/status") as file:
        gained = "NoNewPrivs:\t0" in file.read()
    return gained and os.stat(path).st_mode & stat.S_ISUID


@probe()
def makes_a_device() -> object:
    os.mknod("device", 0o666 | stat.S_IFBLK, os.makedev(8, 0))
    return True


@probe("host name", needs="host name")
def sees_the_name_of_the_host() -> object:
    return socket.gethostname() == HOST["host"]


@probe(USERNS, FILTER, needs="nested")
def makes_a_user_namespace() -> object:
    return libc.unshare(0x10000000) == 0


@probe(USERNS, FILTER, needs="nested")
def clones_into_a_user_namespace() -> object:
    return _cloned(HOST["calls"]["clone"], 0x10000000)


@probe(USERNS, FILTER, needs="nested")
def clones_into_a_network_namespace() -> object:
    return _cloned(HOST["calls"]["clone"], 0x10000000 | 0x40000000)


def _cloned(number: int, flags: int) -> bool:
    pid = libc.syscall(number, flags | signal.SIGCHLD, None, None, None, None)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
    return bool(pid > 0)


@probe()
def opens_the_terminal() -> object:
    with open("/dev/tty", "w"):
        return True


# system calls ---------------------------------------------------------------------------

_buffer = ctypes.create_string_buffer(256)
for _name, _arguments in {
    "keyctl": (0, -3, 0),
    "add_key": (b"user", b"probe", b"x", 1, -2),
    "request_key": (b"user", b"probe", None, 0),
    "userfaultfd": (1,),
    "io_uring_setup": (1, None),
    "perf_event_open": (None, 0, -1, -1, 0),
    "clone3": (None, 0),
    "setns": (-1, 0),
    "process_vm_readv": (os.getpid(), None, 0, None, 0, 0),
    "process_vm_writev": (os.getpid(), None, 0, None, 0, 0),
    "kcmp": (os.getpid(), os.getpid(), 0, 0, 1),
    "memfd_create": (b"probe", 0),
    "personality": (0xFFFFFFFF,),
    "mbind": (None, 0, 0, None, 0, 0),
    "set_mempolicy": (0, None, 0),
    "get_mempolicy": (None, None, 0, None, 0),
    "move_pages": (0, 0, None, None, None, 0),
    "migrate_pages": (0, 0, None, None),
    "fanotify_init": (0x200, 0),
    "vmsplice": (-1, None, 0, 0),
    "pidfd_getfd": (-1, 0, 0),
    "process_madvise": (-1, None, 0, 0, 0),
    "mount_setattr": (-1, None, 0, None, 0),
    "open_tree": (-100, b"/", 0x80000),
}.items():
    add(
        f"calls_{_name}",
        lambda name=_name, arguments=_arguments: call(name, *arguments),
        [FILTER],
        needs=f"call {_name}",
    )
for _name in (
    "bpf",
    "open_by_handle_at",
    "init_module",
    "kexec_load",
    "reboot",
    "swapon",
    "chroot",
    "fsopen",
):
    # privileged anyway: the kernel's own refusal looks like the filter's
    add(f"calls_{_name}", lambda name=_name: call(name, 0, 0, 0, 0), [])


@probe(FILTER)
def traces_a_process() -> object:
    return libc.ptrace(0, 0, 0, 0) == 0


@probe(FILTER)
def keeps_memory_in_no_process() -> object:
    return libc.shmget(0, 1 << 20, 0o1600) >= 0


@probe(FILTER)
def types_into_a_terminal() -> object:
    return _typed(0x5412)


@probe(FILTER)
def types_into_a_terminal_past_a_sloppy_filter() -> object:
    return _typed(0x5412 | 1 << 32)


def _typed(request: int) -> bool:
    _main, terminal = os.openpty()
    os.setsid()
    fcntl.ioctl(terminal, 0x540E, 0)  # ours
    result = libc.syscall(
        ctypes.c_long(HOST["calls"]["ioctl"]), terminal, ctypes.c_ulong(request), ctypes.c_char_p(b"x")
    )
    return bool(result == 0 or ctypes.get_errno() != errno.EPERM)


@probe(FILTER, needs="ia32")
def calls_by_the_numbers_of_32_bits() -> object:
    with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as code:
        code.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")  # getpid as i386 has it
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
        escaped = result == os.getpid()
        os._exit(42 if escaped else 0)


# ----------------------------------------------------------------------------------------


def attempt(name: str) -> str:
    """ "escaped", or why not. In a process of its own, so that none spoils the next."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        os.close(reading)
        try:
            outcome = 42 if PROBES[name].attack() else 0
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:200])
            outcome = 1
        os._exit(outcome)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    why = b"".join(iter(lambda: os.read(reading, 4096), b"")).decode("utf-8", "replace")
    os.close(reading)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 42:
        return "escaped"
    return f"held: {why or (status and struct.unpack('i', struct.pack('i', status))[0])}"


if __name__ == "__main__":
    for _name in sys.argv[1:]:
        print(json.dumps([_name, attempt(_name)]), flush=True)
