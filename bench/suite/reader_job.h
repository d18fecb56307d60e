// SPDX-License-Identifier: Apache-2.0
// Random reads through a reader of the client library, which bypasses the mount by a lease.
#pragma once

#include "bench/suite/workload.h"

namespace weightfs::bench {

// The duration and CPU time of the reads, without those of opening the file and taking the lease.
struct Timed {
  double seconds = 0;
  double cpu = 0;
};

// Aligned reads of `call` bytes at random offsets for `seconds`: one at a time with depth 1, otherwise in batches, with
// `depth` reads in the kernel. A lease is required. The amount is the number of reads.
Amount ReadByReader(const FileJob& job, Timed* timed);

}  // namespace weightfs::bench
