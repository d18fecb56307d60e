// SPDX-License-Identifier: Apache-2.0
// store.json.
#include <algorithm>

#include "common/assert.h"
#include "store/volume/store_directory.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs {
namespace {

bool AreEqual(const StoreDescription& a, const StoreDescription& b) {
  return a.format == b.format && a.id == b.id && a.created == b.created &&
         std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(), b.devices.end(),
                    [](const auto& one, const auto& other) {
                      return one.index == other.index && one.id == other.id && one.path == other.path &&
                             one.size == other.size;
                    });
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  StoreDescription description{.format = 1, .created = "2026-01-02T03:04:05Z"};
  description.id.fill(0xA5);
  Uuid device;
  device.fill(0x5A);
  description.devices.push_back({DeviceId{0}, device, "pool", ByteCount{kGiB}});
  const std::string one = ToJson(description);
  description.devices.push_back({DeviceId{1}, description.id, "/dev/disk/by-id/\xC3\xBC \"x\"", ByteCount{INT64_MAX}});
  return {one, ToJson(description), "{\"format\": 2}", "[[[[[[[["};
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  const auto description = ParseDescription("store.json", std::string(fuzz::Text(data, size)));
  if (!description.has_value()) {
    const Error& error = description.error();
    WEIGHTFS_ASSERT(error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kVersion);
    WEIGHTFS_ASSERT(error.what.starts_with("store.json: "));
    return 0;
  }
  WEIGHTFS_ASSERT(description->format >= 1 && description->format <= kFormatVersion);
  WEIGHTFS_ASSERT(!description->devices.empty());
  for (size_t index = 0; index < description->devices.size(); ++index) {
    const auto& device = description->devices[index];
    WEIGHTFS_ASSERT(device.index.value == index);
    // Every function that opens the path takes it as a C string.
    WEIGHTFS_ASSERT(!device.path.empty() && device.path.find('\0') == std::string::npos);
  }
  const auto again = ParseDescription("store.json", ToJson(*description));
  WEIGHTFS_ASSERT(again.has_value() && AreEqual(*again, *description));
  return 0;
}
