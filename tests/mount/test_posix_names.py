# SPDX-License-Identifier: Apache-2.0
"""link, mkdir, mkfifo, mknod, open, rename, rmdir, symlink and unlink behave as on a local filesystem."""

from posix_script import run_script
from posix_tables_common import parametrize

MOUNT_OPTIONS = "allow_other,dev,suid"

# Operations that create a name, for the rules that they share.
MAKERS = {"mkdir": "mkdir {x} {mode}", "mkfifo": "mkfifo {x} {mode}", "mknod": "mknod {x} file {mode}",
          "mknod of a socket": "mknod {x} socket {mode}", "open": "open {x} O_CREAT,O_WRONLY {mode}"}


def making():
    cases = {}
    for name, operation in MAKERS.items():
        def make(x, mode="0777"):
            return operation.format(x=x, mode=mode)
        cases[f"{name}: the mode asked for, less the umask"] = f"""
            {make('a', '0755')}
            lstat a mode -> 0755
            {make('b', '0151')}
            lstat b mode -> 0151
            umask 0077
            {make('c', '0151')}
            lstat c mode -> 0100
            umask 0345
            {make('d', '0777')}
            lstat d mode -> 0432
            umask 0501
            {make('e', '0345')}
            lstat e mode -> 0244"""
        cases[f"{name}: the maker's user and group"] = f"""
            chmod . 0777
            @65534 {make('a')}
            lstat a uid -> 65534
            lstat a gid -> 65534
            @65534:65533 {make('b')}
            lstat b gid -> 65533"""
        cases[f"{name}: the group of a set-group-id directory"] = f"""
            mkdir d 0777
            chown d 1234 65533
            chmod d 2777
            @65534 {make('d/a')}
            lstat d/a uid -> 65534
            lstat d/a gid -> 65533
            lstat d/a mode -> {'2777' if name == 'mkdir' else '0777'}"""
        cases[f"{name}: times of the new file and of its directory"] = f"""
            mkdir d
            mark d
            {make('d/a')}
            newer d mtime ctime
            mark d
            {make('d/a').replace(',O_WRONLY', ',O_EXCL')} -> EEXIST
            same d mtime ctime"""
    return cases


LINK = {
    "counts links, of every kind of file": """
        create file
        link file second
        stat file nlink -> 2
        mkfifo fifo
        link fifo fifo2
        stat fifo2 nlink -> 2
        symlink nowhere link
        link link link2
        lstat link2 nlink -> 2
        lstat link2 type -> symlink
        link file third
        unlink file
        stat third nlink -> 2
        unlink second
        stat third nlink -> 1""",
    "is the same file": """
        create file 0644
        link file second
        write second text
        read file -> text
        chmod second 0600
        stat file mode -> 0600
        chown file 5 6
        stat second uid -> 5""",
    "moves ctime of the file and the times of the directory": """
        create file
        mkdir d
        mark file d
        link file d/second
        newer file ctime
        same file mtime
        newer d mtime ctime
        mark file d
        link file d/second -> EEXIST
        same file ctime
        same d mtime ctime""",
    "follows a symbolic link when asked to": """
        create file
        symlink file link
        link_follow link second
        lstat second type -> file
        lstat file nlink -> 2""",
    "of a directory is refused": """
        mkdir directory
        link directory second -> EPERM
        chmod . 0777
        mkdir mine
        chown mine 65534 65534
        @65534 link mine second -> EPERM""",
    "of a missing file": """
        link missing second -> ENOENT
        mkdir d
        create file
        link file d -> EEXIST""",
    "needs only permission in the directory, for an own file": """
        mkdir d 0777
        create file 0600
        chown file 65534 65534
        @65534 link file d/second
        mkdir closed 0755
        @65534 link file closed/second -> EACCES""",
    "reaches 1,000 names": """
        create file
        mkdir d
        """ + "\n".join(f"link file d/{index}" for index in range(999)) + """
        stat file nlink -> 1000
        """ + "\n".join(f"unlink d/{index}" for index in range(0, 999, 2)) + """
        stat file nlink -> 500""",
}

MKDIR = {
    "counts the links of the parent": """
        mkdir d
        stat d nlink -> 2
        mkdir d/a
        mkdir d/b
        create d/c
        stat d nlink -> 4
        rename d/a d/b/a
        stat d nlink -> 3
        stat d/b nlink -> 3
        rmdir d/b/a
        stat d/b nlink -> 2
        rmdir d/b
        stat d nlink -> 2""",
    "with slashes at the end": """
        mkdir d/
        stat d/ type -> directory
        mkdir d// -> EEXIST
        mkdir . -> EEXIST
        mkdir d/.. -> EEXIST""",
    "below a dangling link": """
        symlink missing link
        mkdir link -> EEXIST
        mkdir link/below -> ENOENT""",
}

