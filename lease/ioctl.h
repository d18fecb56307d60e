/* SPDX-License-Identifier: Apache-2.0 */
/* The ioctls of a weightfs mount, for C and C++ programs. Public ABI: a structure never changes; a new version gets a
 * new structure and a new number. Little-endian, no padding. ENOTTY means: not a weightfs mount, or an older version.
 * EINVAL means: the requested `version` is not known. */
#ifndef WEIGHTFS_IOCTL_H
#define WEIGHTFS_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define WEIGHTFS_IOC_MAGIC 'W'
#define WEIGHTFS_IOC_VERSION 1

/* For any file or directory of the mount. */
struct weightfs_info {
  __u32 version; /* out: WEIGHTFS_IOC_VERSION */
  __u32 format;  /* of the store */
  __u8 store_id[16];
  __u64 features; /* WEIGHTFS_FEATURE_* */
  __u64 inode;    /* of the descriptor */
  __u64 reserved[4];
};

#define WEIGHTFS_FEATURE_EXTENTS 1 /* WEIGHTFS_IOC_EXTENTS answers */
#define WEIGHTFS_FEATURE_STATS 2   /* WEIGHTFS_IOC_STATS answers */
#define WEIGHTFS_FEATURE_READ_ONLY 4
#define WEIGHTFS_FEATURE_LEASES 8 /* WEIGHTFS_IOC_LEASE answers trusted callers */
#define WEIGHTFS_FEATURE_SCRUB 16 /* WEIGHTFS_IOC_SCRUB answers */
#define WEIGHTFS_FEATURE_UNVERIFIED 32 /* reads are not compared with checksums (noverify) */

/* One extent of a file. */
struct weightfs_extent {
  __u64 first;    /* bytes from the start of the file */
  __u64 length;   /* bytes; the last run may reach past the end of the file */
  __u64 physical; /* bytes from the start of the device */
  __u32 device;   /* index in the store */
  __u32 flags;    /* WEIGHTFS_EXTENT_* */
};

#define WEIGHTFS_EXTENT_UNWRITTEN 1 /* allocated, reads as zeros */
#define WEIGHTFS_EXTENT_SHARED 2

#define WEIGHTFS_EXTENTS_MAX 64

/* For a regular file. Lists the extents from `start` on, in order and without holes. Data not yet written to a device
 * has no extent: call fsync first. To continue, repeat the call: `start` is set to the start of the next part. */
struct weightfs_extents {
  __u32 version; /* in */
  __u32 count;   /* out: entries filled in; fewer than WEIGHTFS_EXTENTS_MAX at the end */
  __u64 start;   /* in: bytes; out: start of the next call */
  __u64 reserved[2];
  struct weightfs_extent extents[WEIGHTFS_EXTENTS_MAX];
};

#define WEIGHTFS_EXTENT_LIST_MAX 510 /* an ioctl takes no larger structure */

/* The same, for files of many extents. ENOTTY from mounts of version 0.2 and older. */
struct weightfs_extent_list {
  __u32 version;
  __u32 count;
  __u64 start;
  __u64 pending; /* out, with the last extents: bytes of the whole file that have none yet, in whole blocks */
  __u64 reserved;
  struct weightfs_extent extents[WEIGHTFS_EXTENT_LIST_MAX];
};

/* Counters since the mount, and gauges. In bytes unless the name says otherwise. */
struct weightfs_stats {
  __u32 version;
  __u32 read_only;
  __u64 read_bytes, written_bytes;
  __u64 device_read_bytes, device_written_bytes; /* including leases, and what scrubs read */
  __u64 commits, flushes, checksum_errors;
  __u64 buffer_capacity, buffer_in_use, dirty_bytes;
  __u64 resident_inodes;
  __u64 total_bytes, free_bytes, available_bytes;
  __u64 requests; /* served by this mount */
  __u64 write_buffers, write_buffers_in_use;
  __u64 leases;                      /* held now */
  __u64 pinned_bytes, granted_bytes; /* by leases: for reading, and for writing */
  /* The parts of device_read_bytes and device_written_bytes that are due to leases: the bytes covered by each lease for
   * reading, and the bytes committed by leases. Always 0 from older mounts, which did not count them. */
  __u64 leased_read_bytes, leased_written_bytes;
  __u64 log_bytes;  /* of the log on the devices, with its checkpoint */
  __u32 log_intact; /* 0: it failed, or a damaged part of it is written anew */
  __u32 log_reserved;
  __u64 device_requests; /* in flight now. Always 0 from mounts of version 0.1 */
};

