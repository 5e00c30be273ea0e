"""Which system calls a program may not make -> a filter, which the kernel applies to it and all its children."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, AUDIT_ARCH_*
LAST = 449  # futex_waitv, Linux 5.16: what came later has not been looked at, and does not exist for the program

# Always forbidden: number on x86_64, on aarch64 (-1: there is none). Grouped by what they would reach.
NETWORK = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
}  # fmt: skip
PROCESSES = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "setpriority": (141, 140),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "setsid": (112, 157), "setpgid": (109, 154),  # all stay in one group, which is killed as one
}  # fmt: skip
IDENTITY = {
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capset": (126, 91), "unshare": (272, 97), "setns": (308, 268),
}  # fmt: skip
METADATA = {  # of files, which Landlock does not guard
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, -1), "lchown": (94, -1),
    "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1),
    "utimensat": (280, 88), "truncate": (76, 45), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
}  # fmt: skip
KERNEL = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "swapon": (167, 224), "swapoff": (168, 225),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89), "syslog": (103, 116), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "iopl": (172, -1), "ioperm": (173, -1), "modify_ldt": (154, -1),
    "vhangup": (153, 58), "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "personality": (135, 92),
    "seccomp": (317, 277),
}  # fmt: skip
NOTICES = {  # of what happens to files elsewhere, by name
    "inotify_init": (253, -1), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
}  # fmt: skip
MEMORY = {  # that no limit counts, or that outlives its process
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
FORBIDDEN = {**NETWORK, **PROCESSES, **IDENTITY, **METADATA, **KERNEL, **NOTICES, **MEMORY}
ABSENT = {"clone3": (435, 435), "openat2": (437, 437)}  # their flags stand in memory; libraries fall back
FORKS = {"fork": (57, -1), "vfork": (58, -1)}
SIGNALS = {"kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240)}

NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
CLONE_THREAD = 0x10000
# F_SETOWN, F_SETSIG, F_SETOWN_EX; FIOSETOWN, SIOCSPGRP: the kernel would signal any process of the account
OWNERS = (("fcntl", 72, 25, (8, 10, 15)), ("ioctl", 16, 29, (0x8901, 0x8902)))
READ_AND_TRUNCATE, OPEN_MODE = 0x200, 0x203  # O_RDONLY | O_TRUNC needs no right to write before Landlock's ABI 3

LOAD, EQUAL, ABOVE, AND, RETURN = 0x20, 0x15, 0x25, 0x54, 0x06  # BPF: ld w abs, jeq k, jgt k, and k, ret k
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def known(machine: str = "") -> bool:
    """Whether the numbers of this machine's system calls are in the tables."""
    return (machine or platform.machine()) in ARCHITECTURES


def refuse(number: int, error: int = errno.EPERM) -> list[Instruction]:
    """The call fails."""
    return [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERROR | error)]


def refuse_where(number: int, argument: int, mask: int, value: int, *, equal: bool) -> list[Instruction]:
    """The call fails where the low half of an argument, masked, equals the value, or where it does not."""
    found = (0, 1) if equal else (1, 0)
    return [
        (EQUAL, 0, 5, number),
        (LOAD, 0, 0, 16 + 8 * argument),
        (AND, 0, 0, mask),
        (EQUAL, *found, value),
        (RETURN, 0, 0, ERROR | errno.EPERM),
        (LOAD, 0, 0, 0),  # the number again, for those that follow
    ]


def instructions(*, forks: bool, signals: bool, pid: int, machine: str = "") -> list[Instruction]:
    """The filter. `forks`: new processes are limited elsewhere; `signals`: others cannot be reached by them anyway."""
    column, audit = ARCHITECTURES[machine or platform.machine()]

    def number(x86: int, arm: int) -> int:
        return (x86, arm)[column]

    everything = 0xFFFFFFFF
    program: list[Instruction] = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, audit), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    program += [(ABOVE, 0, 1, LAST), (RETURN, 0, 0, ERROR | errno.ENOSYS)]  # x32 calls, too
    clone, openat = number(56, 220), number(257, 56)
    program += refuse_where(clone, 0, NAMESPACES, 0, equal=False)
    if not forks:
        program += refuse_where(clone, 0, CLONE_THREAD, CLONE_THREAD, equal=False)
    program += refuse_where(openat, 2, OPEN_MODE, READ_AND_TRUNCATE, equal=True)
    if column == 0:
        program += refuse_where(2, 1, OPEN_MODE, READ_AND_TRUNCATE, equal=True)  # open
    program += refuse_where(number(53, 199), 0, everything, 1, equal=False)  # socketpair: AF_UNIX,
    program += refuse_where(number(53, 199), 1, 0xF, 1, equal=False)  # SOCK_STREAM, which has no other addresses
    program += refuse_where(number(302, 261), 0, everything, 0, equal=False)  # prlimit64: of itself
    program += refuse_where(
        number(157, 167), 0, everything, 1, equal=True
    )  # prctl(PR_SET_PDEATHSIG): to outlive the guard
    for _, x86, arm, commands in OWNERS:
        for command in commands:
            program += refuse_where(number(x86, arm), 1, everything, command, equal=True)
    if not signals:
        program += refuse_where(number(234, 131), 0, everything, pid, equal=False)  # tgkill: abort() of itself
    denied = {**FORBIDDEN, **({} if forks else FORKS), **({} if signals else SIGNALS)}
    for numbers in denied.values():
        program += refuse(number(*numbers)) if number(*numbers) >= 0 else []
    for numbers in ABSENT.values():
        program += refuse(number(*numbers), errno.ENOSYS)
    return [*program, (RETURN, 0, 0, ALLOW)]


def available() -> bool:
    """Whether this kernel has filters, and the tables this machine."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not known() or not hasattr(libc, "prctl"):
        return False
    # Without a filter the kernel says EFAULT where it has them, and EINVAL where not.
    return libc.prctl(22, 2, None, 0, 0) != 0 and ctypes.get_errno() == errno.EFAULT


def apply(program: list[Instruction]) -> None:
    """From here on for this process and its children, for good; needs no_new_privs."""
    body = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    held = ctypes.create_string_buffer(body, len(body))
    head = struct.pack("HP", len(program), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(22, 2, ctypes.c_char_p(head), 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        number = ctypes.get_errno()
        raise OSError(number, f"the filter of system calls: {errno.errorcode.get(number, number)}")
