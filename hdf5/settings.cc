// SPDX-License-Identifier: Apache-2.0
#include "hdf5/settings.h"

#include <fmt/format.h>

#include <array>

#include "common/parse_number.h"
#include "common/result.h"
#include "common/size_text.h"
#include "common/units.h"

namespace weightfs::hdf5 {
namespace {

constexpr std::string_view kSeparators = " ,;\t\n";
constexpr std::string_view kNames =
    "num_threads, block_size, queue_depth, direct_size, cache, read_ahead, sync, direct";

Error Invalid(std::string_view word, std::string_view why) {
  return {ErrorCode::kInvalid, fmt::format("invalid setting '{}': {}", word, why)};
}

Result<void> ParseCount(std::string_view word, std::string_view value, unsigned* out) {
  const auto number = ParseNumber<unsigned>(value);
  if (!number) return Invalid(word, "a whole number is required");
  *out = *number;
  return {};
}

Result<void> ParseByteCount(std::string_view word, std::string_view value, uint64_t* out) {
  if (value == "0") return *out = 0, Result<void>();
  const auto size = ParseSize(value);
  if (!size.has_value()) return Invalid(word, "a number of bytes is required, with K, M, G or T for powers of 1024");
  *out = size->value;
  return {};
}

template <typename Value, size_t kCount>
Result<void> ParseChoice(std::string_view word, std::string_view value,
                         const std::array<std::pair<std::string_view, Value>, kCount>& choices, Value* out) {
  std::string names;
  for (const auto& [name, choice] : choices) {
    if (name == value) return *out = choice, Result<void>();
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return Invalid(word, fmt::format("the values are {}", names));
}

Result<void> ParseSetting(std::string_view word, Settings* settings) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) return Invalid(word, fmt::format("expected NAME=VALUE; names are {}", kNames));
  const auto name = word.substr(0, equals);
  const auto value = word.substr(equals + 1);
  if (name == "num_threads") return ParseCount(word, value, &settings->num_threads);
  if (name == "queue_depth") return ParseCount(word, value, &settings->queue_depth);
  if (name == "block_size") return ParseByteCount(word, value, &settings->block_size);
  if (name == "direct_size") return ParseByteCount(word, value, &settings->direct_size);
  if (name == "cache") return ParseByteCount(word, value, &settings->cache);
  if (name == "read_ahead") return ParseByteCount(word, value, &settings->read_ahead);
  if (name == "sync") {
    constexpr std::array<std::pair<std::string_view, Sync>, 3> kChoices{
        {{"never", Sync::kNever}, {"flush", Sync::kFlush}, {"close", Sync::kClose}}};
    return ParseChoice(word, value, kChoices, &settings->sync);
  }
  if (name == "direct") {
    using client::Direct;
    constexpr std::array<std::pair<std::string_view, Direct>, 3> kChoices{
        {{"auto", Direct::kAuto}, {"never", Direct::kNever}, {"require", Direct::kRequire}}};
    return ParseChoice(word, value, kChoices, &settings->direct);
  }
  return Invalid(word, fmt::format("unknown name; names are {}", kNames));
}

}  // namespace

Result<Settings> ParseSettings(std::string_view text) {
  Settings settings;
  while (true) {
    const size_t begin = text.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) break;
    text.remove_prefix(begin);
    const auto word = text.substr(0, text.find_first_of(kSeparators));
    RETURN_IF_ERROR(ParseSetting(word, &settings));
    text.remove_prefix(word.size());
  }
  RETURN_IF_ERROR(Check(settings));
  return settings;
}

Result<void> Check(const Settings& settings) {
  const auto between = [](std::string_view name, uint64_t value, uint64_t least, uint64_t most) -> Result<void> {
    if (value >= least && value <= most) return {};
    return Invalid(fmt::format("{}={}", name, value), fmt::format("the range is {} to {}", least, most));
  };
  RETURN_IF_ERROR(between("num_threads", settings.num_threads, 1, 1024));
  RETURN_IF_ERROR(between("queue_depth", settings.queue_depth, 1, 65'536));
  RETURN_IF_ERROR(between("block_size", settings.block_size, kBlockSize, kGiB));
  RETURN_IF_ERROR(between("direct_size", settings.direct_size, kBlockSize, kTiB));
  RETURN_IF_ERROR(between("cache", settings.cache, kMiB, kTiB));
  RETURN_IF_ERROR(between("read_ahead", settings.read_ahead, 0, kGiB));
  return {};
}

}  // namespace weightfs::hdf5
