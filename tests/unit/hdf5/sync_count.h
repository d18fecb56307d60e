// SPDX-License-Identifier: Apache-2.0
// Counts calls of fdatasync(2). In an executable with sync_count.cc among its sources, its function replaces libc's.
#pragma once

namespace weightfs::hdf5 {

int SyncCalls();

}  // namespace weightfs::hdf5
