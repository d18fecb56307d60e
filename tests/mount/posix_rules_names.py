# SPDX-License-Identifier: Apache-2.0
"""Rules of names: looking up, opening, linking, removing and renaming. See posix_rules."""

NAMES = """
== the empty path names nothing | path_resolution(7): ENOENT
create a
open {empty} O_RDONLY -> ENOENT; open {empty} O_CREAT,O_WRONLY -> ENOENT; mkdir {empty} -> ENOENT
unlink {empty} -> ENOENT; rmdir {empty} -> ENOENT; rename a {empty} -> ENOENT; rename {empty} a -> ENOENT
link a {empty} -> ENOENT; link {empty} b -> ENOENT; symlink x {empty} -> ENOENT; stat {empty} nlink -> ENOENT
readlink {empty} -> ENOENT; chmod {empty} 0644 -> ENOENT; truncate {empty} 0 -> ENOENT
== symlink to the empty path | symlink(2): ENOENT
symlink {empty} a -> ENOENT
== a file is no directory in a path | path_resolution(7): ENOTDIR
create f; open f/. O_RDONLY -> ENOTDIR; open f/.. O_RDONLY -> ENOTDIR; stat f/ mode -> ENOTDIR
chmod f/. 0644 -> ENOTDIR
== a slash behind a file | POSIX, pathname resolution: ENOTDIR
create f; open f/ O_RDONLY -> ENOTDIR; unlink f/ -> ENOTDIR; rmdir f/ -> ENOTDIR; truncate f/ 0 -> ENOTDIR
link f/ g -> ENOTDIR; readlink f/ -> ENOTDIR; utime f/ 1 1 -> ENOTDIR; attribute f/ user.a b -> ENOTDIR
== a slash behind a new name that is no directory | POSIX, pathname resolution
create f; open n/ O_CREAT,O_WRONLY -> EISDIR; mknod n/ file -> ENOENT; mkfifo n/ -> ENOENT; symlink x n/ -> ENOENT
link f n/ -> ENOENT; rename f n/ -> ENOTDIR; mkdir n/
== a slash behind the name of a directory | POSIX, pathname resolution: EEXIST
mkdir d; create f; mkdir d/ -> EEXIST; mknod d/ file -> EEXIST; symlink x d/ -> EEXIST; link f d/ -> EEXIST
== a slash behind a symbolic link follows it | path_resolution(7)
mkdir d; symlink d l; lstat l type -> symlink; lstat l/ type -> directory; readlink l/ -> EINVAL
== a slash behind a symbolic link to a directory is no way to remove it | rmdir(2), unlink(2), rename(2): ENOTDIR
mkdir d; symlink d l; rmdir l/ -> ENOTDIR; unlink l/ -> ENOTDIR; rename l/ e -> ENOTDIR
== mkdir through a dangling link with a slash | mkdir(2): EEXIST
symlink missing l; mkdir l/ -> EEXIST; lstat missing type -> ENOENT
== dots are no names of files | open(2): EISDIR
open . O_CREAT,O_WRONLY -> EISDIR; open .. O_CREAT,O_WRONLY -> EISDIR; open . O_CREAT,O_EXCL,O_WRONLY -> EEXIST
== dots exist already | mkdir(2), link(2), symlink(2), mknod(2): EEXIST
create f; mkdir . -> EEXIST; mkdir .. -> EEXIST; mknod . file -> EEXIST; symlink x . -> EEXIST; link f . -> EEXIST
== unlink of dots | unlink(2): EISDIR
mkdir d; unlink . -> EISDIR; unlink d/. -> EISDIR; unlink d/.. -> EISDIR; unlink d/ -> EISDIR
== rmdir of dots | rmdir(2): EINVAL, ENOTEMPTY
mkdir d; rmdir . -> EINVAL; rmdir d/. -> EINVAL; rmdir .. -> ENOTEMPTY; rmdir d/.. -> ENOTEMPTY
== the root of a mount is in use | rmdir(2): EBUSY
rmdir {mount} -> EBUSY
== the root of a mount is on another filesystem than its name | rename(2): EXDEV
rename {mount} x -> EXDEV; create f; rename f {mount} -> EXDEV
== names lead to one filesystem | rename(2), link(2): EXDEV
create f; to_other_device f rename -> EXDEV; to_other_device f link -> EXDEV; stat f nlink -> 1
== mkdir takes the sticky bit and no set-ID bits | mkdir(2)
mkdir d 7777; stat d mode -> 1777
== open sets all bits that are asked for | open(2)
open f O_CREAT,O_WRONLY 6711; stat f mode -> 6711
== a new file with set-group-ID of another group loses it | inode(7), Linux 6.0
mkdir d; chown d 0 65533; chmod d 2777; @65534 open d/f O_CREAT,O_WRONLY 2755; stat d/f mode -> 0755
stat d/f gid -> 65533
== a new file without execution by its group keeps set-group-ID | inode(7)
mkdir d; chown d 0 65533; chmod d 2777; @65534 open d/f O_CREAT,O_WRONLY 2644; stat d/f mode -> 2644
== the whiteout device is for everybody | mknod(2), Linux 5.8
chmod . 0777; @65534 mknod w char 0600 0 0; @65534 mknod v char 0600 0 1 -> EPERM
== readlink of what is no link | readlink(2): EINVAL
create f; mkdir d; mkfifo p; readlink f -> EINVAL; readlink d -> EINVAL; readlink p -> EINVAL
== O_EXCL of a name that exists | open(2): EEXIST
mkdir d; symlink d l; mkfifo p
open d O_CREAT,O_EXCL,O_WRONLY -> EEXIST; open l O_CREAT,O_EXCL,O_WRONLY -> EEXIST
open p O_CREAT,O_EXCL,O_WRONLY -> EEXIST
== O_EXCL of a dangling link creates nothing | open(2): EEXIST
symlink missing l; open l O_CREAT,O_EXCL,O_WRONLY -> EEXIST; lstat missing type -> ENOENT
== O_DIRECTORY of a link that is not followed | open(2): ENOTDIR
mkdir d; symlink d l; open l O_RDONLY,O_DIRECTORY,O_NOFOLLOW -> ENOTDIR; open l O_RDONLY,O_DIRECTORY
== O_NOFOLLOW follows links before the last name | open(2)
mkdir d; create d/f; symlink d l; open l/f O_RDONLY,O_NOFOLLOW
== O_DIRECTORY of a pipe does not wait | open(2): ENOTDIR
mkfifo p; open p O_RDONLY,O_DIRECTORY -> ENOTDIR
== O_TRUNC of a pipe or device is ignored | open(2)
mkfifo p; open p O_RDWR,O_TRUNC; mknod n char 0666 1 3; open n O_WRONLY,O_TRUNC
== O_PATH gives no access | open(2): EBADF
create f; hold p f O_PATH; fread p 1 -> EBADF; fwrite p x -> EBADF; set_size p 0 -> EBADF; fsync p -> EBADF
chmod_held p 0600 -> EBADF; range p allocate 0 1 -> EBADF; fstat p nlink -> 1
== O_PATH needs no permission for the file | open(2)
create f 0600; @65534 hold p f O_PATH; @65534 fstat p size -> 0; @65534 hold q @p O_RDONLY -> EACCES
== O_PATH of a link is the link | open(2)
symlink x l; hold p l O_PATH,O_NOFOLLOW; statx_held p size -> 1
== O_TMPFILE has no name until it is linked | open(2)
hold t . O_TMPFILE,O_RDWR 0640; fstat t nlink -> 0; list . -> nothing; fwrite t text; link_held t named
fstat t nlink -> 1
read named -> text; stat named mode -> 0640
?weightfs ENOTSUP: GUARANTEES: O_TMPFILE needs libfuse 3.17
== O_TMPFILE with O_EXCL is never linked | open(2): ENOENT
hold t . O_TMPFILE,O_RDWR,O_EXCL; link_held t named -> ENOENT
?weightfs ENOTSUP: GUARANTEES: O_TMPFILE needs libfuse 3.17
== O_TMPFILE is for writing | open(2): EINVAL
hold t . O_TMPFILE -> EINVAL
== O_TMPFILE is in a directory | open(2): ENOTDIR, ENOENT
create f; hold t f O_TMPFILE,O_RDWR -> ENOTDIR; hold t missing O_TMPFILE,O_RDWR -> ENOENT
== O_TMPFILE needs permission in the directory | open(2): EACCES
@65534 hold t . O_TMPFILE,O_RDWR -> EACCES
== a directory is not written | write(2), read(2): EBADF, EISDIR
mkdir d; hold d d O_RDONLY; fwrite d x -> EBADF; fread d 1 -> EISDIR; set_size d 0 -> EINVAL
== access modes of descriptors | read(2), write(2): EBADF
create f; hold r f O_RDONLY; hold w f O_WRONLY; fwrite r x -> EBADF; fread w 1 -> EBADF; pwrite r x 0 -> EBADF
== a descriptor outlives the permissions | open(2)
create f 0666; chmod . 0777; @65534 hold d f O_RDWR; chmod f 0; @65534 fwrite d text -> 4; @65534 pread d 4 0 -> text
@65534 open f O_RDONLY -> EACCES
== a deleted file cannot be linked | linkat(2): ENOENT
create f; hold d f O_RDWR; unlink f; link_held d g -> ENOENT; link_empty d g -> ENOENT; fstat d nlink -> 0
== an open file can be linked by its descriptor | linkat(2)
create f; hold d f O_RDWR; link_empty d g; fstat d nlink -> 2; same_file f g -> True
== a deleted file has no links and a new ctime | unlink(2)
create f; hold d f O_RDWR; note d; unlink f; fstat d nlink -> 0; moved d -> ctime
== a replaced file has no links and a new ctime | rename(2)
create f; hold d f O_RDWR; create g; note d; rename g f; fstat d nlink -> 0; moved d -> ctime
== a removed directory has no links | rmdir(2)
mkdir d; hold d d O_RDONLY; rmdir d; fstat d nlink -> 0; flist d -> nothing; create_at d x -> ENOENT
== a replaced directory has no links | rename(2)
mkdir d; hold d d O_RDONLY; mkdir e; rename e d; fstat d nlink -> 0; create_at d x -> ENOENT
== nothing is made in a removed working directory | rmdir(2): ENOENT
mkdir d; working_directory d; rmdir ../d; create x -> ENOENT; mkdir x -> ENOENT; symlink y x -> ENOENT
list . -> nothing
stat . nlink -> 0; list .. -> nothing
== a working directory keeps its parent while it is renamed | rename(2)
mkdir a; mkdir b; mkdir a/c; working_directory a/c; rename ../../a/c ../../b/d; where -> d; list .. -> d
== dot-dot follows a rename between directories | rename(2)
mkdir a; mkdir b; mkdir a/c; rename a/c b/c; same_file b/c/.. b -> True; stat a nlink -> 2; stat b nlink -> 3
== dot-dot follows an exchange of directories | renameat2(2)
mkdir a; mkdir b; mkdir a/c; mkdir b/d; create b/d/f; renameat2 a/c b/d exchange
same_file a/c/.. a -> True; same_file b/d/.. b -> True; list a/c -> f; stat a nlink -> 3; stat b nlink -> 3
== an exchange of a directory with a file moves a link | renameat2(2)
mkdir a; mkdir b; mkdir a/c; create b/f; renameat2 a/c b/f exchange; stat a nlink -> 2; stat b nlink -> 3
== rename of two links of a file does nothing | POSIX rename: both names remain
create a; link a b; mark a .; rename a b; stat a nlink -> 2; same_file a b -> True; same a ctime mtime
same . mtime ctime
== rename to itself changes nothing | POSIX rename
create a; mark a .; rename a a; same a ctime mtime; same . mtime ctime
== RENAME_NOREPLACE sees the same file | renameat2(2): EEXIST
create a; link a b; renameat2 a b noreplace -> EEXIST; renameat2 a a noreplace -> EEXIST; stat a nlink -> 2
== RENAME_EXCHANGE of the same file | renameat2(2)
create a; link a b; renameat2 a b exchange; renameat2 a a exchange; stat a nlink -> 2
== RENAME_EXCHANGE needs both | renameat2(2): ENOENT
create a; renameat2 a missing exchange -> ENOENT; renameat2 missing a exchange -> ENOENT
== flags that exclude each other | renameat2(2): EINVAL
create a; create b; renameat2 a b both -> EINVAL; renameat2 a b white-exchange -> EINVAL
renameat2 a b unknown -> EINVAL
== RENAME_WHITEOUT leaves a device | renameat2(2)
create a; renameat2 a b whiteout; lstat a type -> char; lstat a device -> 0,0
!weightfs EINVAL: GUARANTEES: no RENAME_WHITEOUT
== rename updates ctime of the file | Linux; POSIX permits it
create a; link a z; mark z; rename a b; newer z ctime; same z mtime atime
== rename updates ctime of the directory | Linux; POSIX permits it
mkdir a; hold d a O_RDONLY; note d; rename a b; moved d -> ctime
== a directory that moves to another parent keeps its mtime | rename(2)
mkdir a; mkdir p; hold d a O_RDONLY; note d; rename a p/b; moved d -> ctime
== an exchange moves times of parents and files | renameat2(2)
mkdir p; mkdir q; create p/a; create q/b; mark p q p/a q/b; renameat2 p/a q/b exchange; newer p mtime ctime
newer q mtime ctime; newer p/a ctime; newer q/b ctime
!xfs ctime: XFS does not take an exchange for a change of a file
== rename over an open file of the same name keeps both contents | rename(2)
write a one O_CREAT,O_WRONLY; write b two O_CREAT,O_WRONLY; hold d b O_RDONLY; rename a b; fread d 9 -> two
read b -> one
== a failed call moves no times | POSIX, file times update
mkdir d; create d/f; mkdir d/e; create d/e/x; mark d d/f; mkdir d/f -> EEXIST; link d/f d/e -> EEXIST
unlink d/missing -> ENOENT; rmdir d/e -> ENOTEMPTY; rename d/f d/e -> EISDIR; symlink x d/f -> EEXIST
open d/f O_CREAT,O_EXCL,O_WRONLY -> EEXIST; same d mtime ctime atime; same d/f mtime ctime atime
== a full directory is no target | rename(2): ENOTEMPTY
mkdir a; mkdir b; create b/x; rename a b -> ENOTEMPTY; rmdir b -> ENOTEMPTY
!xfs EEXIST: POSIX permits EEXIST for ENOTEMPTY
== an ancestor is no target | rename(2): EINVAL, ENOTEMPTY
mkdir a; mkdir a/b; create a/b/f; rename a a/b/c -> EINVAL; rename a/b/f a -> ENOTEMPTY; rename a/b a -> ENOTEMPTY
renameat2 a a/b exchange -> EINVAL; rename a a/b/f -> EINVAL; renameat2 a/b a noreplace -> EEXIST
== rename of dots | rename(2): EBUSY
mkdir a; mkdir b; rename a/. c -> EBUSY; rename a/.. c -> EBUSY; rename a b/. -> EBUSY; rename a b/.. -> EBUSY
== a file with a slash is no source | rename(2): ENOTDIR
create f; mkdir d; rename f/ g -> ENOTDIR; rename f g/ -> ENOTDIR; rename f d/ -> ENOTDIR
== a missing source comes before a target of another kind | rename(2): ENOENT
mkdir d; rename missing d -> ENOENT; rename missing d/ -> ENOENT
== a name of 255 bytes is renamed, of 256 not | rename(2): ENAMETOOLONG
create {n255}; rename {n255} {n256} -> ENAMETOOLONG; rename {n255} a; rename a {n255}
renameat2 {n255} {n256} exchange -> ENAMETOOLONG
== the longest name | statvfs(3), pathconf(3)
filesystem . namemax -> 255
== names are bytes | path_resolution(7)
create A; create a; list . -> A a
== link counts of directories | POSIX; subdirectories count
stat . nlink -> 2; mkdir d; create f; stat . nlink -> 3; mkdir e; rmdir d; stat . nlink -> 3; rename e f -> ENOTDIR
== rename over an empty directory drops a link of its parent | rename(2)
mkdir p; mkdir p/a; mkdir p/b; stat p nlink -> 4; rename p/a p/b; stat p nlink -> 3
== the sticky bit of the directory: exchange needs both files | renameat2(2): EPERM
mkdir s 1777; create s/mine; chown s/mine 65534 65534; create s/root; @65534 renameat2 s/mine s/root exchange -> EPERM
@65534 renameat2 s/root s/mine exchange -> EPERM
== the sticky bit lets everybody link | link(2)
mkdir s 1777; create s/root 0666; @65534 link s/root s/mine -> 0|EPERM
== the owner of a sticky directory removes everything | unlink(2)
mkdir s 1777; create s/root; chown s 65534 65534; @65534 unlink s/root
== the sticky bit of a directory of directories | rmdir(2), rename(2): EPERM
mkdir s 1777; mkdir s/d 0777; @65534 rmdir s/d -> EPERM; @65534 rename s/d s/e -> EPERM
== an exchange of directories needs permission to write them | renameat2(2): EACCES
mkdir p 0777; mkdir q 0777; mkdir p/a; chown p/a 65534 65534; mkdir q/b 0755
@65534 renameat2 p/a q/b exchange -> EACCES
chmod q/b 0777; @65534 renameat2 p/a q/b exchange
"""
