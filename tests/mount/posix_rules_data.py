# SPDX-License-Identifier: Apache-2.0
"""Rules of data and times: positions, sizes, ranges, mappings, and which calls move which times. See posix_rules."""

DATA = """
== a write of nothing changes nothing | POSIX write: no times for 0 bytes
create f; hold w f O_WRONLY; fwrite w text; mark f; fwrite w nothing -> 0; same f mtime ctime atime; stat f size -> 4
== a write of nothing leaves the set-ID bits | write(2)
create f 6777; chmod . 0777; @65534 hold w f O_WRONLY; @65534 fwrite w nothing -> 0; stat f mode -> 6777
== a write moves mtime and ctime | POSIX write
create f; hold w f O_WRONLY; mark f; fwrite w text; newer f mtime ctime; same f atime
== a write at a position moves mtime and ctime | POSIX pwrite
create f; hold w f O_WRONLY; mark f; pwrite w text 5; newer f mtime ctime; same f atime
== a write of the same bytes moves mtime and ctime | POSIX write
write f text O_CREAT,O_WRONLY; mark f; write f text; newer f mtime ctime
== a read moves atime | POSIX read
write f text O_CREAT,O_WRONLY; mark f; read f -> text; newer f atime; same f mtime ctime
!weightfs atime: GUARANTEES: reads do not change access times
== a read of nothing moves no time | POSIX read
write f text O_CREAT,O_WRONLY; hold r f O_RDONLY; mark f; fread r 0 -> nothing; same f atime mtime ctime
!tmpfs atime: tmpfs takes a read of no bytes for a read
== O_NOATIME leaves atime | open(2)
write f text O_CREAT,O_WRONLY; hold r f O_RDONLY,O_NOATIME; mark f; fread r 4 -> text; same f atime
== O_NOATIME is the owner's | open(2): EPERM
create f 0644; @65534 open f O_RDONLY,O_NOATIME -> EPERM
== readdir moves atime | POSIX readdir
mkdir d; create d/f; mark d; list d -> f; newer d atime
!weightfs atime: GUARANTEES: reads do not change access times
== readlink moves atime | POSIX readlink permits it
symlink x l; mark l; readlink l -> x; newer l atime
!weightfs atime: GUARANTEES: reads do not change access times
== open and close move no times | POSIX open
write f text O_CREAT,O_WRONLY; mark f .; open f O_RDWR,O_CREAT; open f O_RDONLY; same f atime mtime ctime
same . mtime ctime
== creating a file sets all its times and those of the directory | POSIX open
mkdir d; mark d; create d/f; newer d mtime ctime; same d atime
== O_TRUNC moves mtime and ctime of an empty file | POSIX open
create f; mark f; open f O_WRONLY,O_TRUNC; newer f mtime ctime
== truncation moves mtime and ctime, also to the same size | Linux truncate(2)
write f text O_CREAT,O_WRONLY; hold w f O_WRONLY; note w; set_size w 4; moved w -> mtime ctime; note w; set_size w 2
moved w -> mtime ctime
== chmod moves ctime, also to the same mode | POSIX chmod
create f 0644; mark f; chmod f 0644; newer f ctime; same f mtime atime
== chown moves ctime, also to the same owner | POSIX chown
create f 0644; mark f; chown f 0 0; newer f ctime; same f mtime atime
== chown of nothing moves ctime | Linux chown(2)
create f 0644; mark f; chown f -1 -1; newer f ctime; same f mtime atime
!weightfs ctime: POSIX permits it: chown(-1, -1) need not mark a change, and FUSE does not say that it was one
== fchmod and fchown move ctime | POSIX fchmod, fchown
create f; hold r f O_RDONLY; note r; chmod_held r 0600; moved r -> ctime; note r; chown_held r 1 1; moved r -> ctime
== link moves ctime and times of the directory | POSIX link
create f; mkdir d; mark f d; link f d/g; newer f ctime; same f mtime atime; newer d mtime ctime
== unlink moves ctime and times of the directory | POSIX unlink
create f; mkdir d; link f d/g; mark f d; unlink d/g; newer f ctime; same f mtime atime; newer d mtime ctime
== mkdir and rmdir move times of the parent | POSIX mkdir, rmdir
mkdir d; mark d; mkdir d/e; newer d mtime ctime; mark d; rmdir d/e; newer d mtime ctime
== symlink, mknod and mkfifo move times of the parent | POSIX symlink, mknod, mkfifo
mkdir d; mark d; symlink x d/l; newer d mtime ctime; mark d; mknod d/n file; newer d mtime ctime; mark d; mkfifo d/p
newer d mtime ctime
== utimensat with UTIME_OMIT twice does nothing | utimensat(2)
create f; mark f; times f omit omit; same f atime mtime ctime
== utimensat with UTIME_OMIT for one time leaves it | utimensat(2)
create f; mark f; times f 5 omit; same f mtime; newer f ctime; stat f atime -> 5; mark f; times f omit 7; same f atime
stat f mtime -> 7; newer f ctime
== utimensat with UTIME_NOW sets the time of the call | utimensat(2)
create f; times f 5 5; mark f; times f now omit; newer f atime ctime; same f mtime; times f omit now; newer f mtime
== utimensat checks nanoseconds | utimensat(2): EINVAL
create f; raw_nanoseconds f 1000000000 -> EINVAL; raw_nanoseconds f -1 -> EINVAL; raw_nanoseconds f 999999999
stat f atime -> 1999999999
== UTIME_NOW for both needs write permission | utimensat(2): EACCES
create f 0666; create g 0644; @65534 times f now now; @65534 times g now now -> EACCES
== UTIME_NOW for one alone is the owner's | utimensat(2): EPERM
create f 0666; @65534 times f now omit -> EPERM; @65534 times f omit now -> EPERM
== a given time is the owner's | utimensat(2): EPERM
create f 0666; @65534 times f 1 1 -> EPERM; @65534 times f now 1 -> EPERM; @65534 times f 1 now -> EPERM
== UTIME_OMIT for both needs no permission | utimensat(2)
create f 0600; @65534 times f omit omit
== the owner sets times of a file that is read-only | utimensat(2)
create f 0444; chown f 65534 65534; @65534 times f 1 2; @65534 times f now now
== times of a link | utimensat(2): AT_SYMLINK_NOFOLLOW
create f; symlink f l; mark f; ltimes l 3 4; lstat l mtime -> 4; same f mtime atime ctime
== utimensat by a descriptor | futimens(3)
create f; hold r f O_RDONLY; times @r 5 6; stat f mtime -> 6
== a mapping that is written moves mtime and ctime | mmap(2): before msync returns
write f text O_CREAT,O_WRONLY; hold m f O_RDWR; note m; store m TEXT; moved m -> mtime ctime|atime mtime ctime
read f -> TEXT
== a mapping needs the access mode | mmap(2): EACCES
write f text O_CREAT,O_WRONLY; hold r f O_RDONLY; hold w f O_WRONLY; map r r; map r rw -> EACCES; map w w -> EACCES
map w r -> EACCES
== a directory is not mapped | mmap(2): ENODEV
mkdir d; hold d d O_RDONLY; map d r -> ENODEV
== positions before the start | lseek(2), pread(2): EINVAL
create f; hold d f O_RDWR; seek d -1 SET -> EINVAL; pread d 1 -1 -> EINVAL; pwrite d x -1 -> EINVAL
seek d -1 CUR -> EINVAL
== positions behind the end | lseek(2)
write f text O_CREAT,O_WRONLY; hold d f O_RDWR; seek d 100 SET -> 100; fread d 1 -> nothing; stat f size -> 4
seek d 2 END -> 6
== a write behind the end leaves zeros | lseek(2)
create f; hold d f O_RDWR; pwrite d x 3; stat f size -> 4; seek d 0 SET -> 0; seek d 0 END -> 4
== a pipe has no positions | lseek(2): ESPIPE
mkfifo p; hold d p O_RDWR; seek d 0 SET -> ESPIPE; pread d 1 0 -> ESPIPE; pwrite d x 0 -> ESPIPE
== descriptors of one open share a position, others do not | POSIX open
write f text O_CREAT,O_WRONLY; hold a f O_RDONLY; hold b f O_RDONLY; fread a 2 -> te; fread b 4 -> text; fread a 2 -> xt
== an appending write is at the end whatever the position | open(2): O_APPEND
write f text O_CREAT,O_WRONLY; hold a f O_RDWR,O_APPEND; seek a 0 SET; fwrite a more; read f -> textmore
seek a 0 CUR -> 8
== pwrite of an appending descriptor appends | pwrite(2), BUGS
write f text O_CREAT,O_WRONLY; hold a f O_RDWR,O_APPEND; pwrite a more 0 -> 4; read f -> textmore; seek a 0 CUR -> 0
== F_SETFL makes a descriptor append | fcntl(2)
write f text O_CREAT,O_WRONLY; hold a f O_RDWR; set_append a; fwrite a more; read f -> textmore
== appending sees the end that another descriptor sets | open(2): O_APPEND
create f; hold a f O_WRONLY,O_APPEND; hold b f O_WRONLY,O_APPEND; fwrite a 1; fwrite b 2; fwrite a 3; read f -> 123
truncate f 1; fwrite b 4; read f -> 14
== SEEK_DATA and SEEK_HOLE of data | lseek(2)
write f text O_CREAT,O_WRONLY; hold d f O_RDONLY; seek d 0 DATA -> 0; seek d 2 DATA -> 2; seek d 0 HOLE -> 4
== SEEK_DATA and SEEK_HOLE at the end | lseek(2): ENXIO
write f text O_CREAT,O_WRONLY; hold d f O_RDONLY; seek d 4 DATA -> ENXIO; seek d 4 HOLE -> ENXIO; seek d 9 HOLE -> ENXIO
== SEEK_DATA and SEEK_HOLE of an empty file | lseek(2): ENXIO
create f; hold d f O_RDONLY; seek d 0 DATA -> ENXIO; seek d 0 HOLE -> ENXIO
== SEEK_DATA and SEEK_HOLE before the start | lseek(2): ENXIO
write f text O_CREAT,O_WRONLY; hold d f O_RDONLY; seek d -1 DATA -> ENXIO; seek d -1 HOLE -> ENXIO
== SEEK_DATA skips a hole | lseek(2)
create f; hold d f O_RDWR; pwrite d x 1048576; seek d 0 HOLE -> 0; seek d 0 DATA -> 1048576
seek d 1048576 HOLE -> 1048577
== a file that is all hole has no data | lseek(2): ENXIO
create f; truncate f 1048576; hold d f O_RDONLY; seek d 0 DATA -> ENXIO; seek d 0 HOLE -> 0
== sizes below zero | truncate(2): EINVAL
create f; truncate f -1 -> EINVAL; hold d f O_RDWR; set_size d -1 -> EINVAL
== a truncated file that grows again has zeros | truncate(2)
write f text O_CREAT,O_WRONLY; truncate f 1; truncate f 4; hold d f O_RDWR; set_size d 1; set_size d 2; stat f size -> 2
== truncation needs no descriptor for reading | truncate(2)
create f 0222; chown f 65534 65534; @65534 truncate f 3; stat f size -> 3
== truncation follows links, of nothing but files | truncate(2): EISDIR, EINVAL
mkdir d; mkfifo p; symlink missing l; truncate d 0 -> EISDIR; truncate p 0 -> EINVAL; truncate l 0 -> ENOENT
== the size limit of a process | setrlimit(2): EFBIG
create f; limit_size 10; hold d f O_RDWR; set_size d 11 -> EFBIG; set_size d 10; pwrite d x 10 -> EFBIG
pwrite d xyz 8 -> 2
range d allocate 0 11 -> EFBIG; stat f size -> 10
== offsets that overflow | write(2), fallocate(2)
create f; hold d f O_RDWR; pwrite d xx 9223372036854775807 -> EINVAL|EFBIG|EOVERFLOW
range d allocate 9223372036854775807 1 -> EFBIG; range d allocate 1 9223372036854775807 -> EFBIG; stat f size -> 0
== fallocate of nothing | fallocate(2): EINVAL
create f; hold d f O_RDWR; range d allocate 0 0 -> EINVAL; range d allocate -1 1 -> EINVAL
range d allocate 0 -1 -> EINVAL
range d punch 0 0 -> EINVAL
== fallocate needs a descriptor for writing | fallocate(2): EBADF
create f; mkdir d; hold r f O_RDONLY; hold e d O_RDONLY; range r allocate 0 1 -> EBADF; range e allocate 0 1 -> EBADF
== fallocate of a pipe | fallocate(2): ESPIPE
mkfifo p; hold d p O_RDWR; range d allocate 0 1 -> ESPIPE
== fallocate of modes that are none | fallocate(2): EOPNOTSUPP
create f; hold d f O_RDWR; range d unknown 0 1 -> ENOTSUP; range d punch-and-grow 0 1 -> ENOTSUP
== fallocate sets the size unless told to keep it | fallocate(2)
create f; hold d f O_RDWR; range d keep 0 5000; stat f size -> 0; range d allocate 0 5000; stat f size -> 5000
range d allocate 0 10; stat f size -> 5000
== fallocate moves mtime and ctime | fallocate(2); Linux file_modified
create f; hold d f O_RDWR; note d; range d allocate 0 4096; moved d -> mtime ctime
== fallocate that keeps the size moves ctime | Linux file_modified
create f; hold d f O_RDWR; note d; range d keep 0 4096; moved d -> mtime ctime
== a hole reads as zeros and keeps the size | fallocate(2)
write f 12345678 O_CREAT,O_WRONLY; hold d f O_RDWR; range d punch 2 4; stat f size -> 8; pread d 2 0 -> 12
pread d 2 6 -> 78
== a hole behind the end changes no size | fallocate(2)
write f text O_CREAT,O_WRONLY; hold d f O_RDWR; range d punch 100 4096; stat f size -> 4; read f -> text
== a hole moves mtime and ctime | Linux file_modified
write f text O_CREAT,O_WRONLY; hold d f O_RDWR; note d; range d punch 0 2; moved d -> mtime ctime
== a hole gives blocks back | fallocate(2)
create f; hold d f O_RDWR; range d allocate 0 1048576; fsync d; range d punch 0 1048576; fsync d; stat f blocks -> 0
== a zeroed range may make a file longer | fallocate(2)
write f text O_CREAT,O_WRONLY; hold d f O_RDWR; range d zero-keep 2 10; stat f size -> 4; pread d 2 0 -> te
range d zero 2 10; stat f size -> 12; pread d 2 0 -> te
!tmpfs ENOTSUP: tmpfs has no FALLOC_FL_ZERO_RANGE
== a zeroed range moves mtime and ctime | Linux file_modified
write f text O_CREAT,O_WRONLY; hold d f O_RDWR; note d; range d zero 0 2; moved d -> mtime ctime
!tmpfs ENOTSUP: tmpfs has no FALLOC_FL_ZERO_RANGE
== a range is collapsed and inserted | fallocate(2)
create f; truncate f 12288; hold d f O_RDWR; pwrite d x 8192; range d collapse 4096 4096; stat f size -> 8192
pread d 1 4096 -> x
range d insert 0 4096; stat f size -> 12288; pread d 1 8192 -> x
!weightfs ENOTSUP: GUARANTEES: collapsing and inserting ranges fails
!tmpfs ENOTSUP: tmpfs has no FALLOC_FL_COLLAPSE_RANGE
== ranges that are collapsed are of blocks | fallocate(2): EINVAL
create f; truncate f 12288; hold d f O_RDWR; range d collapse 1 4096 -> EINVAL; range d collapse 8192 4096 -> EINVAL
range d insert 12288 4096 -> EINVAL
!weightfs ENOTSUP: GUARANTEES: collapsing and inserting ranges fails
!tmpfs ENOTSUP: tmpfs has no FALLOC_FL_COLLAPSE_RANGE
== copy_file_range copies within a filesystem | copy_file_range(2)
write a text O_CREAT,O_WRONLY; create b; hold a a O_RDONLY; hold b b O_RDWR; copy_range a b 4 0 2 -> 4; stat b size -> 6
pread b 4 2 -> text; seek a 0 CUR -> 0; seek b 0 CUR -> 0
== copy_file_range ends at the end | copy_file_range(2)
write a text O_CREAT,O_WRONLY; create b; hold a a O_RDONLY; hold b b O_RDWR; copy_range a b 9 2 0 -> 2
copy_range a b 9 4 0 -> 0
copy_range a b 9 100 0 -> 0; read b -> xt
== copy_file_range of overlapping ranges | copy_file_range(2): EINVAL
write a text O_CREAT,O_WRONLY; hold a a O_RDWR; copy_range a a 3 0 1 -> EINVAL; copy_range a a 2 0 2 -> 2
read a -> tete
== copy_file_range needs the access modes | copy_file_range(2): EBADF
write a text O_CREAT,O_WRONLY; create b; hold r a O_RDONLY; hold w b O_WRONLY; hold x b O_WRONLY,O_APPEND
copy_range w w 1 0 9 -> EBADF; copy_range r r 1 0 9 -> EBADF; copy_range r x 1 0 0 -> EBADF; copy_range r w 4 0 0 -> 4
== copy_file_range of other than files | copy_file_range(2): EISDIR, EINVAL
mkdir d; mkfifo p; create b; hold d d O_RDONLY; hold p p O_RDWR; hold w b O_RDWR; copy_range d w 1 0 0 -> EISDIR
copy_range p w 1 0 0 -> EINVAL
== copy_file_range moves times of the target | copy_file_range(2)
write a text O_CREAT,O_WRONLY; create b; hold a a O_RDONLY; hold b b O_RDWR; mark a; note b; copy_range a b 4 0 0 -> 4
moved b -> mtime ctime; same a mtime ctime
== a descriptor for reading is synced | fsync(2)
create f; mkdir d; hold r f O_RDONLY; hold d d O_RDONLY; fsync r; fsync d
== a pipe is not synced | fsync(2): EINVAL
mkfifo p; hold d p O_RDWR; fsync d -> EINVAL
== the size of a link is its length | lstat(2)
symlink target l; lstat l size -> 6; lstat l blocks -> 0
== an empty file has no blocks | stat(2)
create f; stat f blocks -> 0; stat f size -> 0
== statx has the basic fields | statx(2): STATX_BASIC_STATS
create f 0640; link f g; write f text; statx f size -> 4; statx f nlink -> 2; statx f uid -> 0; statx f mode -> 33184
== statx of a descriptor | statx(2): AT_EMPTY_PATH
create f; hold d f O_RDWR; unlink f; statx_held d nlink -> 0; fwrite d text; statx_held d size -> 4
== statx of a link that is not followed | statx(2): AT_SYMLINK_NOFOLLOW
symlink text l; statx l size -> 4
== statx has the time of birth | statx(2): STATX_BTIME
create f; born f -> True; note_birth f; chmod f 0600; write f text; rename f g; same_birth g -> True; times g 1 1
same_birth g -> True
!weightfs False: GUARANTEES: no time of birth
"""
