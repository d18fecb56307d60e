// SPDX-License-Identifier: Apache-2.0
// The settings of the HDF5 driver.
#include <fmt/format.h>

#include <array>

#include "common/assert.h"
#include "hdf5/settings.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs::hdf5 {
namespace {

std::string TextOf(const Settings& settings) {
  constexpr std::array kSyncs = {"never", "flush", "close"};
  const char* direct = settings.direct == client::Direct::kAuto    ? "auto"
                       : settings.direct == client::Direct::kNever ? "never"
                                                                   : "require";
  return fmt::format(
      "num_threads={},block_size={};queue_depth={} direct_size={}\tcache={}\nread_ahead={} sync={} direct={}",
      settings.num_threads, settings.block_size, settings.queue_depth, settings.direct_size, settings.cache,
      settings.read_ahead, kSyncs[static_cast<size_t>(settings.sync)], direct);
}

}  // namespace
}  // namespace weightfs::hdf5

std::vector<std::string> weightfs::fuzz::Seeds() {
  return {hdf5::TextOf({}), "num_threads=4 block_size=1M", "direct=require,sync=never;read_ahead=0", "cache=64M,,  "};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  const auto settings = hdf5::ParseSettings(fuzz::Text(data, size));
  if (!settings.has_value()) {
    WEIGHTFS_ASSERT(settings.error().code == ErrorCode::kInvalid && !settings.error().what.empty());
    return 0;
  }
  WEIGHTFS_ASSERT(hdf5::Check(*settings).has_value());
  const auto again = hdf5::ParseSettings(hdf5::TextOf(*settings));
  WEIGHTFS_ASSERT(again.has_value() && *again == *settings);
  return 0;
}
