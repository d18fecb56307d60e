// SPDX-License-Identifier: Apache-2.0
// Random reads through a reader of the client library, which bypasses the mount by a lease.
#pragma once

#include "bench/suite/workload.h"

namespace weightfs::bench {

// Aligned reads of `call` bytes at random offsets for `seconds`, after the lease was taken: one at a time with depth 1,
// otherwise in batches, with `depth` reads in the kernel. A lease is required. The amount is the number of reads.
// `timed` is set to the duration without opening the file, and to that part's CPU time.
struct Timed {
  double seconds = 0;
  double cpu = 0;
};
Amount ReadByReader(const FileJob& job, Timed* timed);

}  // namespace weightfs::bench
