// SPDX-License-Identifier: Apache-2.0
#include "store/names/acl.h"

#include <gtest/gtest.h>

#include <array>

#include "common/bytes.h"

namespace weightfs {
namespace {

constexpr uint32_t kUserObject = 1, kUser = 2, kGroupObject = 4, kGroup = 8, kMask = 16, kOther = 32;
constexpr uint32_t kNone = UINT32_MAX;
using Entries = std::vector<std::array<uint32_t, 3>>;  // tag, permissions, id

std::string Bytes(const Entries& entries, uint32_t version = 2) {
  std::string bytes;
  AppendLittle(bytes, version);
  for (const auto& [tag, permissions, id] : entries) {
    AppendLittle(bytes, static_cast<uint16_t>(tag));
    AppendLittle(bytes, static_cast<uint16_t>(permissions));
    AppendLittle(bytes, id);
  }
  return bytes;
}

Acl Make(const Entries& entries) { return Acl::Decode(Bytes(entries)).value(); }

const Entries kMinimal{{kUserObject, 7, kNone}, {kGroupObject, 5, kNone}, {kOther, 1, kNone}};
const Entries kExtended{{kUserObject, 7, kNone}, {kUser, 6, 50},    {kUser, 4, 51},    {kGroupObject, 5, kNone},
                        {kGroup, 3, 60},         {kMask, 6, kNone}, {kOther, 1, kNone}};

TEST(Acl, DecodedListsEncodeToTheSameBytes) {
  for (const Entries& entries : {kMinimal, kExtended}) EXPECT_EQ(Make(entries).Encode(), Bytes(entries));
}

TEST(Acl, NoBytesAndNoEntriesDecodeToTheEmptyList) {
  EXPECT_TRUE(Acl::Decode("")->empty());
  EXPECT_TRUE(Acl::Decode(Bytes({}))->empty());
}

TEST(Acl, RefusesInvalidLists) {
  const auto refused = [](const std::string& bytes) {
    const auto acl = Acl::Decode(bytes);
    return !acl && acl.error().code == ErrorCode::kInvalid;
  };
  EXPECT_TRUE(refused("abc"));
  EXPECT_TRUE(refused(Bytes(kMinimal, 1)));
  EXPECT_TRUE(refused(Bytes(kMinimal) + "x"));
  const auto without = [&](size_t index, const Entries& from) {
    Entries entries = from;
    entries.erase(entries.begin() + static_cast<ptrdiff_t>(index));
    return Bytes(entries);
  };
  for (size_t i = 0; i < kMinimal.size(); ++i) EXPECT_TRUE(refused(without(i, kMinimal))) << i;
  EXPECT_TRUE(refused(without(5, kExtended))) << "named entries need a mask";
  const auto with = [&](size_t index, std::array<uint32_t, 3> entry) {
    Entries entries = kExtended;
    entries[index] = entry;
    return Bytes(entries);
  };
  EXPECT_TRUE(refused(with(0, {kUserObject, 8, kNone})));
  EXPECT_TRUE(refused(with(1, {kUser, 7, kNone}))) << "no such user";
  EXPECT_TRUE(refused(with(1, {kGroup, 7, 1}))) << "out of order";
  EXPECT_TRUE(refused(with(1, {kUserObject, 7, kNone}))) << "twice";
  EXPECT_TRUE(refused(with(1, {3, 7, kNone}))) << "no such tag";
  EXPECT_FALSE(refused(with(1, {kUser, 0, 0})));
}

TEST(Acl, TheGroupBitsShowTheMask) {
  EXPECT_TRUE(Make(kMinimal).IsMode());
  EXPECT_EQ(Make(kMinimal).ApplyToMode(0102000 | 0777), 0102751u);
  EXPECT_FALSE(Make(kExtended).IsMode());
  EXPECT_EQ(Make(kExtended).ApplyToMode(0), 0761u);
}

TEST(Acl, ChmodSetsTheGroupWhereThereIsNoMask) {
  Acl minimal = Make(kMinimal), extended = Make(kExtended);
  minimal.SetMode(0642);
  EXPECT_EQ(minimal.Encode(), Bytes({{kUserObject, 6, kNone}, {kGroupObject, 4, kNone}, {kOther, 2, kNone}}));
  extended.SetMode(0642);
  Entries expected = kExtended;
  expected[0][1] = 6;
  expected[5][1] = 4;
  expected[6][1] = 2;
  EXPECT_EQ(extended.Encode(), Bytes(expected));
}

// The rule of POSIX.1e 23.3.4, for every mode: the permissions that both the list and the mode allow.
TEST(Acl, InheritedPermissionsAreThoseThatBothAllow) {
  for (const Entries& entries : {kMinimal, kExtended}) {
    for (uint32_t asked = 0; asked < 01000; ++asked) {
      Acl acl = Make(entries);
      uint32_t mode = 0104000 | asked;
      acl.Inherit(&mode);
      EXPECT_EQ(mode, 0104000 | (asked & Make(entries).ApplyToMode(0)));
      EXPECT_EQ(acl.ApplyToMode(0), mode & 0777);
      if (!acl.IsMode()) {
        Acl back = acl;
        back.SetMode(Make(entries).ApplyToMode(0));
        EXPECT_EQ(back.Encode(), Bytes(entries)) << "named entries stay as they are";
      }
    }
  }
}

// The algorithm of POSIX.1e 23.1.5: owner, named users, groups (any that allows), others; the mask limits all between
// owner and others.
TEST(Acl, TheFirstMatchingClassDecides) {
  constexpr uint32_t kOwnerId = 10, kGroupId = 20;
  constexpr uint16_t kRead = 4, kWrite = 2, kSearch = 1;
  const Acl acl = Make(kExtended);
  const auto permits = [&](const Credentials& who, uint16_t wanted) {
    return acl.Permits(who, kOwnerId, kGroupId, wanted);
  };
  EXPECT_TRUE(permits({kOwnerId, 99, {}}, kRead | kWrite | kSearch)) << "no mask for the owner";
  EXPECT_TRUE(permits({50, 99, {}}, kRead | kWrite));
  EXPECT_TRUE(permits({51, 99, {}}, kRead));
  EXPECT_FALSE(permits({51, kGroupId, {60}}, kWrite)) << "a named user is in no other class";
  EXPECT_TRUE(permits({70, kGroupId, {}}, kRead));
  EXPECT_FALSE(permits({70, kGroupId, {}}, kSearch)) << "the mask takes it away, and others do not count";
  EXPECT_TRUE(permits({70, 99, {60}}, kWrite));
  EXPECT_FALSE(permits({70, 99, {60}}, kRead));
  EXPECT_FALSE(permits({70, kGroupId, {60}}, kRead | kWrite)) << "no single entry allows both";
  EXPECT_TRUE(permits({70, 99, {}}, kSearch));
  EXPECT_FALSE(permits({70, 99, {}}, kRead));
}

}  // namespace
}  // namespace weightfs
