// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/store/namespace_fixture.h"

#include <array>
#include <atomic>
#include <thread>

#include "common/bytes.h"
#include "store/names/acl.h"

namespace weightfs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kAny = AttributeWrite::kAny;

std::string AclBytes(std::initializer_list<std::array<uint32_t, 3>> entries) {
  std::string bytes;
  AppendLittle(bytes, uint32_t{2});
  for (const auto& [tag, permissions, id] : entries) {
    AppendLittle(bytes, static_cast<uint16_t>(tag));
    AppendLittle(bytes, static_cast<uint16_t>(permissions));
    AppendLittle(bytes, id);
  }
  return bytes;
}
constexpr uint32_t kNobody = UINT32_MAX;

// user::rwx user:50:rw- group::r-x mask::rwx other::r--
std::string NamedUser(uint32_t mask = 7) {
  return AclBytes({{1, 7, kNobody}, {2, 6, 50}, {4, 5, kNobody}, {0x10, mask, kNobody}, {0x20, 4, kNobody}});
}

class NamespaceAttributes : public NamespaceTest {
 protected:
  NamespaceAttributes() : file_(MakeFile(kRootInode, "f")) {}
  std::optional<ErrorCode> Set(std::string_view name, std::string_view value, AttributeWrite mode = kAny) {
    return Code(names_->SetExtendedAttribute(file_, name, value, mode));
  }
  std::optional<ErrorCode> Set(InodeId ino, std::string_view name, std::string_view value) {
    return Code(names_->SetExtendedAttribute(ino, name, value, kAny));
  }
  const InodeId file_;
};

TEST_F(NamespaceAttributes, AreStoredVerbatimAndListedInOrder) {
  const std::string binary("\0\xff\x01", 3);
  EXPECT_EQ(Set("user.b", binary), std::nullopt);
  EXPECT_EQ(Set("user.a", ""), std::nullopt);
  EXPECT_EQ(Set("security.capability", "c"), std::nullopt);
  Restart();
  EXPECT_EQ(*names_->GetExtendedAttribute(file_, "user.b"), binary);
  EXPECT_EQ(*names_->GetExtendedAttribute(file_, "user.a"), "");
  EXPECT_THAT(*names_->ListExtendedAttributes(file_), ElementsAre("security.capability", "user.a", "user.b"));
  EXPECT_THAT(*names_->ListExtendedAttributes(kRootInode), IsEmpty());
}

TEST_F(NamespaceAttributes, CreateRefusesAnExistingNameAndReplaceAMissingOne) {
  EXPECT_EQ(Set("user.a", "1", AttributeWrite::kReplace), ErrorCode::kNoAttribute);
  EXPECT_EQ(Set("user.a", "1", AttributeWrite::kCreate), std::nullopt);
  EXPECT_EQ(Set("user.a", "2", AttributeWrite::kCreate), ErrorCode::kExists);
  EXPECT_EQ(Set("user.a", "3", AttributeWrite::kReplace), std::nullopt);
  EXPECT_EQ(*names_->GetExtendedAttribute(file_, "user.a"), "3");
}

TEST_F(NamespaceAttributes, SizesAreLimited) {
  EXPECT_EQ(Set("", "v"), ErrorCode::kRange);
  EXPECT_EQ(Set("user." + std::string(251, 'n'), "v"), ErrorCode::kRange);
  EXPECT_EQ(Set("user." + std::string(250, 'n'), "v"), std::nullopt);
  EXPECT_EQ(Set("user.a", std::string(65537, 'v')), ErrorCode::kTooLarge);
  EXPECT_EQ(Set("user.a", std::string(65536, 'v')), std::nullopt);
}

TEST_F(NamespaceAttributes, TheNamesOfAFileStayWithinTheLimitOfListxattr) {
  size_t size = 0;
  std::optional<ErrorCode> code;
  for (int i = 0; i < 1000 && !code; ++i) {
    const std::string name = "user." + std::string(200, 'n') + std::to_string(1000 + i);
    code = Set(name, "");
    if (!code) size += name.size() + 1;
  }
  EXPECT_EQ(code, ErrorCode::kNoSpace);
  EXPECT_LE(size, 65536u);
  EXPECT_GT(size, 65000u);
}

