# SPDX-License-Identifier: Apache-2.0
"""rename and renameat2 behave as on a local filesystem: replacement, sticky directories, loops, link counts."""

from posix_script import run_script
from posix_tables_common import parametrize

MOUNT_OPTIONS = "allow_other,dev,suid"
KINDS = {"file": "create {x}", "directory": "mkdir {x}", "full directory": "mkdir {x}\ncreate {x}/below",
         "fifo": "mkfifo {x}", "socket": "mknod {x} socket", "device": "mknod {x} char 0644 1 3",
         "symlink": "symlink nowhere {x}"}


def over_each_other():
    """Renames every kind of file over every other kind."""
    cases = {}
    for source, make_source in KINDS.items():
        for target, make_target in KINDS.items():
            from_directory, to_directory = "directory" in source, "directory" in target
            if from_directory and not to_directory:
                expected = "ENOTDIR"
            elif to_directory and not from_directory:
                expected = "EISDIR"
            elif target == "full directory":
                expected = "ENOTEMPTY|EEXIST"
            else:
                expected = "0"
            gone = "lstat source type -> ENOENT" if expected == "0" else "lstat source nlink\nlstat target nlink"
            cases[f"{source} over {target}"] = "\n".join(
                [make_source.format(x="source"), make_target.format(x="target"),
                 f"rename source target -> {expected}", gone,
                 f"lstat target type -> {type_of(source if expected == '0' else target)}"])
    return cases


def exchanges():
    cases = {}
    for source, make_source in KINDS.items():
        for target, make_target in KINDS.items():
            cases[f"{source} with {target}"] = "\n".join(
                ["mkdir d", make_source.format(x="a"), make_target.format(x="d/b"), "renameat2 a d/b exchange",
                 f"lstat a type -> {type_of(target)}", f"lstat d/b type -> {type_of(source)}",
                 f"stat d nlink -> {3 if 'directory' in source else 2}", "renameat2 a d/b noreplace -> EEXIST"])
    return cases


def type_of(kind):
    return {"full directory": "directory", "device": "char"}.get(kind, kind)


RENAME = {
    "moves a file with everything": """
        create a 0640
        write a text
        chown a 12 34
        utime a 1000 2000
        mkdir d
        rename a d/b
        read d/b -> text
        stat d/b mode -> 0640
        stat d/b uid -> 12
        stat d/b mtime -> 2000
        lstat a type -> ENOENT""",
    "of one file's two names does nothing": """
        create a
        link a b
        rename a b
        stat a nlink -> 2
        stat b nlink -> 2""",
    "to itself": """
        create a
        rename a a
        stat a nlink -> 1
        mkdir d
        rename d d
        rename d d/ """,
    "drops a link of what it replaces": """
        create a
        create b
        link b c
        stat c nlink -> 2
        mark c
        rename a b
        stat c nlink -> 1
        newer c ctime""",
    "moves the times of both directories and the file's ctime": """
        mkdir d
        mkdir e
        create d/a
        mark d e d/a
        rename d/a e/a
        newer d mtime ctime
        newer e mtime ctime
        mark d e
        rename d/x e/y -> ENOENT
        same d mtime ctime
        same e mtime ctime""",
    "of a directory changes the link counts of the parents": """
        mkdir a
        mkdir b
        mkdir a/d
        rename a/d b/d
        stat a nlink -> 2
        stat b nlink -> 3
        mkdir b/e
        rename b/d b/e
        stat b nlink -> 3
        mkdir a/f
        rename b/e a/f
        stat a nlink -> 3
        stat b nlink -> 2
        lstat a/f/.. ino""",
    "into itself or below itself": """
        mkdir a
        mkdir a/b
        mkdir a/b/c
        rename a a/b -> EINVAL
        rename a a/b/c -> EINVAL
        rename a a/b/c/d -> EINVAL
        rename a a/new -> EINVAL
        rename a/b/c a -> ENOTEMPTY|EEXIST
        renameat2 a a/b/c exchange -> EINVAL
        renameat2 a/b/c a exchange -> EINVAL
        lstat a/b/c type -> directory""",
    "of dots": """
        mkdir a
        rename a/. b -> EINVAL|EBUSY
        rename a/.. b -> EINVAL|EBUSY
        mkdir b
        rename b a/. -> EINVAL|EBUSY
        rename b a/.. -> EINVAL|EBUSY|ENOTEMPTY""",
    "of symbolic links themselves": """
        create a
        symlink a link
        rename link moved
        readlink moved -> a
        create b
        rename b moved
        lstat moved type -> file
        lstat a type -> file""",
    "with slashes at the end": """
        create a
        mkdir d
        rename a/ b -> ENOTDIR
        rename a b/ -> ENOTDIR
        rename d/ e/
        lstat e type -> directory""",
    "keeps to the sticky bit of both directories": """
        mkdir from 1777
        mkdir to 1777
        create from/root 0666
        create to/root 0666
        create from/mine
        chown from/mine 65534 65534
        create to/mine
        chown to/mine 65534 65534
        @65533 rename from/mine to/new -> EPERM
        @65534 rename from/root to/new -> EPERM
        @65534 rename from/mine to/root -> EPERM
        @65534 rename from/mine to/mine
        @65534 rename to/mine from/back
        chown to 65534 65534
        @65534 rename from/back to/root""",
    "of another's directory needs write permission to it": """
        mkdir from 0777
        mkdir to 0777
        mkdir from/d 0755
        chown from/d 65533 65533
        @65534 rename from/d to/d -> EACCES
        @65534 rename from/d from/e
        chmod from/e 0777
        @65534 rename from/e to/d""",
    "without replacing": """
        create a
        create b
        renameat2 a b noreplace -> EEXIST
        renameat2 a c noreplace
        lstat c type -> file
        renameat2 missing d noreplace -> ENOENT
        renameat2 c d both -> EINVAL
        renameat2 c missing exchange -> ENOENT
        symlink nowhere e
        renameat2 c e noreplace -> EEXIST""",
    "of the working directory and of an open one": """
        mkdir a
        mkdir a/b
        create a/b/file
        rename a c
        lstat c/b/file type -> file
        rename c/b d
        lstat d/file type -> file
        lstat c nlink -> 2""",
    "in cycles": "create a\ncreate b\n" + "\n".join(
        "rename a x\nrename b a\nrename x b\nrenameat2 a b exchange" for _ in range(20)),
}


@parametrize(over_each_other())
def test_rename_over_each_kind(work, script):
    run_script(work, script)


@parametrize(exchanges())
def test_exchange(work, script):
    run_script(work, script)


@parametrize(RENAME)
def test_rename(work, script):
    run_script(work, script)
