/* SPDX-License-Identifier: Apache-2.0 */
/* HDF5's file driver `weightfs` for programs that link HDF5 1.10 or newer, in C or C++:
 *
 *   hid_t fapl = H5Pcreate(H5P_FILE_ACCESS);
 *   H5Pset_fapl_weightfs(fapl, NULL);
 *   hid_t file = H5Fopen("/mnt/tensors/data.h5", H5F_ACC_RDONLY, fapl);
 *
 * Link libweightfs_hdf5 and the HDF5 that it was built with. Files are plain HDF5, which every other driver reads. The
 * functions are as thread-safe as the HDF5 library. docs/HDF5.md describes the settings. */
#ifndef WEIGHTFS_HDF5_FAPL_H
#define WEIGHTFS_HDF5_FAPL_H

#include <hdf5.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIGHTFS_FAPL_VERSION 1

typedef enum weightfs_sync_t {
  WEIGHTFS_SYNC_FLUSH = 0, /* H5Fflush and H5Dflush make all writes durable before they return */
  WEIGHTFS_SYNC_CLOSE = 1, /* also H5Fclose */
  WEIGHTFS_SYNC_NEVER = 2  /* the filesystem commits at its own interval */
} weightfs_sync_t;

typedef enum weightfs_direct_t {
  WEIGHTFS_DIRECT_AUTO = 0,   /* bypass the mount if it grants a lease */
  WEIGHTFS_DIRECT_NEVER = 1,  /* through the mount */
  WEIGHTFS_DIRECT_REQUIRE = 2 /* a large request without a lease fails */
} weightfs_direct_t;

/* In every field except version, 0 means the default. */
typedef struct weightfs_fapl_t {
  uint32_t version;       /* WEIGHTFS_FAPL_VERSION */
  uint32_t num_threads;   /* slices of a large request, each with its own thread and ring; 2 */
  uint32_t queue_depth;   /* maximum number of transfers in the kernel, per thread; 32 */
  uint32_t sync;          /* weightfs_sync_t */
  uint32_t direct;        /* weightfs_direct_t */
  uint32_t no_read_ahead; /* 1: no read-ahead */
  uint64_t block_size;    /* bytes per transfer; 1 MiB */
  uint64_t direct_size;   /* bytes; reads of at least this size bypass the cache, and so do writes that are also at
                             least a quarter of `cache`; 8 MiB */
  uint64_t cache;         /* bytes per file: half for buffered writes, half for reads; 64 MiB */
  uint64_t read_ahead;    /* bytes; maximum window of short sequential reads; 1 MiB */
} weightfs_fapl_t;

/* Makes the files that are opened with this list use the driver. NULL: default settings. Returns a negative value, with
 * an entry on HDF5's error stack, if a value is invalid. */
__attribute__((visibility("default"))) herr_t H5Pset_fapl_weightfs(hid_t fapl_id, const weightfs_fapl_t* settings);

/* Copies the settings of a list that has the driver, with defaults filled in. Negative for any other list. */
__attribute__((visibility("default"))) herr_t H5Pget_fapl_weightfs(hid_t fapl_id, weightfs_fapl_t* settings);

/* Registers the driver at the first call. Returns its ID, which H5Pget_driver returns for a list that has it. */
__attribute__((visibility("default"))) hid_t H5FD_weightfs_init(void);

/* Returns the number of operations of this process that bypassed a mount by a lease. */
__attribute__((visibility("default"))) uint64_t weightfs_fapl_direct_operations(void);

#ifdef __cplusplus
}
#endif

#endif /* WEIGHTFS_HDF5_FAPL_H */