/* For any file or directory of the mount: its hot files (mount option cache_memory=). In bytes unless the name says
 * otherwise; the last three since the mount. ENOTTY from mounts of version 0.2 and older. */
struct weightfs_hot {
  __u32 version;
  __u32 reserved_flags;
  __u64 limit, used; /* of memory; 0: the mount has no hot files */
  __u64 mapped;      /* returned to programs as memory to map */
  __u64 loaded;      /* read from the devices for that */
  __u64 evictions;   /* number of files that gave their memory to others */
  __u64 reserved[4];
};

#define WEIGHTFS_IOC_HOT _IOR(WEIGHTFS_IOC_MAGIC, 17, struct weightfs_hot)

#define WEIGHTFS_METRICS_KINDS 24
#define WEIGHTFS_METRICS_BUCKETS 96
#define WEIGHTFS_METRICS_STEPS 4 /* buckets from a latency to twice that */

struct weightfs_kind_metrics {
  __u64 count, errors, bytes, nanoseconds; /* since the mount; the time there: from arrival to answer */
  __u32 buckets[WEIGHTFS_METRICS_BUCKETS]; /* of latencies: number i counts those above bound(i - 1) and up to bound(i),
                                              where bound(i) is 2^(i / WEIGHTFS_METRICS_STEPS) microseconds; the last
                                              has no bound. They wrap around */
};

/* For any file or directory of the mount: its requests by kind. The kinds are, in order: lookup, getattr, setattr,
 * create, open, read, write, sync, close, list, remove, rename, xattr, other, lease. */
struct weightfs_metrics {
  __u32 version;
  __u32 count; /* of kinds */
  struct weightfs_kind_metrics kinds[WEIGHTFS_METRICS_KINDS];
};

#define WEIGHTFS_TOP_MAX 100

#define WEIGHTFS_TOP_OTHERS 0xffffffffffffffffULL

struct weightfs_top_entry {
  __u64 id; /* a process, as the mount's process sees it (0: the kernel, or a process that it does not see), or an
               inode; WEIGHTFS_TOP_OTHERS: all that found no place */
  __u64 read_bytes, written_bytes, leased_read_bytes, leased_written_bytes;
  __u64 requests, nanoseconds;
  char name[16]; /* of the program of a process; not terminated if it has 16 bytes; empty: unknown */
};

/* For any file or directory of the mount; for root with CAP_DAC_OVERRIDE and the user who runs the mount (EPERM). What
 * processes and files have done since an earlier call, without the callers; the busiest ones. The mount counts for ten
 * seconds after each call. */
struct weightfs_top {
  __u32 version;          /* in */
  __u32 processes, files; /* out: number of entries */
  __u32 reserved;
  __u64 since;      /* in: `next` of the earlier call; 0 for the first, which has no entries */
  __u64 next;       /* out */
  __u64 watched_ns; /* out: how long the entries were counted; longer than since that call if it is too long ago */
  struct weightfs_top_entry process[WEIGHTFS_TOP_MAX], file[WEIGHTFS_TOP_MAX];
};

#define WEIGHTFS_SCRUB_DAMAGES_MAX 32

struct weightfs_scrub_findings {
  __u64 blocks, files; /* damaged blocks, and files that have some */
  __u32 catalog;       /* 1: the catalog is damaged */
  __u32 log;           /* 1: the log on the devices was damaged */
};

/* A damaged file. */
struct weightfs_scrub_damage {
  __u64 inode;
  __u64 offset;    /* bytes: of its first damaged block */
  __u64 blocks;    /* damaged blocks */
  __u32 running;   /* 1: found by the scrub in progress; 0: by the last complete one */
  __u32 path_size; /* bytes; 0: unknown, too long, or hidden from callers who neither run the mount nor are root */
  char path[224];  /* from the root of the mount, without a leading slash; not terminated */
};

/* For any file or directory of the mount: the scrubs of this store (mount option scrub=). Times are in nanoseconds
 * since the epoch; 0: never. */
struct weightfs_scrub {
  __u32 version;
  __u32 running;                    /* 1: a scrub is in progress, or was interrupted and has not been continued */
  __u64 period_ms;                  /* between the starts of two scrubs; 0: this mount starts none */
  __s64 started_ns;                 /* of the scrub in progress */
  __s64 next_ns;                    /* when the next one begins; 0: unknown */
  __s64 remaining_ns;               /* of the scrub in progress, estimated; 0: unknown */
  __u64 checked_bytes, total_bytes; /* of the scrub in progress; the total is estimated */
  __u64 rate;                       /* bytes per second, planned */
  __s64 last_started_ns, last_completed_ns; /* of the last complete scrub */
  struct weightfs_scrub_findings found, last_found;
  __u32 count; /* of entries in damages */
  __u32 reserved;
  struct weightfs_scrub_damage damages[WEIGHTFS_SCRUB_DAMAGES_MAX]; /* the first of each scrub */
};

