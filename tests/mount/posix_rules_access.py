# SPDX-License-Identifier: Apache-2.0
"""Rules of permissions and lists (ACLs): who may do what, set-ID bits, masks, inheritance. See posix_rules."""

ACCESS = """
== a directory without read permission is not listed | open(2): EACCES
mkdir d 0311; chown d 65534 65534; chmod d 0711; create d/f 0644; @65533 list d -> EACCES; @65533 stat d/f mode -> 0644
@65533 open d/f O_RDONLY
== a directory without search permission is listed and no more | path_resolution(7): EACCES
mkdir d 0744; create d/f 0644; @65533 list d -> f; @65533 stat d/f mode -> EACCES; @65533 open d/f O_RDONLY -> EACCES
== a name is made with permission to write and to search | open(2), mkdir(2): EACCES
mkdir w 0772; mkdir x 0771; mkdir wx 0773; @65533 create w/f -> EACCES; @65533 create x/f -> EACCES; @65533 create wx/f
@65533 mkdir x/d -> EACCES; @65533 mkdir wx/d; @65533 list wx -> EACCES
== the first matching class decides | path_resolution(7): EACCES
create f 0077; chown f 65534 65533; @65534:65533 open f O_RDONLY -> EACCES; @65532:65533 open f O_RDWR
create g 0707; chown g 65534 65533; @65532:65533 open g O_RDONLY -> EACCES; @65532 open g O_RDWR
== supplementary groups count | path_resolution(7)
create f 0640; chown f 0 1234; @65534:65534,1,1234 open f O_RDONLY; @65534:65534,1,1235 open f O_RDONLY -> EACCES
mkdir d 0770; chown d 0 1234; @65534:65534,1,1234 create d/f; stat d/f gid -> 65534
== root needs an execute bit of a file alone | path_resolution(7), capabilities(7)
create f 0000; open f O_RDWR; exec f -> 127; mkdir d 0000; create d/f; list d -> f
== the owner changes the mode | chmod(2): EPERM
create f 0666; chown f 65534 65533; @65533:65533 chmod f 0600 -> EPERM; @65534 chmod f 0000; @65534 chmod f 0600
== set-group-id is for members of the group | chmod(2)
create f; chown f 65534 65533; @65534 chmod f 2755; stat f mode -> 0755; @65534:65534,65533 chmod f 2755
stat f mode -> 2755
== the sticky bit of a file is for everybody | chmod(2), Linux
create f; chown f 65534 65534; @65534 chmod f 1644; stat f mode -> 1644
== owners are given by root alone | chown(2): EPERM
create f; chown f 65534 65534; @65534 chown f 65533 -1 -> EPERM; @65534 chown f -1 65533 -> EPERM
@65534 chown f 65534 65534
@65533 chown f 65534 -1 -> EPERM; @65534:65534,65533 chown f -1 65533; stat f gid -> 65533
== chown clears set-ID bits of programs | chown(2)
create f 6755; chown f 0 0; stat f mode -> 0755; chmod f 6755; chown f 1 -1; stat f mode -> 0755
== chown of nothing clears set-ID bits, too | Linux chown(2)
create f 6755; chown f -1 -1; stat f mode -> 0755
== chown leaves set-group-ID without execution by the group | chown(2)
create f 6745; chown f 1 1; stat f mode -> 2745
== chown leaves the bits of a directory | chown(2)
mkdir d; chmod d 7755; chown d 1 1; stat d mode -> 7755
== chown by another is refused, whatever the bits are | chown(2): EPERM
create f 6755; @65534 chown f -1 0 -> EPERM; stat f mode -> 6755
== a write clears set-ID bits | write(2)
create f 6777; chmod . 0777; @65534 write f text; stat f mode -> 0777; chmod f 6777; write f text; stat f mode -> 6777
== truncation clears set-ID bits | truncate(2)
write f text O_CREAT,O_WRONLY; chmod f 6777; @65534 truncate f 3; stat f mode -> 0777; chmod f 6777
@65534 ftruncate f 2; stat f mode -> 0777
chmod f 6777; @65534 open f O_WRONLY,O_TRUNC; stat f mode -> 0777
== fallocate clears set-ID bits | Linux file_modified
create f 6777; @65534 hold d f O_RDWR; @65534 range d allocate 0 10; stat f mode -> 0777
== a punched hole clears set-ID bits | Linux file_modified
write f text O_CREAT,O_WRONLY; chmod f 6777; @65534 hold d f O_RDWR; @65534 range d punch 0 2; stat f mode -> 0777
== copy_file_range clears set-ID bits | Linux file_modified
write a text O_CREAT,O_WRONLY; chmod a 0644; create f 6777; @65534 hold a a O_RDONLY; @65534 hold f f O_RDWR
@65534 copy_range a f 4 0 0 -> 4; stat f mode -> 0777
== a write by a member of another group clears set-group-ID of a file that the group may not execute | Linux 6.2
create f 2666; @65534 write f text; stat f mode -> 0666
!weightfs got 2666: GUARANTEES: FUSE leaves the bit if the group may not execute the file
== links and renames leave set-ID bits | link(2), rename(2)
create f 6755; link f g; rename g h; stat h mode -> 6755; utime f 1 1; stat f mode -> 6755; attribute f user.a b
stat f mode -> 6755
== a list of three entries is the mode | acl(5): minimal ACL
create f 0600; acl f access u::rw-,g::r--,o::--x; stat f mode -> 0641; show_acl f access -> ENODATA
list_attributes f -> nothing
== the mask is in the bits of the group | acl(5): CORRESPONDENCE
create f 0600; acl f access u::rw-,u:65534:rwx,g::r--,m::rw-,o::---; stat f mode -> 0660
show_acl f access -> u::rw-,u:65534:rwx,g::r--,m::rw-,o::---
== chmod of the group changes the mask | acl(5): CORRESPONDENCE
create f 0600; acl f access u::rw-,u:65534:rwx,g::r--,m::rw-,o::---; chmod f 0701
show_acl f access -> u::rwx,u:65534:rwx,g::r--,m::---,o::--x; @65534 open f O_RDONLY -> EACCES; chmod f 0770
@65534 open f O_RDWR
== the mask limits named users and groups | acl(5): ACCESS CHECK
create f 0600; acl f access u::rw-,u:65534:rwx,g::r--,g:1234:rw-,m::r--,o::---; @65534 open f O_RDONLY
@65534 open f O_RDWR -> EACCES; @65533:1234 open f O_RDONLY; @65533:1234 open f O_WRONLY -> EACCES
== the mask limits neither owner nor others | acl(5): ACCESS CHECK
create f 0600; acl f access u::rw-,u:1:r--,g::---,m::---,o::rw-; chown f 65534 0; @65534 open f O_RDWR
@65533 open f O_RDWR
== a named user's entry comes before the groups' | acl(5): ACCESS CHECK
create f 0600; acl f access u::rw-,u:65534:---,g::rw-,g:1234:rw-,m::rw-,o::rw-; @65534:1234 open f O_RDONLY -> EACCES
== any group that grants everything suffices, and no two together | acl(5): ACCESS CHECK
create f 0600; acl f access u::rw-,g::---,g:1:r--,g:2:-w-,m::rw-,o::---; @65534:65534,1,2 open f O_RDONLY
@65534:65534,1,2 open f O_WRONLY; @65534:65534,1,2 open f O_RDWR -> EACCES
== a group that matches and denies hides the others' entry | acl(5): ACCESS CHECK
create f 0600; acl f access u::rw-,g::---,g:1:---,m::r--,o::rw-; @65534:65534,1 open f O_RDONLY -> EACCES
@65534 open f O_RDWR
== a list with names needs a mask | acl(5): VALID ACLs
create f 0640; acl f access u::rw-,u:1:r--,g::r--,o::--- -> EINVAL; stat f mode -> 0640; show_acl f access -> ENODATA
== a list has an entry of each class | acl(5): VALID ACLs
create f; acl f access u::rw-,g::r-- -> EINVAL; acl f access g::r--,o::r-- -> EINVAL
acl f access u::rw-,o::r-- -> EINVAL
== a list names nobody twice | acl(5): VALID ACLs
create f; acl f access u::rw-,u:1:r--,u:1:rw-,g::r--,m::rw-,o::--- -> 0|EINVAL
acl f access u::rw-,u::r--,g::r--,o::--- -> EINVAL
== a list is in order | Linux posix_acl_valid: EINVAL
create f; acl f access g::r--,u::rw-,o::--- -> EINVAL; acl f access u::rw-,g::r--,o::---,m::rw- -> EINVAL
== a list has a version and whole entries | Linux posix_acl_from_xattr
create f; bad_acl f 03000000 -> ENOTSUP; bad_acl f 020000 -> EINVAL; bad_acl f 0200000001 -> EINVAL
bad_acl f 02000000030000000000ffff -> EINVAL
== a list without entries removes the list | Linux posix_acl_from_xattr
create f 0600; acl f access u::rw-,u:1:rwx,g::r--,m::rwx,o::---; acl f access; show_acl f access -> ENODATA
== removing a list leaves the mode | acl(5)
create f 0600; acl f access u::rw-,u:1:rwx,g::r--,m::rwx,o::---; drop_acl f access; show_acl f access -> ENODATA
stat f uid -> 0
== removing a list that is not there | Linux vfs_remove_acl
create f; drop_acl f access; mkdir d; drop_acl d default
== a list moves ctime | acl(5), setxattr(2)
create f; mark f; acl f access u::rw-,u:1:r--,g::r--,m::r--,o::---; newer f ctime; same f mtime atime; mark f
drop_acl f access; newer f ctime; same f mtime
== a list is the owner's | acl(5): EPERM
create f 0666; @65534 acl f access u::rw-,g::rw-,o::rw- -> EPERM; chown f 65534 65534
@65534 acl f access u::rw-,u:1:r--,g::r--,m::r--,o::---; @65533 drop_acl f access -> EPERM
== a list is read by everybody who finds the file | acl(5)
create f 0600; acl f access u::rw-,u:1:r--,g::---,m::r--,o::---
@65534 show_acl f access -> u::rw-,u:1:r--,g::---,m::r--,o::---
== a list stays with the file | rename(2), link(2), chown(2)
create f; acl f access u::rw-,u:1:r--,g::r--,m::r--,o::---; link f g; rename f h; chown h 5 6
show_acl h access -> u::rw-,u:1:r--,g::r--,m::r--,o::---; show_acl g access -> u::rw-,u:1:r--,g::r--,m::r--,o::---
== a list of a directory decides about its names | acl(5)
mkdir d 0700; acl d access u::rwx,u:65534:rwx,g::---,m::rwx,o::---; @65534 create d/f; @65533 create d/g -> EACCES
acl d access u::rwx,u:65534:r-x,g::---,m::rwx,o::---; @65534 create d/h -> EACCES; @65534 list d -> f
== a default list is a directory's | acl(5): EACCES
create f; acl f default u::rw-,g::r--,o::--- -> EACCES; acl f default; show_acl f default -> ENODATA
== a default list gives no permission of the directory itself | acl(5)
mkdir d 0700; acl d default u::rwx,u:65534:rwx,g::rwx,m::rwx,o::rwx; stat d mode -> 0700; @65534 list d -> EACCES
show_acl d access -> ENODATA
== a new file has the default list within the mode asked for | acl(5): OBJECT CREATION
mkdir d; acl d default u::rwx,u:65534:rwx,g::r-x,m::rwx,o::r-x; create d/f 0640
show_acl d/f access -> u::rw-,u:65534:rwx,g::r-x,m::r--,o::---; stat d/f mode -> 0640; show_acl d/f default -> ENODATA
== a default list replaces the umask | acl(5): OBJECT CREATION
mkdir d; acl d default u::rwx,g::rwx,o::rwx; umask 0077; create d/f 0666; stat d/f mode -> 0666; mkdir d/e 0777
stat d/e mode -> 0777; mkfifo d/p 0666; lstat d/p mode -> 0666; create g 0666; stat g mode -> 0600
== a new directory has the default list as both lists | acl(5): OBJECT CREATION
mkdir d; acl d default u::rwx,u:65534:r-x,g::r-x,m::r-x,o::---; mkdir d/e 0777
show_acl d/e default -> u::rwx,u:65534:r-x,g::r-x,m::r-x,o::---
show_acl d/e access -> u::rwx,u:65534:r-x,g::r-x,m::r-x,o::---
mkdir d/e/f 0700; show_acl d/e/f access -> u::rwx,u:65534:r-x,g::r-x,m::---,o::---
== nodes have the default list | acl(5): OBJECT CREATION
mkdir d; acl d default u::rwx,u:65534:rw-,g::r--,m::rw-,o::---; mknod d/n fifo 0666
show_acl d/n access -> u::rw-,u:65534:rw-,g::r--,m::rw-,o::---
== a link has no list | acl(5)
mkdir d; acl d default u::rwx,u:1:rwx,g::rwx,m::rwx,o::rwx; symlink x d/l; lstat d/l mode -> 0777
== a file without a name has the default list | acl(5): OBJECT CREATION
mkdir d; acl d default u::rwx,u:65534:rw-,g::r--,m::rw-,o::---; hold t d O_TMPFILE,O_RDWR 0666
show_acl @t access -> u::rw-,u:65534:rw-,g::r--,m::rw-,o::---
?weightfs ENOTSUP: GUARANTEES: O_TMPFILE needs libfuse 3.17
== a file that moves into a directory with a default list keeps its own | rename(2), link(2)
mkdir d; acl d default u::rwx,u:1:rwx,g::rwx,m::rwx,o::rwx; create f 0600; rename f d/f; show_acl d/f access -> ENODATA
stat d/f mode -> 0600
== a default list is removed | acl(5)
mkdir d; acl d default u::rwx,u:1:rwx,g::rwx,m::rwx,o::rwx; drop_acl d default; show_acl d default -> ENODATA
create d/f 0640; show_acl d/f access -> ENODATA; stat d/f mode -> 0640
== a minimal default list leaves no list | acl(5): OBJECT CREATION
mkdir d; acl d default u::rw-,g::r--,o::---; create d/f 0777; stat d/f mode -> 0640; show_acl d/f access -> ENODATA
== a set-group-ID directory with a default list gives group and list | acl(5), mkdir(2)
mkdir d; chown d 0 1234; chmod d 2777; acl d default u::rwx,u:65534:rwx,g::r-x,m::rwx,o::---; @65534 mkdir d/e 0777
stat d/e gid -> 1234; stat d/e mode -> 2770; show_acl d/e access -> u::rwx,u:65534:rwx,g::r-x,m::rwx,o::---
== a list clears set-group-ID of a file of another group | Linux posix_acl_update_mode
create f; chown f 65534 65533; chmod f 2755; @65534 acl f access u::rwx,g::rwx,o::r-x; stat f mode -> 0775
== access(2) knows lists | access(2)
create f 0600; acl f access u::rw-,u:65534:r-x,g::---,m::r-x,o::---; @65534 access f r -> True
@65534 access f w -> False
@65534 access f x -> True
"""
