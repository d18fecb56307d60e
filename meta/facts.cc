// SPDX-License-Identifier: Apache-2.0
#include "meta/facts.h"

#include "common/bytes.h"
#include "meta/keys.h"

namespace weightfs {
namespace {

constexpr uint8_t kFactFormat = 1;

}  // namespace

std::string EncodeFact(uint64_t number) {
  std::string bytes;
  AppendLittle(bytes, kFactFormat);
  AppendLittle(bytes, number);
  return bytes;
}

Result<uint64_t> DecodeFact(std::string_view bytes) {
  Decoder decoder(bytes);
  const auto format = decoder.Little<uint8_t>();
  if (decoder.ok() && format > kFactFormat) return ErrorCode::kVersion;
  const auto number = decoder.Little<uint64_t>();
  if (!decoder.Done() || format != kFactFormat) return ErrorCode::kCorrupt;
  return number;
}

Result<std::optional<uint64_t>> ReadFact(KvStore& catalog, std::string_view name) {
  ASSIGN_OR_RETURN(const auto bytes, catalog.Get(keys::Store(name)));
  if (!bytes) return std::optional<uint64_t>();
  ASSIGN_OR_RETURN(const uint64_t number, DecodeFact(*bytes));
  return std::optional<uint64_t>(number);
}

}  // namespace weightfs
