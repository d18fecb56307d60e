/* SPDX-License-Identifier: Apache-2.0 */
/* HDF5's file driver `weightfs` for programs that link HDF5 1.10 or newer, in C or C++:
 *
 *   hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
 *   H5Pset_fapl_weightfs(fapl, NULL);
 *   hid_t file = H5Fopen("/mnt/tensors/data.h5", H5F_ACC_RDONLY, fapl);
 *
 * Link libweightfs_hdf5 and the HDF5 that it was built with. Files are plain HDF5: every other driver reads them. The
 * functions are as thread-safe as the HDF5 library is. docs/HDF5.md says what each setting does. */
#ifndef WEIGHTFS_HDF5_FAPL_H
#define WEIGHTFS_HDF5_FAPL_H

#include <hdf5.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIGHTFS_FAPL_VERSION 1

typedef enum weightfs_sync_t {
  WEIGHTFS_SYNC_FLUSH = 0, /* H5Fflush and H5Dflush return when all survives a loss of power */
  WEIGHTFS_SYNC_CLOSE = 1, /* H5Fclose too */
  WEIGHTFS_SYNC_NEVER = 2  /* the filesystem decides */
} weightfs_sync_t;

typedef enum weightfs_direct_t {
  WEIGHTFS_DIRECT_AUTO = 0,   /* past the mount where it gives leases */
  WEIGHTFS_DIRECT_NEVER = 1,  /* through the mount */
  WEIGHTFS_DIRECT_REQUIRE = 2 /* a large request that gets no lease is an error */
} weightfs_direct_t;

/* In every field 0 stands for the default. */
typedef struct weightfs_fapl_t {
  uint32_t version;       /* WEIGHTFS_FAPL_VERSION */
  uint32_t num_threads;   /* slices that a large request is cut into, each with a thread and a ring; 2 */
  uint32_t queue_depth;   /* transfers in the kernel at once, for each thread; 32 */
  uint32_t sync;          /* weightfs_sync_t */
  uint32_t direct;        /* weightfs_direct_t */
  uint32_t no_read_ahead; /* 1: none */
  uint64_t block_size;    /* bytes of one transfer; 1 MiB */
  uint64_t direct_size;   /* bytes; requests of at least this go past the cache; 4 MiB */
  uint64_t cache;         /* bytes; bound of buffered writes and of what is read ahead, for each file; 64 MiB */
  uint64_t read_ahead;    /* bytes; the largest window of read-ahead; 8 MiB */
} weightfs_fapl_t;

/* Makes the files that are opened with this list use the driver. NULL: with its defaults. Negative, with an entry on
 * HDF5's error stack, for values that are not possible. */
__attribute__((visibility("default"))) herr_t H5Pset_fapl_weightfs(hid_t fapl_id, const weightfs_fapl_t* settings);

/* The settings of a list that has the driver, with the defaults filled in. Negative for any other list. */
__attribute__((visibility("default"))) herr_t H5Pget_fapl_weightfs(hid_t fapl_id, weightfs_fapl_t* settings);

/* The driver's number in HDF5, which it is registered under at the first call: H5Pget_driver of a list that has it. */
__attribute__((visibility("default"))) hid_t H5FD_weightfs_init(void);

/* How many operations of this process went past a mount, by a lease, so far. */
__attribute__((visibility("default"))) uint64_t weightfs_fapl_direct_operations(void);

#ifdef __cplusplus
}
#endif

#endif /* WEIGHTFS_HDF5_FAPL_H */
