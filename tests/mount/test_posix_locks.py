# SPDX-License-Identifier: Apache-2.0
"""Locks of files across fork, exec, dup and close: flock(2), and the process's and the open file's locks of fcntl(2).
They are the same on a mount and elsewhere."""

import errno
import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading

import pytest

from harness.filesystems import wait_until
from harness.syscalls import errno_of
from harness.users import call_as

MOUNT_OPTIONS = "allow_other,dev,suid"
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
FLOCK = struct.Struct("=hhxxxxqqixxxx")   # struct flock: type, whence, start, length, process
ALONE, SHARED, NOT_AT_ONCE = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB


def opened(path, flags=os.O_RDWR):
    return os.open(path, flags | os.O_CREAT, 0o644)


def ranged(command, descriptor, kind, start=0, length=0, pid=0):
    """fcntl(2) with a struct flock; returns (kind, start, length, process) of the answer."""
    answer = fcntl.fcntl(descriptor, command, FLOCK.pack(kind, os.SEEK_SET, start, length, pid))
    kind, _, start, length, pid = FLOCK.unpack(answer)
    return kind, start, length, pid


def in_child(function, *arguments):
    """The errno of a call in a forked process, or 0."""
    return errno_of(call_as, None, function, *arguments)


def flock_is_free(path, kind=ALONE):
    """Whether another open file gets the lock. Its end releases it."""
    descriptor = opened(path)
    try:
        return errno_of(fcntl.flock, descriptor, kind | NOT_AT_ONCE) == 0
    finally:
        os.close(descriptor)


def range_is_free(path, start=0, length=0, kind=fcntl.F_WRLCK):
    """Whether another process gets the lock."""
    def attempt():
        ranged(fcntl.F_SETLK, opened(path), kind, start, length)
    return in_child(attempt) == 0


@pytest.fixture
def file(place):
    path = place / "file"
    path.write_bytes(b"content")
    return path


def waiting(path):
    """How many wait for a lock of the file."""
    inode = f":{os.stat(path).st_ino} "
    with open("/proc/locks", encoding="ascii") as table:
        return sum("->" in line and inode in line for line in table)


