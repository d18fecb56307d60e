// SPDX-License-Identifier: Apache-2.0
// The settings of the HDF5 driver, and the text that sets them (HDF5_DRIVER_CONFIG).
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>

#include "client/handle.h"

namespace weightfs::hdf5 {

// When a call of HDF5 returns only once everything it wrote survives a loss of power.
enum class Sync : unsigned char {
  kNever,  // the mount commits after its commit= seconds
  kFlush,  // H5Fflush and H5Dflush
  kClose,  // these, and H5Fclose
};

struct Settings {
  unsigned num_threads = 2;        // slices that a large request is cut into, each with a thread and a ring
  uint64_t block_size = 1 << 20;   // bytes of one transfer
  unsigned queue_depth = 32;       // transfers in the kernel at once, for each thread
  uint64_t direct_size = 4 << 20;  // bytes; requests of at least this go past the cache, by the engine
  uint64_t cache = 64 << 20;       // bytes; bound of buffered writes and read-ahead of one open file
  uint64_t read_ahead = 8 << 20;   // bytes; the largest read-ahead window; 0: none
  Sync sync = Sync::kFlush;
  client::Direct direct = client::Direct::kAuto;

  auto operator<=>(const Settings&) const = default;
};

// "num_threads=4 block_size=1M": names and values, separated by spaces, commas or semicolons. Sizes take K, M, G, T.
// EINVAL names the first word that is wrong and what is possible instead. Without a word the defaults hold.
Result<Settings> ParseSettings(std::string_view text);

// EINVAL for values that are not possible.
Result<void> Check(const Settings& settings);

}  // namespace weightfs::hdf5
