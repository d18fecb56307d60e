# SPDX-License-Identifier: Apache-2.0
"""Rules of extended attributes: namespaces, flags, limits, permissions. See posix_rules."""

ATTRIBUTES = """
== an attribute is set, replaced, read and removed | setxattr(2)
create f; attribute f user.a one; getxattr f user.a -> one; attribute f user.a second; getxattr f user.a -> second
remove_attribute f user.a; getxattr f user.a -> ENODATA; list_attributes f -> nothing
== an attribute may be empty | setxattr(2)
create f; attribute f user.a {empty}; read_attribute f user.a 0 -> 0; list_attributes f -> user.a
== an attribute that is not there | getxattr(2), removexattr(2): ENODATA
create f; getxattr f user.a -> ENODATA; remove_attribute f user.a -> ENODATA; getxattr f trusted.a -> ENODATA
getxattr f security.a -> ENODATA
== XATTR_CREATE of an attribute that exists | setxattr(2): EEXIST
create f; attribute f user.a b create; attribute f user.a c create -> EEXIST; getxattr f user.a -> b
== XATTR_REPLACE of an attribute that does not | setxattr(2): ENODATA
create f; attribute f user.a b replace -> ENODATA; list_attributes f -> nothing
== flags that are none | setxattr(2): EINVAL
create f; attribute f user.a b unknown -> EINVAL
== a buffer that is too small | getxattr(2), listxattr(2): ERANGE
create f; attribute f user.a value; read_attribute f user.a 4 -> ERANGE; read_attribute f user.a 5 -> 5
list_attributes f 6 -> ERANGE; list_attributes f 7 -> 7
== a buffer of 0 asks for the size | getxattr(2), listxattr(2)
create f; attribute f user.a value; read_attribute f user.a 0 -> 5; list_attributes f 0 -> 7
== a name has 255 bytes at most | setxattr(2): ERANGE
create f; attribute f user.{n250} v; getxattr f user.{n250} -> v; attribute f user.{n251} v -> ERANGE
read_attribute f user.{n251} 0 -> ERANGE; remove_attribute f user.{n251} -> ERANGE
== a name is in a namespace | xattr(7): EOPNOTSUPP
create f; attribute f none v -> ENOTSUP; attribute f other.a v -> ENOTSUP; attribute f system.a v -> ENOTSUP
getxattr f other.a -> ENOTSUP
== the empty name | setxattr(2): ERANGE
create f; attribute f {empty} v -> ERANGE
== a namespace alone is no name | xattr(7): EINVAL
create f; attribute f user. v -> EINVAL; getxattr f user. -> EINVAL
== a value has 64 KiB at most | setxattr(2): E2BIG
create f; attribute f user.a x - 65537 -> E2BIG; list_attributes f -> nothing
== a value of 64 KiB | xattr(7): FILESYSTEM-SPECIFIC limits
create f; attribute f user.a x - 65536; read_attribute f user.a 0 -> 65536
!ext4 ENOSPC: ext4 has one block for the attributes of a file
== a value of 800 bytes | xattr(7)
create f; attribute f user.a x - 800; read_attribute f user.a 0 -> 800
== attributes of many names | listxattr(2)
create f; attribute f user.b 1; attribute f user.a 2; attribute f trusted.c 3
list_attributes f -> trusted.c user.a user.b
== user attributes are of files and directories | xattr(7): EPERM
create f; mkdir d; mkfifo p; mknod c char 0666 1 3; mknod s socket; attribute f user.a b; attribute d user.a b
attribute p user.a b -> EPERM; attribute c user.a b -> EPERM; attribute s user.a b -> EPERM
== a link has no user attributes | xattr(7): EPERM
symlink x l; lattribute l user.a b -> EPERM; lattribute l trusted.a b
== an attribute through a link is its target's | setxattr(2)
create f; symlink f l; attribute l user.a b; getxattr f user.a -> b
== user attributes need permission to write and to read | xattr(7): EACCES
create f 0644; create g 0622; attribute g user.a b; @65534 attribute f user.a b -> EACCES
@65534 getxattr g user.a -> EACCES
@65534 attribute g user.a c; @65534 remove_attribute f user.a -> EACCES
== the names of attributes need no permission | listxattr(2)
create f 0600; attribute f user.a b; @65534 list_attributes f -> user.a
== user attributes of a sticky directory are the owner's | xattr(7): EPERM
mkdir s 1777; @65534 attribute s user.a b -> EPERM; chown s 65534 65534; @65534 attribute s user.a b
== trusted attributes are for CAP_SYS_ADMIN | xattr(7): EPERM
create f 0666; chown f 65534 65534; attribute f trusted.a b; getxattr f trusted.a -> b
@65534 attribute f trusted.a c -> EPERM
@65534 getxattr f trusted.a -> ENODATA; @65534 list_attributes f -> nothing
@65534 remove_attribute f trusted.a -> EPERM
== security attributes are set by CAP_SYS_ADMIN and read by everybody | xattr(7): EPERM
create f 0666; chown f 65534 65534; attribute f security.a b; @65534 attribute f security.a c -> EPERM
@65534 getxattr f security.a -> b
== trusted attributes are of every kind of file | xattr(7)
mkfifo p; mknod c char 0666 1 3; attribute p trusted.a b; attribute c trusted.a b; getxattr p trusted.a -> b
== setting an attribute moves ctime | setxattr(2), Linux
create f; mark f; attribute f user.a b; newer f ctime; same f mtime atime; mark f; attribute f user.a b; newer f ctime
mark f; remove_attribute f user.a; newer f ctime; same f mtime
!ext4 ctime: ext4 does not write a value that is there already
== setting an attribute of a directory moves ctime | setxattr(2), Linux
mkdir d; mark d; attribute d user.a b; newer d ctime; same d mtime
== reading attributes moves no times | getxattr(2)
create f; attribute f user.a b; mark f; getxattr f user.a -> b; list_attributes f -> user.a; same f ctime mtime atime
== a failed change moves no times | setxattr(2)
create f; attribute f user.a b; mark f; attribute f user.a c create -> EEXIST; remove_attribute f user.b -> ENODATA
attribute f user.b c replace -> ENODATA; same f ctime mtime
== attributes go with the file | rename(2), link(2)
create f; attribute f user.a b; link f g; rename f h; getxattr g user.a -> b; getxattr h user.a -> b; create f
list_attributes f -> nothing; rename f h; list_attributes h -> nothing; getxattr g user.a -> b
== attributes of a deleted file | fsetxattr(2)
create f; hold d f O_RDWR; unlink f; attribute @d user.a b; getxattr @d user.a -> b; remove_attribute @d user.a
== attributes outlive truncation, modes and owners | xattr(7)
write f text O_CREAT,O_WRONLY; attribute f user.a b; open f O_WRONLY,O_TRUNC; chmod f 0600; chown f 1 1
getxattr f user.a -> b
== attributes of a file that is missing | setxattr(2): ENOENT
attribute f user.a b -> ENOENT; getxattr f user.a -> ENOENT; list_attributes f -> ENOENT
remove_attribute f user.a -> ENOENT
"""
