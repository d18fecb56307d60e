# SPDX-License-Identifier: Apache-2.0
"""chmod, chown, utimensat, truncate, ftruncate and posix_fallocate behave as on a local filesystem."""

from posix_script import run_script
from posix_tables_common import parametrize

MOUNT_OPTIONS = "allow_other,dev,suid"

CHMOD = {
    "sets the mode of every kind of file": """
        create file 0644
        chmod file 0111
        stat file mode -> 0111
        mkdir directory 0755
        chmod directory 7777
        stat directory mode -> 7777
        mkfifo fifo 0644
        chmod fifo 0765
        stat fifo mode -> 0765
        mknod socket socket 0600
        chmod socket 0712
        stat socket mode -> 0712
        mknod char char 0600 1 3
        chmod char 0640
        stat char mode -> 0640""",
    "follows a symbolic link": """
        create file 0644
        symlink file link
        chmod link 0321
        stat file mode -> 0321
        lstat link mode -> 0777""",
    "changes only ctime": """
        create file
        mkdir directory
        mark file directory
        chmod file 0600
        chmod directory 0700
        newer file ctime
        same file mtime atime
        newer directory ctime
        same directory mtime""",
    "works on an open descriptor": """
        create file 0600
        fchmod file 0751
        stat file mode -> 0751""",
    "is the owner's alone": """
        create file 0644
        chown file 65534 65534
        mark file
        @65533 chmod file 0777 -> EPERM
        same file ctime
        stat file mode -> 0644
        @65534 chmod file 0600
        stat file mode -> 0600
        chmod file 0777
        stat file mode -> 0777""",
    "drops set-group-id where the owner is not of the file's group": """
        create file 0755
        chown file 65534 65533
        @65534 chmod file 2755
        stat file mode -> 0755
        @65534:65534,65533 chmod file 2755
        stat file mode -> 2755
        mkdir directory 0755
        chown directory 65534 65533
        @65534 chmod directory 2755
        stat directory mode -> 0755
        chmod file 6755
        stat file mode -> 6755""",
    "lets an owner set the sticky bit and set-user-id": """
        create file 0644
        chown file 65534 65534
        @65534 chmod file 1644
        stat file mode -> 1644
        @65534 chmod file 4755
        stat file mode -> 4755""",
    "of a file decides who may use it": """
        create file 0604
        chown file 65534 65533
        @65534 open file O_RDWR
        @65533 open file O_RDONLY -> EACCES
        @1234:65533 open file O_RDONLY -> EACCES
        @1234:1234 open file O_RDONLY
        @1234:1234 open file O_WRONLY -> EACCES
        chmod file 0062
        @65534 open file O_RDONLY -> EACCES
        @1234:1234,65533 open file O_RDWR
        @1234 open file O_WRONLY
        @1234 open file O_RDONLY -> EACCES
        open file O_RDWR""",
    "of a program decides who may run it": """
        create file 0644
        write file #!/bin/sh
        exec file -> 127|EACCES
        @65534 exec file -> 127
        chmod file 0711
        access file x -> True
        @65534 access file x -> True
        @65534 access file r -> False""",
    "write by another user clears set-user-id": """
        create file 6777
        @65534 write file text
        stat file mode -> 0777
        chmod file 6777
        write file text
        stat file mode -> 6777
        @65534 truncate file 1
        stat file mode -> 0777
        chmod file 2767
        @65534 write file text
        stat file mode -> 2767|0767""",
}

