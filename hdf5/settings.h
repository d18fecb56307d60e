// SPDX-License-Identifier: Apache-2.0
// The settings of the HDF5 driver, and the text that sets them (HDF5_DRIVER_CONFIG).
#pragma once

#include <compare>
#include <string_view>

#include "client/handle.h"

namespace weightfs::hdf5 {

// The calls of HDF5 that make all writes durable before they return.
enum class Sync : unsigned char {
  kNever,  // none: a mount commits after its commit= seconds
  kFlush,  // H5Fflush and H5Dflush
  kClose,  // these, and H5Fclose
};

struct Settings {
  unsigned num_threads = 2;        // slices of a large request, each with its own thread and ring
  uint64_t block_size = 1 << 20;   // bytes per transfer
  unsigned queue_depth = 32;       // maximum number of transfers in the kernel, per thread
  uint64_t direct_size = 8 << 20;  // bytes; reads of at least this size bypass the cache, and so do writes that are
                                   // also at least a quarter of `cache`
  uint64_t cache = 64 << 20;       // bytes per open file: half for buffered writes, half for reads
  uint64_t read_ahead = 1 << 20;   // bytes; maximum window of short sequential reads; 0: no read-ahead
  Sync sync = Sync::kFlush;
  client::Direct direct = client::Direct::kAuto;

  auto operator<=>(const Settings&) const = default;
};

// Parses "num_threads=4 block_size=1M": NAME=VALUE words, separated by white space, commas or semicolons. Sizes may end
// in K, M, G or T. EINVAL names the first invalid word and the valid values. An empty text gives the defaults.
Result<Settings> ParseSettings(std::string_view text);

// EINVAL if a value is out of range.
Result<void> Check(const Settings& settings);

}  // namespace weightfs::hdf5
