// SPDX-License-Identifier: Apache-2.0
#include "meta/keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace weightfs {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
const std::vector<uint64_t> kAscending = {0,     1,     9,          10,         127,        128,      255, 256,
                                          65535, 65536, 1ULL << 31, 1ULL << 32, 1ULL << 63, kMax - 1, kMax};

TEST(KeysTest, ByteOrderIsNumericOrder) {
  std::vector<std::string> by_inode, by_block, by_segment;
  for (const uint64_t number : kAscending) {
    by_inode.push_back(keys::Inode(InodeId{number}));
    by_block.push_back(keys::Extent(InodeId{7}, FileBlock{number}));
    by_segment.push_back(keys::Checksums(InodeId{7}, number));
  }
  for (const auto& sorted : {by_inode, by_block, by_segment}) {
    for (size_t at = 1; at < sorted.size(); ++at) EXPECT_LT(sorted[at - 1], sorted[at]) << at;
  }
}

TEST(KeysTest, InodeComesBeforeIndexInTheOrder) {
  EXPECT_LT(keys::Extent(InodeId{255}, FileBlock{kMax}), keys::Extent(InodeId{256}, FileBlock{0}));
  EXPECT_LT(keys::Entry(InodeId{1}, std::string(255, '\xFF')), keys::Entry(InodeId{2}, "a"));
}

TEST(KeysTest, PartsComeBackOut) {
  for (const uint64_t number : kAscending) {
    const InodeId ino{number};
    for (const std::string& key : {keys::Inode(ino), keys::Orphan(ino)}) {
      const auto parsed = keys::ParseInode(key);
      ASSERT_TRUE(parsed.has_value());
      EXPECT_EQ(*parsed, ino);
    }
    for (const std::string& key : {keys::Extent(InodeId{3}, FileBlock{number}), keys::Checksums(InodeId{3}, number)}) {
      const auto parsed = keys::ParseIndexed(key);
      ASSERT_TRUE(parsed.has_value());
      EXPECT_EQ(parsed->ino, InodeId{3});
      EXPECT_EQ(parsed->index, number);
    }
    for (const std::string& key : {keys::Entry(ino, "weights.pt"), keys::Attribute(ino, "weights.pt")}) {
      const auto parsed = keys::ParseNamed(key);
      ASSERT_TRUE(parsed.has_value());
      EXPECT_EQ(parsed->ino, ino);
      EXPECT_EQ(parsed->name, "weights.pt");
    }
  }
}

TEST(KeysTest, EveryKeyBeginsWithItsPrefix) {
  const InodeId ino{0x0102030405060708};
  EXPECT_TRUE(keys::Entry(ino, "n").starts_with(keys::EntryPrefix(ino)));
  EXPECT_TRUE(keys::Extent(ino, FileBlock{1}).starts_with(keys::ExtentPrefix(ino)));
  EXPECT_TRUE(keys::Attribute(ino, "user.a").starts_with(keys::AttributePrefix(ino)));
  EXPECT_TRUE(keys::Store("id").starts_with(keys::KindPrefix(keys::kStore)));
  EXPECT_FALSE(keys::Entry(InodeId{ino.value + 1}, "n").starts_with(keys::EntryPrefix(ino)));
}

TEST(KeysTest, NamesMayHoldAnyByte) {
  std::string name;
  for (int byte = 0; byte < 255; ++byte) name.push_back(static_cast<char>(byte + 1));
  const std::string key = keys::Entry(InodeId{1}, name);
  const auto parsed = keys::ParseNamed(key);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->name, name);
}

TEST(KeysTest, KeysOfAnotherShapeAreRefused) {
  const InodeId ino{1};
  const std::vector<std::string> inode_shape = {keys::Inode(ino), keys::Orphan(ino)};
  const std::vector<std::string> named_shape = {keys::Entry(ino, "12345678"), keys::Attribute(ino, "n")};
  const std::vector<std::string> indexed_shape = {keys::Extent(ino, FileBlock{1}), keys::Checksums(ino, 1)};
  const auto none_parses = [](const std::vector<std::string>& all, auto parse) {
    return std::none_of(all.begin(), all.end(), [&](const auto& key) { return parse(key).has_value(); });
  };
  EXPECT_TRUE(none_parses(named_shape, keys::ParseInode));
  EXPECT_TRUE(none_parses(indexed_shape, keys::ParseInode));
  EXPECT_TRUE(none_parses(inode_shape, keys::ParseNamed));
  EXPECT_TRUE(none_parses(indexed_shape, keys::ParseNamed));
  EXPECT_TRUE(none_parses(inode_shape, keys::ParseIndexed));
  EXPECT_TRUE(none_parses(named_shape, keys::ParseIndexed));
}

TEST(KeysTest, WrongLengthsAreRefused) {
  const std::string inode = keys::Inode(InodeId{1});
  const std::string indexed = keys::Extent(InodeId{1}, FileBlock{2});
  for (size_t size = 0; size < inode.size(); ++size) EXPECT_FALSE(keys::ParseInode(inode.substr(0, size)));
  for (size_t size = 0; size < indexed.size(); ++size) EXPECT_FALSE(keys::ParseIndexed(indexed.substr(0, size)));
  EXPECT_FALSE(keys::ParseInode(inode + "x"));
  EXPECT_FALSE(keys::ParseIndexed(indexed + "x"));
  const std::string prefix = keys::EntryPrefix(InodeId{1});
  for (size_t size = 0; size <= prefix.size(); ++size) EXPECT_FALSE(keys::ParseNamed(prefix.substr(0, size)));
  EXPECT_TRUE(keys::ParseNamed(prefix + std::string(255, 'n')));
  EXPECT_FALSE(keys::ParseNamed(prefix + std::string(256, 'n')));
}

TEST(KeysTest, PrefixEndIsTheFirstKeyBehindThePrefix) {
  EXPECT_EQ(keys::PrefixEnd("a"), "b");
  EXPECT_EQ(keys::PrefixEnd("a\xFF"), "b");
  EXPECT_EQ(keys::PrefixEnd("a\x7F"), "a\x80");
  EXPECT_EQ(keys::PrefixEnd("\xFF\xFF"), "");
  EXPECT_EQ(keys::PrefixEnd(""), "");
  EXPECT_EQ(keys::PrefixEnd(keys::ExtentPrefix(InodeId{0x100})), keys::ExtentPrefix(InodeId{0x101}));
  for (const uint64_t number : kAscending) {
    const std::string prefix = keys::EntryPrefix(InodeId{number});
    const std::string end = keys::PrefixEnd(prefix);
    EXPECT_GT(end, prefix + std::string(255, '\xFF'));
    EXPECT_FALSE(end.starts_with(prefix));
    if (number != kMax) {
      EXPECT_LE(end, keys::EntryPrefix(InodeId{number + 1}));
    }
  }
}

}  // namespace
}  // namespace weightfs