MKNOD = {
    "makes each kind": """
        mknod a file 0644
        lstat a type -> file
        mknod b fifo 0644
        lstat b type -> fifo
        mknod c socket 0644
        lstat c type -> socket
        mknod d char 0644 1 3
        lstat d type -> char
        lstat d device -> 1,3
        mknod e block 0644 259 1048575
        lstat e type -> block
        lstat e device -> 259,1048575
        mknod f char 0600 4095 70000
        lstat f device -> 4095,70000""",
    "of devices is for root": """
        chmod . 0777
        @65534 mknod d char 0644 1 3 -> EPERM
        @65534 mknod e block 0644 1 3 -> EPERM
        @65534 mknod b fifo 0644
        @65534 mknod c socket 0644""",
    "null device works through its node": """
        mknod null char 0666 1 3
        write null text -> 4
        read null -> nothing
        @65534 open null O_RDWR""",
    "a bound socket is a file": """
        bind s
        lstat s type -> socket
        open s O_RDONLY -> ENXIO
        bind s -> EADDRINUSE
        unlink s
        lstat s type -> ENOENT""",
}

OPEN = {
    "creates, and opens what is there": """
        open file O_CREAT,O_WRONLY 0640
        stat file mode -> 0640
        open file O_CREAT,O_RDWR 0777
        stat file mode -> 0640
        open file O_CREAT,O_EXCL,O_RDWR -> EEXIST""",
    "exclusive creation does not follow links": """
        symlink target dangling
        open dangling O_CREAT,O_EXCL,O_WRONLY -> EEXIST
        open dangling O_CREAT,O_WRONLY
        lstat target type -> file""",
    "truncation moves the times": """
        create file
        write file text
        mark file
        open file O_WRONLY,O_TRUNC
        stat file size -> 0
        newer file mtime ctime
        mark file
        open file O_WRONLY,O_TRUNC
        newer file mtime ctime""",
    "of a directory": """
        mkdir d
        open d O_RDONLY
        open d O_RDONLY,O_DIRECTORY
        open d O_WRONLY -> EISDIR
        open d O_RDWR -> EISDIR
        open d O_RDONLY,O_TRUNC -> EISDIR
        open d O_CREAT,O_RDONLY -> EISDIR
        create file
        open file O_RDONLY,O_DIRECTORY -> ENOTDIR""",
    "without following": """
        create file
        symlink file link
        open link O_RDONLY,O_NOFOLLOW -> ELOOP
        open link O_RDONLY,O_NOFOLLOW,O_CREAT -> ELOOP
        symlink link link2
        open link2 O_RDONLY
        open link2 O_PATH,O_NOFOLLOW""",
    "of a loop": """
        symlink a b
        symlink b a
        open a O_RDONLY -> ELOOP
        open a O_RDONLY,O_CREAT -> ELOOP""",
    "of pipes and sockets": """
        mkfifo fifo
        open fifo O_WRONLY -> ENXIO
        open fifo O_RDONLY
        open fifo O_RDWR
        mknod socket socket 0644
        open socket O_RDONLY -> ENXIO
        open socket O_WRONLY -> ENXIO
        mknod nodevice char 0644 4095 1
        open nodevice O_RDONLY -> ENXIO
        mknod nodevice2 block 0644 4095 1
        open nodevice2 O_RDONLY -> ENXIO""",
    "asks for each permission": """
        chmod . 0777
        """ + "\n".join(f"""
        create f{mode:o} 0{mode:o}00
        chown f{mode:o} 65534 65534
        @65534 open f{mode:o} O_RDONLY{'' if mode & 4 else ' -> EACCES'}
        @65534 open f{mode:o} O_WRONLY{'' if mode & 2 else ' -> EACCES'}
        @65534 open f{mode:o} O_RDWR{'' if mode & 6 == 6 else ' -> EACCES'}
        @65534 open f{mode:o} O_RDONLY,O_TRUNC{'' if mode & 6 == 6 else ' -> EACCES'}
        @65533 open f{mode:o} O_RDONLY -> EACCES
        open f{mode:o} O_RDWR""" for mode in range(8)),
    "of a new file without any permission succeeds": """
        chmod . 0777
        @65534 write file text O_CREAT,O_RDWR,O_EXCL
        @65534 open new O_CREAT,O_RDWR 0
        @65534 open new O_RDWR -> EACCES
        stat file size -> 4""",
    "appends wherever the file ends": """
        create file
        write file one O_WRONLY,O_APPEND
        write file two O_WRONLY,O_APPEND
        read file -> onetwo""",
    "of a protected file of another in a sticky directory": """
        mkdir d 1777
        create d/file 0666
        chown d/file 65533 65533
        @65534 open d/file O_RDWR
        @65534 open d/file O_RDWR,O_CREAT -> 0|EACCES""",
}