TEST_F(NamespaceAttributes, NamesAndValuesOfAFileStayWithinTheLimit) {
  const std::string large(kMaximumAttributeValue, 'v');
  for (const char* name : {"user.1", "user.2", "user.3"}) EXPECT_EQ(Set(name, large), std::nullopt);
  // Names count, too: of the last 64 KiB these attributes use 4 times 6 bytes.
  EXPECT_EQ(Set("user.4", large), ErrorCode::kNoSpace);
  EXPECT_EQ(Set("user.4", large.substr(24)), std::nullopt);
  EXPECT_EQ(Set("user.5", ""), ErrorCode::kNoSpace);
  EXPECT_EQ(Set("security.capability", "c"), ErrorCode::kNoSpace);
  EXPECT_EQ(Set(kAccessAclName, NamedUser()), ErrorCode::kNoSpace);
  EXPECT_EQ(Stat(file_).mode, S_IFREG | 0644u);
  EXPECT_EQ(Set(kAccessAclName, AclBytes({{1, 7, kNobody}, {4, 5, kNobody}, {0x20, 0, kNobody}})), std::nullopt)
      << "this list is only a mode";
  EXPECT_EQ(Set(kAccessAclName, ""), std::nullopt);

  // A replacement counts the difference.
  EXPECT_EQ(Set("user.1", large), std::nullopt);
  EXPECT_EQ(Set("user.1", "short"), std::nullopt);
  EXPECT_EQ(Set("user.5", large), ErrorCode::kNoSpace);
  EXPECT_EQ(Set("user.5", large.substr(11)), std::nullopt);
  EXPECT_EQ(Set("user.1", "longer"), ErrorCode::kNoSpace);
  EXPECT_TRUE(names_->RemoveExtendedAttribute(file_, "user.5"));
  EXPECT_EQ(Set("user.5", large.substr(11)), std::nullopt);
  Restart();
  EXPECT_EQ(Set("user.6", ""), ErrorCode::kNoSpace);
}

TEST_F(NamespaceAttributes, ChangingOneDoesNotReadTheOthers) {
  EXPECT_EQ(Set("user.a", "1"), std::nullopt);
  Restart();
  EXPECT_EQ(Set("user.b", "2"), std::nullopt);  // reads the sizes once
  kv_->FailIterator(1);
  EXPECT_EQ(Set("user.c", "3"), std::nullopt);
  EXPECT_EQ(Set("user.c", "longer"), std::nullopt);
  EXPECT_EQ(Set(kAccessAclName, NamedUser()), std::nullopt);
  EXPECT_TRUE(names_->SetAttributes(file_, {.mode = 0600}));
  EXPECT_TRUE(names_->RemoveExtendedAttribute(file_, "user.a"));
  EXPECT_TRUE(names_->RemoveExtendedAttribute(file_, kAccessAclName));
  EXPECT_EQ(Set("user.d", std::string(kMaximumAttributeValue, 'v')), std::nullopt);
  EXPECT_EQ(Code(names_->ListExtendedAttributes(file_)), ErrorCode::kIo) << "the first iterator since then";
}

TEST_F(NamespaceAttributes, SizesInMemoryAgreeWithTheCatalog) {
  const auto expect_current = [&] {
    uint64_t list = 0, bytes = 0;
    for (const auto& [key, value] : kv_->content()) {
      if (!key.starts_with(keys::AttributePrefix(file_))) continue;
      const size_t name = key.size() - keys::AttributePrefix(file_).size();
      list += name + 1;
      bytes += name + value.size();
    }
    const InodePtr inode = *inodes_->Get(file_);
    MutexLock lock(inode->mutex);
    ASSERT_TRUE(inode->attribute_sizes.has_value());
    EXPECT_EQ(inode->attribute_sizes->list, list);
    EXPECT_EQ(inode->attribute_sizes->bytes, bytes);
  };
  Set("user.a", "1");
  Set("user.b", "some text");
  expect_current();
  Set("user.a", "replaced");
  Set(kAccessAclName, NamedUser());
  expect_current();
  EXPECT_TRUE(names_->SetAttributes(file_, {.mode = 0640}));
  EXPECT_TRUE(names_->RemoveExtendedAttribute(file_, "user.b"));
  expect_current();
  Set("security.capability", "c");
  EXPECT_TRUE(names_->ClearPrivileges(*inodes_->Get(file_), true));
  Set(kAccessAclName, "");
  expect_current();
  kv_->FailWrite(1);
  EXPECT_EQ(Set("user.c", "v"), ErrorCode::kIo);
  expect_current();
}