/* For any file or directory of the mount; for root with CAP_DAC_OVERRIDE and the user who runs the mount (EPERM). Reads
 * the tables of the catalog from the disk and compares them with their checksums, except the records since its last
 * flush. EINTR: a signal interrupted it, perhaps one that the program does not see (SIGCONT): call it again. EBUSY:
 * another check is in progress. ESHUTDOWN: the mount ends. ENOTTY from mounts of version 0.2 and older. */
struct weightfs_catalog_check {
  __u32 version; /* in */
  __u32 damaged; /* out: 1: a table differs from its checksums; those behind it were not read */
  __u64 bytes;   /* out: read without damage */
  __u64 reserved[2];
  char damage[480]; /* out: the table, and its error; NUL-terminated, may be cut */
};

#define WEIGHTFS_IOC_CHECK_CATALOG _IOWR(WEIGHTFS_IOC_MAGIC, 16, struct weightfs_catalog_check)

#define WEIGHTFS_RANGE_CHECK_MAX 1048576

/* For a regular file that is open for reading (EBADF). Reads a part of it from the devices, whatever of it is in memory,
 * and compares it with its checksums, unless the mount verifies nothing (WEIGHTFS_FEATURE_UNVERIFIED). EIO: it differs,
 * or cannot be read. Bytes that are not on a device yet, and behind the end, count as intact. ENOTTY from mounts of
 * version 0.2 and older. */
struct weightfs_range_check {
  __u32 version; /* in */
  __u32 reserved;
  __u64 offset; /* in: bytes */
  __u64 length; /* in: bytes, at most WEIGHTFS_RANGE_CHECK_MAX */
};

#define WEIGHTFS_IOC_CHECK_RANGE _IOW(WEIGHTFS_IOC_MAGIC, 18, struct weightfs_range_check)

/* For a regular file; takes no argument. Drops its clean data from the caches of the daemon and of the kernel, so that
 * the next read is cold. For benchmarks. EPERM: the descriptor is not open for writing, and the caller neither owns the
 * file nor has CAP_FOWNER. */
#define WEIGHTFS_IOC_DROP_CACHE _IO(WEIGHTFS_IOC_MAGIC, 4)

/* Returns a ticket for leases (lease/protocol.h): direct access to the devices of the store, for the bytes of this
 * file, with the access mode of this descriptor. On a directory: for many of its files at once. EPERM: the mount's
 * option direct= does not trust the caller, or the caller is user 0 without CAP_DAC_OVERRIDE. EOPNOTSUPP: leases are
 * off. ESRCH: the mount may not call pidfd_open(2). */
struct weightfs_lease_ticket {
  __u32 version;   /* in */
  __u32 protocol;  /* out: of the socket */
  __u8 token[16];  /* out: valid for this process, while the descriptor is open */
  char socket[96]; /* out: NUL-terminated name in the abstract namespace (without its leading NUL) */
};

#define WEIGHTFS_IOC_LEASE _IOWR(WEIGHTFS_IOC_MAGIC, 5, struct weightfs_lease_ticket)

/* A ticket and a lease in one call: the mount serves the request as if it had come through a connection of the caller
 * to the socket, and sends its answer there. kIdentify alone asks whether the connection exists, and is not answered
 * there. ENOTCONN: this process has no such connection. EBUSY: the connection has a request waiting. Otherwise as
 * WEIGHTFS_IOC_LEASE; refusals of the lease itself are in the answer. */
struct weightfs_lease_request {
  __u32 version;    /* in */
  __u32 kind;       /* in: kRead, kReserve, kReserveInPlace, kMap, kMapLoaded or kIdentify of lease/protocol.h */
  __u64 connection; /* in: Identity::connection */
  __u64 offset;     /* in: bytes; of ReadRequest or ReserveRequest */
  __u64 length;     /* in: bytes of a ReadRequest, blocks of a ReserveRequest */
  __u8 token[16];   /* out: valid while the descriptor is open */
  __u64 reserved[2];
};

#define WEIGHTFS_IOC_LEASE_REQUEST _IOWR(WEIGHTFS_IOC_MAGIC, 8, struct weightfs_lease_request)