def executed(code, *arguments, **options):
    """A program that runs until its input ends, once it has printed a line."""
    program = subprocess.Popen([sys.executable, "-c", f"import fcntl, os, sys\n{code}\nprint(1, flush=True)\n"
                                "sys.stdin.read()", *map(str, arguments)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)
    assert program.stdout.readline()
    return program


def ended(program):
    program.communicate(timeout=60)
    assert program.returncode == 0


# flock


def test_flock_is_of_the_open_file(file):
    """flock(2): duplicates refer to the same lock, another open file conflicts, also in the same process."""
    one = opened(file)
    fcntl.flock(one, ALONE)
    assert not flock_is_free(file) and not flock_is_free(file, SHARED)
    copy = os.dup(one)
    fcntl.flock(copy, ALONE | NOT_AT_ONCE)
    os.close(one)
    assert not flock_is_free(file), "the duplicate is still open"
    fcntl.flock(copy, fcntl.LOCK_UN)
    assert flock_is_free(file)
    os.close(copy)


def test_flock_is_shared_with_children(file):
    one = opened(file)
    fcntl.flock(one, ALONE)
    assert in_child(fcntl.flock, one, ALONE | NOT_AT_ONCE) == 0, "it is the child's, too"
    assert in_child(os.close, one) == 0 and not flock_is_free(file), "the end of the child's copy releases nothing"
    assert in_child(fcntl.flock, one, fcntl.LOCK_UN) == 0
    assert flock_is_free(file), "an explicit release by one is a release for all"
    os.close(one)


def test_flock_survives_exec_and_its_holder(file):
    one = opened(file)
    fcntl.flock(one, ALONE)
    program = executed("", pass_fds=[one])
    os.close(one)
    assert not flock_is_free(file)
    ended(program)
    assert wait_until(lambda: flock_is_free(file))


def test_flock_is_changed_in_its_mode(file):
    """flock(2): shared to exclusive needs that no other has it; an open mode does not matter."""
    one, other = opened(file, os.O_RDONLY), opened(file, os.O_WRONLY)
    fcntl.flock(one, SHARED)
    fcntl.flock(other, SHARED)
    assert errno_of(fcntl.flock, one, ALONE | NOT_AT_ONCE) == errno.EWOULDBLOCK
    os.close(other)
    fcntl.flock(one, ALONE | NOT_AT_ONCE)
    fcntl.flock(one, SHARED | NOT_AT_ONCE)
    assert flock_is_free(file, SHARED) and not flock_is_free(file)
    os.close(one)


def test_a_wait_for_a_lock_is_interrupted(file):
    """EINTR, of flock and of both locks of fcntl. Python repeats a call unless the handler raises."""
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    def waits(call, *arguments):
        descriptor = opened(file)
        signal.signal(signal.SIGUSR1, interrupt)
        main = threading.get_ident()

        def send():
            assert wait_until(lambda: waiting(file))
            signal.pthread_kill(main, signal.SIGUSR1)

        threading.Thread(target=send).start()
        try:
            call(*[descriptor if each is None else each for each in arguments])
        except Interrupted:
            return "interrupted"
        return "locked"

    holder = opened(file)
    fcntl.flock(holder, ALONE)
    assert call_as(None, waits, fcntl.flock, None, ALONE) == "interrupted"
    ranged(F_OFD_SETLK, holder, fcntl.F_WRLCK)
    assert call_as(None, waits, ranged, fcntl.F_SETLKW, None, fcntl.F_WRLCK) == "interrupted"
    assert call_as(None, waits, ranged, F_OFD_SETLKW, None, fcntl.F_WRLCK) == "interrupted"
    os.close(holder)
    assert flock_is_free(file) and range_is_free(file)


def test_a_wait_for_a_lock_ends_with_the_lock(file):
    holder = opened(file)
    fcntl.flock(holder, ALONE)
    ranged(F_OFD_SETLK, holder, fcntl.F_WRLCK)
    code = "one = os.open(sys.argv[1], os.O_RDWR)\nprint(0, flush=True)\n{}"
    programs = [executed(code.format(call), file) for call in
                ("fcntl.flock(one, 2)", "fcntl.lockf(one, fcntl.LOCK_EX)")]
    assert wait_until(lambda: waiting(file) == 2)
    os.close(holder)
    assert [program.stdout.readline() for program in programs] == [b"1\n"] * 2
    assert not flock_is_free(file) and not range_is_free(file)
    for program in programs:
        ended(program)


# fcntl


def test_a_process_lock_is_not_its_childs(file):
    one = opened(file)
    ranged(fcntl.F_SETLK, one, fcntl.F_WRLCK)
    assert in_child(ranged, fcntl.F_SETLK, one, fcntl.F_WRLCK) in (errno.EAGAIN, errno.EACCES)
    assert in_child(ranged, fcntl.F_SETLK, one, fcntl.F_UNLCK) == 0 and not range_is_free(file)
    other = opened(file)
    ranged(fcntl.F_SETLK, other, fcntl.F_WRLCK)   # no conflict within the process
    os.close(one)
    os.close(other)


def test_closing_any_descriptor_of_the_file_releases_the_process_lock(file, place):
    """POSIX fcntl; also one that was opened by another name, or only for reading."""
    os.link(file, place / "second")
    one = opened(file)
    for close in (lambda: os.close(os.dup(one)), lambda: os.close(opened(file, os.O_RDONLY)),
                  lambda: os.close(opened(place / "second"))):
        ranged(fcntl.F_SETLK, one, fcntl.F_WRLCK)
        assert not range_is_free(file)
        close()
        assert range_is_free(file)
    os.close(one)


@pytest.mark.parametrize("lock, is_free", [("fcntl.flock", flock_is_free), ("fcntl.lockf", range_is_free)])
def test_a_lock_survives_exec_unless_that_closes_its_descriptor(file, lock, is_free):
    code = (f"one = os.open(sys.argv[1], os.O_RDWR)\nos.set_inheritable(one, sys.argv[2] == '1')\n{lock}(one, 2)\n"
            "os.execv(sys.executable, [sys.executable, '-c', \"import sys; print(1, flush=True); sys.stdin.read()\"])")
    for inherited in (0, 1):
        program = executed(code, file, inherited)
        assert is_free(file) == (inherited == 0)
        ended(program)
        assert wait_until(lambda: is_free(file))


def test_the_holder_of_a_range_is_found(file):
    """F_GETLK: the first lock that conflicts, or F_UNLCK. An own lock never does."""
    one = opened(file)
    ranged(fcntl.F_SETLK, one, fcntl.F_RDLCK, 10, 20)
    assert ranged(fcntl.F_GETLK, one, fcntl.F_WRLCK)[0] == fcntl.F_UNLCK

    def look(kind, start, length):
        return ranged(fcntl.F_GETLK, opened(file), kind, start, length)

    assert call_as(None, look, fcntl.F_WRLCK, 0, 0) == (fcntl.F_RDLCK, 10, 20, os.getpid())
    assert call_as(None, look, fcntl.F_RDLCK, 0, 0)[0] == fcntl.F_UNLCK
    assert call_as(None, look, fcntl.F_WRLCK, 30, 0)[0] == fcntl.F_UNLCK
    os.close(one)


def test_ranges_are_split_joined_and_changed(file):
    one = opened(file)
    ranged(fcntl.F_SETLK, one, fcntl.F_WRLCK, 0, 100)
    ranged(fcntl.F_SETLK, one, fcntl.F_UNLCK, 40, 20)
    assert [range_is_free(file, *at) for at in ((0, 40), (40, 20), (59, 2), (60, 40), (100, 0))] == [
        False, True, False, False, True]
    ranged(fcntl.F_SETLK, one, fcntl.F_RDLCK, 20, 60)
    assert [range_is_free(file, at, 1, fcntl.F_RDLCK) for at in (19, 20, 50, 79, 80)] == [
        False, True, True, True, False]
    assert not range_is_free(file, 50, 1)
    ranged(fcntl.F_SETLK, one, fcntl.F_UNLCK)
    assert range_is_free(file)
    os.close(one)


def test_ranges_have_limits(file):
    one, reads, writes = opened(file), opened(file, os.O_RDONLY), opened(file, os.O_WRONLY)
    assert errno_of(ranged, fcntl.F_SETLK, reads, fcntl.F_WRLCK) == errno.EBADF
    assert errno_of(ranged, fcntl.F_SETLK, writes, fcntl.F_RDLCK) == errno.EBADF
    assert errno_of(ranged, fcntl.F_SETLK, one, fcntl.F_WRLCK, -1) == errno.EINVAL
    assert errno_of(ranged, fcntl.F_SETLK, one, fcntl.F_WRLCK, 5, -6) == errno.EINVAL
    assert errno_of(ranged, fcntl.F_SETLK, one, 77) == errno.EINVAL
    assert errno_of(ranged, fcntl.F_SETLK, one, fcntl.F_WRLCK, 2**63 - 1, 2) == errno.EOVERFLOW
    ranged(fcntl.F_SETLK, one, fcntl.F_WRLCK, 10, -5)
    assert range_is_free(file, 0, 5) and not range_is_free(file, 5, 1) and range_is_free(file, 10)
    ranged(fcntl.F_SETLK, one, fcntl.F_WRLCK, 2**63 - 1, 1)
    assert not range_is_free(file, 2**62)
    for descriptor in (one, reads, writes):
        os.close(descriptor)


def test_processes_that_wait_for_each_other_are_told(file):
    """EDEADLK, which locks of open files do not know (fcntl(2), BUGS)."""
    one = opened(file)
    ranged(fcntl.F_SETLK, one, fcntl.F_WRLCK, 0, 1)
    program = executed("one = os.open(sys.argv[1], os.O_RDWR)\nfcntl.lockf(one, fcntl.LOCK_EX, 1, 1)\n"
                       "print(0, flush=True)\nfcntl.lockf(one, fcntl.LOCK_EX, 1, 0)", file)
    assert wait_until(lambda: waiting(file))
    assert errno_of(ranged, fcntl.F_SETLKW, one, fcntl.F_WRLCK, 1, 1) == errno.EDEADLK
    os.close(one)
    assert program.stdout.readline() == b"1\n"
    ended(program)


def test_an_open_file_lock_is_shared_by_copies_and_children_alone(file):
    one, other = opened(file), opened(file)
    ranged(F_OFD_SETLK, one, fcntl.F_WRLCK)
    assert errno_of(ranged, F_OFD_SETLK, other, fcntl.F_RDLCK) in (errno.EAGAIN, errno.EACCES)
    assert errno_of(ranged, fcntl.F_SETLK, one, fcntl.F_WRLCK) in (errno.EAGAIN, errno.EACCES), "also with its process"
    assert ranged(F_OFD_GETLK, other, fcntl.F_WRLCK) == (fcntl.F_WRLCK, 0, 0, -1)
    os.close(other)
    os.close(os.dup(one))
    assert not range_is_free(file), "closing another descriptor releases nothing"
    assert in_child(ranged, F_OFD_SETLK, one, fcntl.F_WRLCK) == 0, "it is the child's, too"
    assert errno_of(ranged, F_OFD_SETLK, one, fcntl.F_WRLCK, 0, 0, os.getpid()) == errno.EINVAL
    program = executed("", pass_fds=[one])
    os.close(one)
    assert not range_is_free(file), "exec keeps it"
    ended(program)
    assert wait_until(lambda: range_is_free(file))


def test_locks_of_the_two_calls_are_independent(file):
    one = opened(file)
    fcntl.flock(one, ALONE)
    assert range_is_free(file)
    ranged(fcntl.F_SETLK, one, fcntl.F_WRLCK)
    fcntl.flock(one, fcntl.LOCK_UN)
    assert not range_is_free(file) and flock_is_free(file)   # in this order: the latter closes a descriptor
    os.close(one)


def test_locks_go_with_the_file_not_with_its_name(file, place):
    one = opened(file)
    fcntl.flock(one, ALONE)
    ranged(F_OFD_SETLK, one, fcntl.F_WRLCK)
    os.rename(file, place / "moved")
    assert not flock_is_free(place / "moved") and not range_is_free(place / "moved")
    assert flock_is_free(file) and range_is_free(file), "another file of the old name"
    os.truncate(place / "moved", 0)
    os.unlink(place / "moved")
    again = os.open(f"/proc/self/fd/{one}", os.O_RDWR)
    assert errno_of(fcntl.flock, again, ALONE | NOT_AT_ONCE) == errno.EWOULDBLOCK
    for descriptor in (one, again):
        os.close(descriptor)


def test_a_killed_process_leaves_no_locks(file):
    program = executed("one = os.open(sys.argv[1], os.O_RDWR)\nfcntl.flock(one, 2)\nfcntl.lockf(one, fcntl.LOCK_EX)",
                       file)
    assert not flock_is_free(file) and not range_is_free(file)
    program.kill()
    program.communicate(timeout=60)
    assert flock_is_free(file) and range_is_free(file)


def test_leases_of_files_are_broken_by_an_open(file):
    """F_SETLEASE: not for a file that is open for writing (EAGAIN). An open by another breaks it (EWOULDBLOCK)."""
    one = opened(file, os.O_RDONLY)
    writer = opened(file)
    assert errno_of(fcntl.fcntl, one, fcntl.F_SETLEASE, fcntl.F_RDLCK) in (errno.EAGAIN, errno.EINVAL)
    os.close(writer)
    if errno_of(fcntl.fcntl, one, fcntl.F_SETLEASE, fcntl.F_RDLCK) == errno.EINVAL:
        pytest.skip("this filesystem has no leases of files")
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        assert in_child(os.open, file, os.O_RDONLY) == 0
        assert in_child(os.open, file, os.O_WRONLY | os.O_NONBLOCK) == errno.EWOULDBLOCK
        assert fcntl.fcntl(one, fcntl.F_GETLEASE) in (fcntl.F_UNLCK, fcntl.F_RDLCK)
        fcntl.fcntl(one, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        assert in_child(os.open, file, os.O_WRONLY | os.O_NONBLOCK) == 0
    finally:
        os.close(one)
        signal.signal(signal.SIGIO, signal.SIG_DFL)