TEST_F(NamespaceAttributes, OlderFilesBeyondTheLimitCanBeReadAndReduced) {
  const std::string large(kMaximumAttributeValue, 'v');
  EXPECT_EQ(Set("user.0", large), std::nullopt);
  for (int i = 1; i < 6; ++i) Put(keys::Attribute(file_, "user." + std::to_string(i)), large);
  Restart();
  EXPECT_EQ(names_->ListExtendedAttributes(file_)->size(), 6u);
  EXPECT_EQ(*names_->GetExtendedAttribute(file_, "user.5"), large);
  EXPECT_EQ(Set("user.6", ""), ErrorCode::kNoSpace);
  EXPECT_EQ(Set("user.5", std::string(kMaximumAttributeValue, 'w')), std::nullopt);
  EXPECT_EQ(Set("user.5", "short"), std::nullopt);
  EXPECT_EQ(Set("user.5", "longer"), ErrorCode::kNoSpace);
  for (const char* name : {"user.0", "user.1"}) EXPECT_TRUE(names_->RemoveExtendedAttribute(file_, name));
  EXPECT_EQ(Set("user.5", "longer"), std::nullopt);
}

TEST_F(NamespaceAttributes, ChangesTouchTheInode) {
  Age(file_);
  EXPECT_EQ(Set("user.a", "v"), std::nullopt);
  EXPECT_GT(Stat(file_).changed, Timestamp{1});
  EXPECT_EQ(Stat(file_).modified, Timestamp{1});
  Age(file_);
  EXPECT_TRUE(names_->RemoveExtendedAttribute(file_, "user.a"));
  EXPECT_GT(Stat(file_).changed, Timestamp{1});
  EXPECT_EQ(Code(names_->RemoveExtendedAttribute(file_, "user.a")), ErrorCode::kNoAttribute);
  EXPECT_EQ(Code(names_->GetExtendedAttribute(file_, "user.a")), ErrorCode::kNoAttribute);
}

TEST_F(NamespaceAttributes, InodesThatNeverHadAnyAreNotLookedUp) {
  kv_->FailGet(1);  // the next access to the catalog
  EXPECT_EQ(Code(names_->GetExtendedAttribute(file_, "security.capability")), ErrorCode::kNoAttribute);
  EXPECT_EQ(Code(names_->RemoveExtendedAttribute(file_, "user.a")), ErrorCode::kNoAttribute);
  EXPECT_EQ(Code(names_->Lookup(kRootInode, "f")), ErrorCode::kIo);
}

TEST_F(NamespaceAttributes, AnAccessListSetsTheMode) {
  EXPECT_EQ(Set(kAccessAclName, NamedUser(2)), std::nullopt);
  EXPECT_EQ(Stat(file_).mode, S_IFREG | 0724u);
  EXPECT_EQ(*names_->GetExtendedAttribute(file_, kAccessAclName), NamedUser(2));
  EXPECT_EQ(Stat(file_).mode, StoredRecord(file_).mode);
}

TEST_F(NamespaceAttributes, AnAccessListThatEqualsAModeIsNotStored) {
  EXPECT_EQ(Set(kAccessAclName, NamedUser()), std::nullopt);
  EXPECT_EQ(Set(kAccessAclName, AclBytes({{1, 6, kNobody}, {4, 4, kNobody}, {0x20, 0, kNobody}})), std::nullopt);
  EXPECT_EQ(Stat(file_).mode, S_IFREG | 0640u);
  EXPECT_EQ(Code(names_->GetExtendedAttribute(file_, kAccessAclName)), ErrorCode::kNoAttribute);
}