/* For a directory. The kernel checks no ioctl for read-only mounts, and does not say through which mount a directory
 * was opened. So before each change of a directory by an ioctl or a lease, the program must make the kernel check the
 * mount: it sets the attribute WEIGHTFS_CHANGE_ATTRIBUTE to the key of its descriptor, by
 * fsetxattr(descriptor, WEIGHTFS_CHANGE_ATTRIBUTE, key, sizeof(key), 0), which fails with EROFS on a read-only mount.
 * This permits one change through this descriptor, which begins within half a minute, if the caller has the rights to
 * it. The attribute itself does not exist. A token of WEIGHTFS_IOC_LEASE is also a key. */
struct weightfs_change_key {
  __u32 version; /* in */
  __u32 reserved;
  __u8 key[16]; /* out: valid for this user, while the descriptor is open */
};

#define WEIGHTFS_CHANGE_ATTRIBUTE "system.weightfs.change"
#define WEIGHTFS_IOC_CHANGE_KEY _IOWR(WEIGHTFS_IOC_MAGIC, 14, struct weightfs_change_key)

/* A published directory: it and everything below it are immutable, and every change fails with EPERM. */
struct weightfs_publication {
  __u32 version; /* in: WEIGHTFS_IOC_VERSION */
  __u32 error;   /* out: 0, or the errno of PUBLISH and UNPUBLISH; the ioctl itself then succeeds */
  __u64 number;  /* the version of the publication, below 2^63. PUBLISH: in, 0: from the time; all: out */
  __u8 id[16];   /* out: random, different for each publication */
  __s64 time_ns; /* out: since the epoch */
  __u64 files;   /* out: regular files */
  __u64 bytes;   /* out: their sizes together */
  __u64 reserved[2];
  char path[248]; /* out: with an error, the inode at fault, relative to the directory; NUL-terminated, may be cut */
};

/* For a directory that the caller owns, with everything below it; EROFS without WEIGHTFS_CHANGE_ATTRIBUTE. Publishes it
 * in one commit: on return it is complete, durable and immutable. A directory that is published already keeps its
 * publication, which is returned. `error`: ETXTBSY: a file is open for writing. EBUSY: a part is published, or being
 * published, by itself. EEXIST: published with another number. EMLINK: a file has another name outside. E2BIG: more
 * than 131,072 inodes. EPERM: of another user, and the caller lacks CAP_FOWNER. EINVAL: the root directory. */
#define WEIGHTFS_IOC_PUBLISH _IOWR(WEIGHTFS_IOC_MAGIC, 11, struct weightfs_publication)
/* Reverts it; EROFS as above. `error` ENODATA: the directory was not published by itself. ETXTBSY: the
 * kernel reads a file that is open or mapped from hot memory. EAGAIN: another call is reverting it. */
#define WEIGHTFS_IOC_UNPUBLISH _IOWR(WEIGHTFS_IOC_MAGIC, 12, struct weightfs_publication)
/* Returns the publication of a directory. ENODATA: the directory was not published by itself. */
#define WEIGHTFS_IOC_PUBLICATION _IOWR(WEIGHTFS_IOC_MAGIC, 13, struct weightfs_publication)

/* For any file or directory of the mount; needs CAP_SYS_ADMIN. The daemon refuses all changes (1), or allows changes
 * again (0). With 1 everything is durable on return. EROFS for 0: the store was opened read-only. `mount -o remount`
 * uses this call and also updates the kernel. */
#define WEIGHTFS_IOC_READ_ONLY _IOW(WEIGHTFS_IOC_MAGIC, 6, __u32)

#define WEIGHTFS_IOC_INFO _IOR(WEIGHTFS_IOC_MAGIC, 1, struct weightfs_info)
#define WEIGHTFS_IOC_EXTENTS _IOWR(WEIGHTFS_IOC_MAGIC, 2, struct weightfs_extents)
#define WEIGHTFS_IOC_EXTENT_LIST _IOWR(WEIGHTFS_IOC_MAGIC, 15, struct weightfs_extent_list)
#define WEIGHTFS_IOC_SCRUB _IOR(WEIGHTFS_IOC_MAGIC, 7, struct weightfs_scrub)
#define WEIGHTFS_IOC_METRICS _IOR(WEIGHTFS_IOC_MAGIC, 9, struct weightfs_metrics)
#define WEIGHTFS_IOC_TOP _IOWR(WEIGHTFS_IOC_MAGIC, 10, struct weightfs_top)
#define WEIGHTFS_IOC_STATS _IOR(WEIGHTFS_IOC_MAGIC, 3, struct weightfs_stats)

#endif
