// SPDX-License-Identifier: Apache-2.0
#include "remote/safetensors_slice.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "common/json.h"
#include "common/make_error.h"
#include "common/units.h"

namespace weightfs::remote {
namespace {

// Not ordered_json, whose objects take quadratic time.
using Json = nlohmann::json;

// The limit of the safetensors library.
constexpr uint64_t kMaximumHeader = 100'000'000;
// Those of about a million tensors. They take up to 1 GiB of memory.
constexpr size_t kMaximumValues = 10'000'000;
constexpr std::string_view kMetadata = "__metadata__";
constexpr uint64_t kHeaderUnit = 8;

struct Tensor {
  std::string name;
  Json entry;
  uint64_t begin = 0, end = 0;  // in the data
};

Error NoSafetensors(std::string_view why) {
  return MakeError(ErrorCode::kInvalid, "it is no safetensors file: {}", why);
}

std::optional<Tensor> ParseTensor(const std::string& name, const Json& entry, uint64_t data_size) {
  const Json& offsets = entry.at("data_offsets");
  if (!entry.at("dtype").is_string() || !entry.at("shape").is_array() || offsets.size() != 2) return std::nullopt;
  Tensor tensor{name, entry, offsets.at(0).get<uint64_t>(), offsets.at(1).get<uint64_t>()};
  // The JSON library converts negative numbers to large ones.
  if (tensor.begin > tensor.end || tensor.end > data_size) return std::nullopt;
  return tensor;
}

bool Matches(const std::string& name, std::span<const std::string> patterns) {
  return std::ranges::any_of(
      patterns, [&](const std::string& pattern) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

std::string EncodeHead(const Json& header) {
  std::string text = header.dump();
  text.resize(RoundUp(text.size(), kHeaderUnit), ' ');
  std::string head(kSafetensorsPrefix, '\0');
  const uint64_t size = text.size();
  std::memcpy(head.data(), &size, sizeof size);
  return head + text;
}

SafetensorsSlice Select(std::vector<Tensor> tensors, Json metadata, uint64_t data_begin) {
  Json header = Json::object();
  if (!metadata.is_null()) header[std::string(kMetadata)] = std::move(metadata);
  uint64_t at = 0;
  for (Tensor& tensor : tensors) {
    const uint64_t size = tensor.end - tensor.begin;
    tensor.entry["data_offsets"] = {at, at + size};
    header[tensor.name] = std::move(tensor.entry);
    at += size;
  }
  SafetensorsSlice slice{EncodeHead(header), {}, tensors.size()};
  uint64_t to = slice.head.size();
  for (const Tensor& tensor : tensors) {
    const uint64_t size = tensor.end - tensor.begin, from = data_begin + tensor.begin;
    if (size == 0) continue;
    if (!slice.pieces.empty() && slice.pieces.back().from + slice.pieces.back().size == from) {
      slice.pieces.back().size += size;
    } else {
      slice.pieces.push_back({from, size, to});
    }
    to += size;
  }
  return slice;
}

}  // namespace

Result<uint64_t> SafetensorsHeaderSize(std::string_view prefix, uint64_t file_size) {
  uint64_t size = 0;
  if (prefix.size() < kSafetensorsPrefix) return NoSafetensors("it is too short");
  std::memcpy(&size, prefix.data(), sizeof size);
  if (size > kMaximumHeader || size + kSafetensorsPrefix > file_size) return NoSafetensors("its header is too long");
  return size + kSafetensorsPrefix;
}

Result<SafetensorsSlice> SliceSafetensors(std::string_view header, uint64_t file_size,
                                          std::span<const std::string> patterns) {
  const uint64_t data_size = file_size - header.size();
  std::vector<Tensor> tensors;
  Json metadata;
  try {
    const auto json = ParseJson(header.substr(kSafetensorsPrefix),
                                      {.bytes = kMaximumHeader, .values = kMaximumValues});
    if (!json) return NoSafetensors("its header cannot be parsed: " + json.error().what);
    if (!json->is_object()) return NoSafetensors("its header is no JSON object");
    for (const auto& [name, entry] : json->items()) {
      if (name == kMetadata) {
        metadata = entry;
        continue;
      }
      auto tensor = ParseTensor(name, entry, data_size);
      if (!tensor) return NoSafetensors("its header has an impossible tensor");
      tensors.push_back(std::move(*tensor));
    }
    std::ranges::stable_sort(tensors, {}, [](const Tensor& one) { return std::pair(one.begin, one.end); });
    for (size_t next = 1; next < tensors.size(); ++next) {
      if (tensors[next].begin < tensors[next - 1].end) return NoSafetensors("its tensors overlap");
    }
    std::erase_if(tensors, [&](const Tensor& tensor) { return !Matches(tensor.name, patterns); });
    return Select(std::move(tensors), std::move(metadata), header.size());
  } catch (const Json::exception&) {
    return NoSafetensors("its header has an impossible tensor");
  }
}

}  // namespace weightfs::remote
