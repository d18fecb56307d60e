// SPDX-License-Identifier: Apache-2.0
// Sizes as text.
#include <algorithm>

#include "common/assert.h"
#include "common/bytes.h"
#include "common/size_text.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs {
namespace {

constexpr uint64_t kExact = uint64_t{1} << 53;  // a double has every whole number up to here
constexpr uint64_t kLargest = uint64_t{9} * 1'000'000'000'000'000'000;

// What FormatSize prints is a size that differs by its rounding alone.
void CheckFormatted(ByteCount size) {
  std::string text = FormatSize(size);
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const auto again = ParseSize(text);
  if (!again.has_value()) {
    WEIGHTFS_ASSERT(size.value > kLargest);
    return;
  }
  const uint64_t difference = std::max(size.value, again->value) - std::min(size.value, again->value);
  WEIGHTFS_ASSERT(difference <= size.value / 150);
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  return {"0", "4096", "512M", "1.5T", "8GiB", "7kb", "0.5p", "100B", "9007199254740991", "1e3", "inf", "nan", "-1"};
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  const std::string_view text = fuzz::Text(data, size);
  const auto parsed = ParseSize(text);
  if (parsed.has_value()) {
    WEIGHTFS_ASSERT(parsed->value <= uint64_t{1} << 63);
    WEIGHTFS_ASSERT(!text.empty() && text.find('\0') == std::string_view::npos);
    CheckFormatted(*parsed);
  } else {
    WEIGHTFS_ASSERT(parsed.error().code == ErrorCode::kInvalid && !parsed.error().what.empty());
  }
  const uint64_t number = Decoder(text).Little<uint64_t>();
  CheckFormatted(ByteCount{number});
  const auto exact = ParseSize(std::to_string(number % kExact));
  WEIGHTFS_ASSERT(exact.has_value() && exact->value == number % kExact);
  return 0;
}