RMDIR = {
    "removes an empty directory": """
        mkdir d
        mark .
        rmdir d
        lstat d type -> ENOENT
        newer . mtime ctime""",
    "refuses what is not one": """
        create file
        rmdir file -> ENOTDIR
        symlink d link
        mkdir d
        rmdir link -> ENOTDIR
        mkfifo fifo
        rmdir fifo -> ENOTDIR
        create d/x
        rmdir d -> ENOTEMPTY|EEXIST
        rmdir d/. -> EINVAL
        mkdir d/y
        rmdir d/y/.. -> ENOTEMPTY|EEXIST
        unlink d/x
        rmdir d/y
        rmdir d""",
    "keeps to the sticky bit": """
        mkdir s 1777
        mkdir s/root 0777
        mkdir s/mine 0755
        chown s/mine 65534 65534
        @65533 rmdir s/mine -> EPERM
        @65534 rmdir s/root -> EPERM
        @65534 rmdir s/mine
        chown s 65533 65533
        @65533 rmdir s/root""",
}

SYMLINK = {
    "holds any target": """
        symlink target a
        readlink a -> target
        lstat a type -> symlink
        lstat a size -> 6
        lstat a mode -> 0777
        symlink /absolute//path/../x b
        readlink b -> /absolute//path/../x
        symlink . c
        symlink .. d
        readlink d -> ..""",
    "of 4,095 bytes": """
        symlink {n4095} a
        lstat a size -> 4095
        symlink {n4096} b -> ENAMETOOLONG""",
    "is followed in the middle of a path": """
        mkdir d
        create d/file
        symlink d link
        lstat link/file type -> file
        create link/second
        lstat d/second type -> file
        symlink ../d d/up
        lstat link/up/up/second type -> file""",
    "chain of 40 is followed, of 41 is not": """
        create l0
        """ + "\n".join(f"symlink l{index} l{index + 1}" for index in range(41)) + """
        stat l40 type -> file
        stat l41 type -> ELOOP""",
    "needs nothing of its target's permissions": """
        chmod . 0777
        create file 0600
        @65534 symlink file link
        @65534 readlink link -> file
        @65534 open link O_RDONLY -> EACCES""",
}

UNLINK = {
    "removes each kind, and no directory": """
        create a
        unlink a
        symlink x b
        unlink b
        mkfifo c
        unlink c
        mknod d char 0644 1 3
        unlink d
        bind e
        unlink e
        mkdir f
        unlink f -> EISDIR
        lstat f type -> directory""",
    "moves the times of the directory and of what is left": """
        mkdir d
        create d/a
        link d/a b
        mark d b
        unlink d/a
        newer d mtime ctime
        newer b ctime
        stat b nlink -> 1
        mark d
        unlink d/a -> ENOENT
        same d mtime ctime""",
    "keeps to the sticky bit": """
        mkdir s 1777
        create s/root 0666
        create s/mine 0666
        chown s/mine 65534 65534
        @65533 unlink s/mine -> EPERM
        @65534 unlink s/root -> EPERM
        @65534 unlink s/mine
        chown s 65533 65533
        @65533 unlink s/root
        mkdir plain 0777
        create plain/root 0600
        @65533 unlink plain/root""",
    "is undone by a new file of that name, another file": """
        create a 0644
        write a text
        unlink a
        create a 0600
        stat a size -> 0
        stat a mode -> 0600""",
}


@parametrize(making())
def test_making_a_name(work, script):
    run_script(work, script)


@parametrize(LINK)
def test_link(work, script):
    run_script(work, script)


@parametrize(MKDIR)
def test_mkdir(work, script):
    run_script(work, script)


@parametrize(MKNOD)
def test_mknod(work, script):
    run_script(work, script)


@parametrize(OPEN)
def test_open(work, script):
    run_script(work, script)


@parametrize(RMDIR)
def test_rmdir(work, script):
    run_script(work, script)


@parametrize(SYMLINK)
def test_symlink(work, script):
    run_script(work, script)


@parametrize(UNLINK)
def test_unlink(work, script):
    run_script(work, script)