TEST_F(NamespaceAttributes, AnEmptyOrRemovedListLeavesTheMode) {
  EXPECT_EQ(Set(kAccessAclName, NamedUser(5)), std::nullopt);
  EXPECT_EQ(Set(kAccessAclName, ""), std::nullopt);
  EXPECT_EQ(Stat(file_).mode, S_IFREG | 0754u);
  EXPECT_EQ(Code(names_->GetExtendedAttribute(file_, kAccessAclName)), ErrorCode::kNoAttribute);
  EXPECT_EQ(Set(kAccessAclName, NamedUser(5)), std::nullopt);
  EXPECT_TRUE(names_->RemoveExtendedAttribute(file_, kAccessAclName));
  EXPECT_THAT(*names_->ListExtendedAttributes(file_), IsEmpty());
  EXPECT_TRUE(names_->RemoveExtendedAttribute(file_, kAccessAclName));
}

TEST_F(NamespaceAttributes, DefaultListsBelongToDirectories) {
  EXPECT_EQ(Set(kDefaultAclName, NamedUser()), ErrorCode::kAccess);
  EXPECT_EQ(Set(kDefaultAclName, ""), std::nullopt);
  EXPECT_EQ(Set(kDefaultAclName, "nonsense"), ErrorCode::kInvalid);
  const auto link = names_->Create(kRootInode, "l", {.mode = S_IFLNK, .symlink = "t"});
  EXPECT_EQ(Set(link->ino, kAccessAclName, NamedUser()), ErrorCode::kNotSupported);
  EXPECT_EQ(Set(kRootInode, kDefaultAclName, NamedUser()), std::nullopt);
  EXPECT_EQ(Stat(kRootInode).mode, S_IFDIR | 0755u);
}

TEST_F(NamespaceAttributes, ChmodMovesTheMask) {
  EXPECT_EQ(Set(kAccessAclName, NamedUser()), std::nullopt);
  ASSERT_TRUE(names_->SetAttributes(file_, {.mode = 0640}));
  EXPECT_EQ(*names_->GetExtendedAttribute(file_, kAccessAclName),
            AclBytes({{1, 6, kNobody}, {2, 6, 50}, {4, 5, kNobody}, {0x10, 4, kNobody}, {0x20, 0, kNobody}}));
  EXPECT_EQ(Stat(file_).mode, S_IFREG | 0640u);
}

TEST_F(NamespaceAttributes, NewInodesInheritInsteadOfTheUmask) {
  EXPECT_EQ(Set(kRootInode, kDefaultAclName, NamedUser()), std::nullopt);
  CreateRequest request = File(0666);
  request.umask = 0077;
  const auto file = names_->Create(kRootInode, "g", request);
  EXPECT_EQ(file->mode, S_IFREG | 0664u);
  EXPECT_EQ(*names_->GetExtendedAttribute(file->ino, kAccessAclName),
            AclBytes({{1, 6, kNobody}, {2, 6, 50}, {4, 5, kNobody}, {0x10, 6, kNobody}, {0x20, 4, kNobody}}));
  EXPECT_EQ(Code(names_->GetExtendedAttribute(file->ino, kDefaultAclName)), ErrorCode::kNoAttribute);

  const auto directory = names_->Create(kRootInode, "d", Directory(0750));
  EXPECT_EQ(directory->mode, S_IFDIR | 0750u);
  EXPECT_EQ(*names_->GetExtendedAttribute(directory->ino, kDefaultAclName), NamedUser());
  const auto deeper = names_->Create(directory->ino, "f", File(0600));
  EXPECT_EQ(deeper->mode, S_IFREG | 0600u);

  const auto link = names_->Create(kRootInode, "l", {.mode = S_IFLNK, .symlink = "t"});
  EXPECT_THAT(*names_->ListExtendedAttributes(link->ino), IsEmpty());
}

TEST_F(NamespaceAttributes, AnInheritedListThatEqualsAModeIsNotStored) {
  const std::string acl = AclBytes({{1, 6, kNobody}, {4, 4, kNobody}, {0x20, 0, kNobody}});
  EXPECT_EQ(Set(kRootInode, kDefaultAclName, acl), std::nullopt);
  const auto file = names_->Create(kRootInode, "g", File(0777));
  EXPECT_EQ(file->mode, S_IFREG | 0640u);
  EXPECT_THAT(*names_->ListExtendedAttributes(file->ino), IsEmpty());
}