CHOWN = {
    "sets owner and group, alone and together": """
        create file
        chown file 123 456
        stat file uid -> 123
        stat file gid -> 456
        chown file -1 789
        stat file uid -> 123
        stat file gid -> 789
        chown file 10 -1
        stat file uid -> 10
        stat file gid -> 789
        mkdir directory
        chown directory 4294967294 4294967293
        stat directory uid -> 4294967294
        stat directory gid -> 4294967293""",
    "of a link is lchown's": """
        create file
        symlink file link
        lchown link 123 456
        lstat link uid -> 123
        lstat file uid -> 0
        chown link 7 8
        lstat file uid -> 7
        lstat link gid -> 456""",
    "is for root, and the group for members": """
        create file 0644
        chown file 65534 65533
        @65534 chown file 65533 -1 -> EPERM
        @65534 chown file -1 65532 -> EPERM
        @65533 chown file -1 65533 -> EPERM
        @65533 chown file 65533 -1 -> EPERM
        @65534:65533,65532 chown file 65534 65532
        stat file gid -> 65532
        @65534:65533,65532 chown file 65534 65533
        stat file uid -> 65534
        stat file gid -> 65533
        @65533 chown file -1 -1""",
    "changes only ctime, and nothing when refused": """
        create file
        chown file 65534 65534
        mark file
        @65533 chown file 65533 65533 -> EPERM
        same file ctime mtime
        chown file 65533 -1
        newer file ctime
        same file mtime atime""",
    "clears set-user-id and set-group-id of a program": """
        create file 6755
        chown file 65534 65534
        stat file mode -> 0755
        chmod file 6755
        @65534:65534,65533 chown file -1 65533
        stat file mode -> 0755
        chmod file 6644
        chown file 1 1
        stat file mode -> 2644
        mkdir directory
        chmod directory 6755
        chown directory 65534 65534
        stat directory mode -> 6755""",
}

TIMES = {
    "sets nanoseconds, the past and the far future": """
        create file
        utime file 1234567890123456789 987654321987654321
        stat file atime -> 1234567890123456789
        stat file mtime -> 987654321987654321
        utime file 1 2
        stat file mtime -> 2
        utime file 4294967296000000001 9000000000000000002
        stat file atime -> 4294967296000000001
        stat file mtime -> 9000000000000000002
        utime file -1000000001 -5
        stat file atime -> -1000000001
        stat file mtime -> -5""",
    "of a symbolic link": """
        create file
        symlink file link
        mark file
        lutime link 11 22
        same file mtime atime
        lstat link mtime -> 22
        utime link 33 44
        lstat file mtime -> 44""",
    "updates ctime": """
        create file
        mark file
        utime file 5 5
        newer file ctime
        mkdir directory
        mark directory
        touch directory
        newer directory ctime mtime atime""",
    "to now for those who may write, to a time for the owner": """
        create file 0666
        chown file 65534 65534
        @65533 touch file
        @65533 utime file 1 1 -> EPERM
        chmod file 0644
        @65533 touch file -> EACCES
        @65534 utime file 1 1
        chmod file 0444
        @65534 touch file
        @65534 utime file 2 2
        stat file mtime -> 2""",
    "of directories, pipes and devices": """
        mkdir directory
        utime directory 1 2
        stat directory mtime -> 2
        mkfifo fifo
        utime fifo 3 4
        stat fifo mtime -> 4
        mknod char char 0644 1 3
        utime char 5 6
        stat char mtime -> 6""",
    "mtime and ctime move on write, atime alone does not go back": """
        create file
        write file some
        mark file
        write file more
        newer file mtime ctime
        mark file
        write file other O_WRONLY,O_APPEND
        newer file mtime ctime""",
    "creating and removing a name moves the times of its directory": """
        mkdir d
        mark d
        create d/a
        newer d mtime ctime
        mark d
        mkdir d/b
        newer d mtime ctime
        mark d
        link d/a d/c
        newer d mtime ctime
        mark d
        symlink x d/e
        newer d mtime ctime
        mark d
        rename d/c d/f
        newer d mtime ctime
        mark d
        unlink d/f
        newer d mtime ctime
        mark d
        rmdir d/b
        newer d mtime ctime
        mark d
        write d/a text
        chmod d/a 0600
        same d mtime ctime""",
}

