// SPDX-License-Identifier: Apache-2.0
#include "remote/safetensors_slice.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace weightfs::remote {
namespace {

std::string Prefixed(const std::string& json) {
  std::string head(kSafetensorsPrefix, '\0');
  const uint64_t size = json.size();
  std::memcpy(head.data(), &size, sizeof size);
  return head + json;
}

const std::string kHeader = Prefixed(
    R"({"b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"__metadata__":{"format":"pt"},)"
    R"("c.x":{"dtype":"U8","shape":[5],"data_offsets":[16,21]},"c.y":{"dtype":"U8","shape":[3],"data_offsets":[21,24]},)"
    R"("e":{"dtype":"F16","shape":[0],"data_offsets":[24,24]},"d":{"dtype":"F16","shape":[],"data_offsets":[24,26]}})");
const uint64_t kFileSize = kHeader.size() + 26;

nlohmann::json HeaderOf(const SafetensorsSlice& slice) {
  uint64_t size = 0;
  std::memcpy(&size, slice.head.data(), sizeof size);
  EXPECT_EQ(size % 8, 0U);
  EXPECT_EQ(size + kSafetensorsPrefix, slice.head.size());
  return nlohmann::json::parse(slice.head.substr(kSafetensorsPrefix));
}

SafetensorsSlice Slice(std::vector<std::string> patterns) {
  auto slice = SliceSafetensors(kHeader, kFileSize, patterns);
  EXPECT_TRUE(slice.has_value());
  return std::move(*slice);
}

TEST(SafetensorsSlice, HasContiguousOffsetsAndTheMetadata) {
  const auto slice = Slice({"c.y", "b"});
  const auto header = HeaderOf(slice);
  EXPECT_EQ(header, nlohmann::json::parse(
                        R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                        R"("c.y":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}})"));
  ASSERT_EQ(slice.pieces.size(), 2U);
  EXPECT_EQ(slice.pieces[0].from, kHeader.size());
  EXPECT_EQ(slice.pieces[0].to, slice.head.size());
  EXPECT_EQ(slice.pieces[1].from, kHeader.size() + 21);
  EXPECT_EQ(slice.pieces[1].to, slice.head.size() + 16);
  EXPECT_EQ(slice.size(), slice.head.size() + 19);
  EXPECT_EQ(slice.tensors, 2U);
}

TEST(SafetensorsSlice, JoinsNeighbors) {
  const auto slice = Slice({"*"});
  ASSERT_EQ(slice.pieces.size(), 1U);
  EXPECT_EQ(slice.pieces[0].size, 26U);
  EXPECT_EQ(slice.tensors, 5U);
}

TEST(SafetensorsSlice, OfEmptyTensorsHasNoPieces) {
  const auto slice = Slice({"e"});
  EXPECT_TRUE(slice.pieces.empty());
  EXPECT_EQ(slice.size(), slice.head.size());
  EXPECT_EQ(Slice({"nothing"}).tensors, 0U);
}

TEST(SafetensorsSlice, HeadersThatLeaveTheFileAreRefused) {
  EXPECT_EQ(*SafetensorsHeaderSize(kHeader.substr(0, 8), kFileSize), kHeader.size());
  EXPECT_FALSE(SafetensorsHeaderSize("short", 5).has_value());
  EXPECT_FALSE(SafetensorsHeaderSize(kHeader.substr(0, 8), kHeader.size() - 1).has_value());
  EXPECT_FALSE(SafetensorsHeaderSize(std::string(8, '\xff'), UINT64_MAX).has_value());
  EXPECT_FALSE(SliceSafetensors(kHeader, kFileSize - 1, std::vector<std::string>{"*"}).has_value());
}

TEST(SafetensorsSlice, DamageOfAnyByteDoesNoHarm) {
  for (size_t at = kSafetensorsPrefix; at < kHeader.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = kHeader;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const auto slice = SliceSafetensors(damaged, kFileSize, std::vector<std::string>{"*"});
      if (!slice) continue;
      for (const SlicePiece& piece : slice->pieces) {
        EXPECT_GE(piece.from, kHeader.size());
        EXPECT_LE(piece.from + piece.size, kFileSize);
      }
    }
  }
}

TEST(SafetensorsSlice, NestedHeadersAreRefused) {
  constexpr size_t kDepth = 100'000;
  const std::string nested = std::string(kDepth, '[') + std::string(kDepth, ']');
  for (const std::string& json :
       {"{\"a\":{\"dtype\":\"U8\",\"shape\":" + nested + ",\"data_offsets\":[0,1]}}",
        "{\"__metadata__\":" + nested + "}", nested, std::string(size_t{64} << 20, '[')}) {
    const std::string header = Prefixed(json), patterns[] = {std::string("*")};
    const auto slice = SliceSafetensors(header, header.size() + 1, patterns);
    ASSERT_FALSE(slice.has_value());
    EXPECT_EQ(slice.error().code, ErrorCode::kInvalid);
  }
}

}  // namespace
}  // namespace weightfs::remote