TEST_F(NamespaceAttributes, DamagedListsFailOperationsThatNeedThem) {
  EXPECT_EQ(Set(kAccessAclName, NamedUser()), std::nullopt);
  EXPECT_EQ(Set(kRootInode, kDefaultAclName, NamedUser()), std::nullopt);
  Put(keys::Attribute(file_, kAccessAclName), "torn");
  Put(keys::Attribute(kRootInode, kDefaultAclName), "torn");
  EXPECT_EQ(Code(names_->SetAttributes(file_, {.mode = 0})), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(names_->Create(kRootInode, "g", File())), ErrorCode::kCorrupt);
  EXPECT_TRUE(names_->SetAttributes(file_, {.uid = 0}));
}

TEST_F(NamespaceAttributes, SettingAnAccessListWithoutPrivilegeClearsSetGroupId) {
  const auto set = [&](std::string_view name, std::string_view list, bool keeps) {
    EXPECT_TRUE(names_->SetAttributes(kRootInode, {.mode = 06755}));
    EXPECT_EQ(Code(names_->SetExtendedAttribute(kRootInode, name, list, kAny, keeps)), std::nullopt);
    return names_->GetAttributes(kRootInode)->mode & 07000;
  };
  const std::string plain = AclBytes({{1, 7, kNobody}, {4, 5, kNobody}, {0x20, 5, kNobody}});
  for (const std::string& list : {plain, NamedUser()}) {
    EXPECT_EQ(set(kAccessAclName, list, false), 04000U);
    EXPECT_EQ(set(kAccessAclName, list, true), 06000U);
    EXPECT_EQ(set(kDefaultAclName, list, false), 06000U);
  }
  EXPECT_EQ(set(kAccessAclName, "", false), 06000U) << "taking a list away";
  EXPECT_EQ(set("user.a", "b", false), 06000U);
}

TEST_F(NamespaceAttributes, AWriteClearsPrivilegesAndNothingElse) {
  constexpr std::string_view kCapability = "security.capability";
  const InodePtr file = *inodes_->Get(file_);
  const auto clear = [&](uint32_t mode, bool set_ids) {
    EXPECT_TRUE(names_->SetAttributes(file_, {.mode = mode}));
    const auto changed = names_->ClearPrivileges(file, set_ids);
    EXPECT_TRUE(changed);
    const uint32_t now = names_->GetAttributes(file_)->mode & 07777;
    EXPECT_EQ(*changed, now != mode);
    return now;
  };
  EXPECT_EQ(clear(06755, true), 0755U);
  EXPECT_EQ(clear(06745, true), 02745U) << "of a file its group may not execute it means something else";
  EXPECT_EQ(clear(06755, false), 06755U);
  EXPECT_EQ(Set(std::string(kCapability), "all"), std::nullopt);
  EXPECT_EQ(Set("user.x", "1"), std::nullopt);
  EXPECT_EQ(clear(06755, false), 06755U);
  EXPECT_EQ(Code(names_->GetExtendedAttribute(file_, kCapability)), ErrorCode::kNoAttribute);
  EXPECT_EQ(*names_->GetExtendedAttribute(file_, "user.x"), "1");
  EXPECT_EQ(Set(std::string(kCapability), "all"), std::nullopt);
  kv_->FailWrite(1);
  EXPECT_FALSE(names_->ClearPrivileges(file, true)) << "nobody may write while they are there";
}

TEST_F(NamespaceAttributes, AChangeOfTheModeDuringAWriteRemains) {
  const InodePtr file = *inodes_->Get(file_);
  for (int round = 0; round < 2000; ++round) {
    ASSERT_TRUE(names_->SetAttributes(file_, {.mode = 04755}));
    std::atomic<int> ready{0};
    std::thread writer([&] {
      ++ready;
      while (ready < 2) {
      }
      EXPECT_TRUE(names_->ClearPrivileges(file, true));
    });
    ++ready;
    while (ready < 2) {
    }
    EXPECT_TRUE(names_->SetAttributes(file_, {.mode = 0600}));
    writer.join();
    ASSERT_EQ(names_->GetAttributes(file_)->mode & 07777, 0600U);
  }
}

}  // namespace
}  // namespace weightfs