TRUNCATE = {
    "shortens and extends with zeros": """
        create file
        write file 0123456789
        {op} file 4
        read file -> 0123
        {op} file 6
        stat file size -> 6
        {op} file 0
        stat file size -> 0
        {op} file 1099511627776
        stat file size -> 1099511627776
        {op} file 0
        stat file blocks -> 0""",
    "moves mtime and ctime, of the same size too": """
        create file
        write file 0123456789
        mark file
        {op} file 4
        newer file mtime ctime
        mark file
        {op} file 4
        newer file mtime ctime""",
    "needs write permission": """
        create file 0644
        write file 0123456789
        mark file
        @65534 {op} file 0 -> EACCES
        same file mtime ctime
        stat file size -> 10
        chown file 65534 65534
        chmod file 0444
        @65534 {op} file 0 -> EACCES
        chmod file 0644
        @65534 {op} file 3
        stat file size -> 3""",
    "of a directory": """
        mkdir directory
        {op} directory 0 -> EISDIR""",
    "to an impossible size": """
        create file
        {op} file -1 -> EINVAL
        {op} file 9223372036854775807 -> EFBIG|EINVAL""",
    "through a symbolic link": """
        create file
        symlink file link
        {op} link 123
        stat file size -> 123""",
}

TRUNCATE_ONLY = {
    "truncate of a pipe": """
        mkfifo fifo
        truncate fifo 0 -> EINVAL""",
    "truncate of a file without read permission": """
        create file 0222
        chown file 65534 65534
        @65534 truncate file 5
        stat file size -> 5""",
    "ftruncate of a descriptor for reading": """
        create file
        ftruncate file 5 O_RDONLY -> EINVAL""",
    "ftruncate of a file whose mode came later": """
        mkdir d
        write d/file text O_WRONLY,O_CREAT
        chmod d/file 0
        ftruncate d/file 2
        stat d/file size -> 2""",
}

FALLOCATE = {
    "makes a file longer, never shorter": """
        create file
        posix_fallocate file 0 5000
        stat file size -> 5000
        posix_fallocate file 100 100
        stat file size -> 5000
        posix_fallocate file 100000 1
        stat file size -> 100001""",
    "keeps what is there": """
        create file
        write file 0123456789
        posix_fallocate file 5 10
        stat file size -> 15
        truncate file 10
        read file -> 0123456789""",
    "takes the space": """
        create file
        posix_fallocate file 0 1048576
        stat file blocks -> 2048""",
    "moves ctime and mtime": """
        create file
        mark file
        posix_fallocate file 0 4096
        newer file ctime""",
    "of nothing, and of places before the start": """
        create file
        posix_fallocate file 0 0 -> EINVAL
        posix_fallocate file -1 10 -> EINVAL
        posix_fallocate file 0 -10 -> EINVAL
        stat file size -> 0""",
    "through descriptors that do not write": """
        create file
        posix_fallocate file 0 10 O_RDONLY -> EBADF
        mkdir directory
        posix_fallocate directory 0 10 O_RDONLY -> EBADF|EISDIR
        mkfifo fifo
        posix_fallocate fifo 0 10 O_RDWR -> ESPIPE""",
    "of more than the filesystem could ever hold": """
        create file
        posix_fallocate file 0 9223372036854775807 -> EFBIG|ENOSPC
        stat file size -> 0""",
}

def for_both(cases):
    return {f"{operation} {name}": text.replace("{op}", operation)
            for operation in ("truncate", "ftruncate") for name, text in cases.items()
            if operation == "truncate" or "EISDIR" not in text}


@parametrize(CHMOD)
def test_chmod(work, script):
    run_script(work, script)


@parametrize(CHOWN)
def test_chown(work, script):
    run_script(work, script)


@parametrize(TIMES)
def test_utimensat(work, script):
    run_script(work, script)


@parametrize({**for_both(TRUNCATE), **TRUNCATE_ONLY})
def test_truncate(work, script):
    run_script(work, script)


@parametrize(FALLOCATE)
def test_posix_fallocate(work, script):
    run_script(work, script)
