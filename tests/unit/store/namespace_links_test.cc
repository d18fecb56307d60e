// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/store/namespace_fixture.h"

namespace weightfs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Inodes with many links are faked: 65,000 calls would be slow.
class NamespaceLinks : public NamespaceTest {
 protected:
  void SetLinks(InodeId ino, uint32_t links) {
    InodeRecord record = StoredRecord(ino);
    record.links = links;
    Put(keys::Inode(ino), record.Encode());
    check_at_end_ = false;
    Restart();
  }
};

TEST_F(NamespaceLinks, AnEmptyDirectoryOfTooManyLinksIsRemoved) {
  const InodeId directory = MakeDirectory(kRootInode, "d");
  SetLinks(directory, 3);
  EXPECT_TRUE(names_->RemoveDirectory(kRootInode, "d"));
  EXPECT_FALSE(IsStored(keys::Inode(directory)));
}

TEST_F(NamespaceLinks, LinkAddsANameAndTouchesBoth) {
  const InodeId directory = MakeDirectory(kRootInode, "d"), file = MakeFile(kRootInode, "f");
  Age(directory);
  Age(file);
  const auto linked = names_->Link(file, directory, "g");
  ASSERT_TRUE(linked);
  EXPECT_EQ(linked->links, 2u);
  EXPECT_GT(linked->changed, Timestamp{1});
  EXPECT_EQ(linked->modified, Timestamp{1});
  EXPECT_EQ(Stat(directory).modified, linked->changed);
  EXPECT_EQ(names_->Lookup(directory, "g")->ino, file);
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  EXPECT_EQ(Stat(file).links, 1u);
  EXPECT_THAT(data_.deleted(), IsEmpty());
}

TEST_F(NamespaceLinks, LinkRefusesWhatPosixRefuses) {
  const InodeId directory = MakeDirectory(kRootInode, "d"), file = MakeFile(kRootInode, "f");
  EXPECT_EQ(Code(names_->Link(file, kRootInode, "f")), ErrorCode::kExists);
  EXPECT_EQ(Code(names_->Link(file, kRootInode, "..")), ErrorCode::kExists);
  EXPECT_EQ(Code(names_->Link(directory, kRootInode, "e")), ErrorCode::kPermission);
  EXPECT_EQ(Code(names_->Link(directory, directory, "e")), ErrorCode::kPermission);
  EXPECT_EQ(Code(names_->Link(file, file, "e")), ErrorCode::kNotDirectory);
  EXPECT_EQ(Code(names_->Link(file, kRootInode, std::string(256, 'n'))), ErrorCode::kNameTooLong);
  EXPECT_EQ(Code(names_->Link(InodeId{999}, kRootInode, "e")), ErrorCode::kStale);
}

TEST_F(NamespaceLinks, LinksAndSubdirectoriesAreLimited) {
  const InodeId file = MakeFile(kRootInode, "f"), full = MakeDirectory(kRootInode, "full");
  MakeDirectory(kRootInode, "d");
  MakeDirectory(full, "sub");
  MakeFile(full, "file");
  SetLinks(file, 65000);
  SetLinks(full, 65000);
  EXPECT_EQ(Code(names_->Link(file, kRootInode, "g")), ErrorCode::kTooManyLinks);
  EXPECT_EQ(Code(names_->Create(full, "e", Directory())), ErrorCode::kTooManyLinks);
  EXPECT_EQ(Code(names_->Rename(kRootInode, "d", full, "e", RenameMode::kReplace)), ErrorCode::kTooManyLinks);
  EXPECT_EQ(Code(names_->Rename(kRootInode, "d", full, "file", RenameMode::kExchange)), ErrorCode::kTooManyLinks);
  EXPECT_TRUE(names_->Rename(kRootInode, "d", full, "sub", RenameMode::kReplace));
  EXPECT_TRUE(names_->Rename(full, "sub", full, "other", RenameMode::kReplace));
  EXPECT_TRUE(names_->Create(full, "g", File()));
}

TEST_F(NamespaceLinks, UnlinkRefusesWhatPosixRefuses) {
  MakeDirectory(kRootInode, "d");
  const InodeId file = MakeFile(kRootInode, "f");
  EXPECT_EQ(Code(names_->Unlink(kRootInode, "none")), ErrorCode::kNotFound);
  EXPECT_EQ(Code(names_->Unlink(kRootInode, "d")), ErrorCode::kIsDirectory);
  EXPECT_EQ(Code(names_->Unlink(file, "x")), ErrorCode::kNotDirectory);
  EXPECT_EQ(Code(names_->Unlink(kRootInode, std::string(256, 'n'))), ErrorCode::kNameTooLong);
}

TEST_F(NamespaceLinks, UnlinkTouchesTheParentAndTheFile) {
  const InodeId file = MakeFile(kRootInode, "f");
  ASSERT_TRUE(names_->Link(file, kRootInode, "g"));
  Age(kRootInode);
  Age(file);
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  EXPECT_GT(Stat(file).changed, Timestamp{1});
  EXPECT_EQ(Stat(file).modified, Timestamp{1});
  EXPECT_EQ(Stat(kRootInode).modified, Stat(file).changed);
}

TEST_F(NamespaceLinks, RemoveDirectoryRefusesWhatPosixRefuses) {
  const InodeId directory = MakeDirectory(kRootInode, "d");
  MakeFile(kRootInode, "f");
  MakeFile(directory, "x");
  EXPECT_EQ(Code(names_->RemoveDirectory(kRootInode, "none")), ErrorCode::kNotFound);
  EXPECT_EQ(Code(names_->RemoveDirectory(kRootInode, "f")), ErrorCode::kNotDirectory);
  EXPECT_EQ(Code(names_->RemoveDirectory(kRootInode, "d")), ErrorCode::kNotEmpty);
  EXPECT_EQ(Code(names_->RemoveDirectory(directory, ".")), ErrorCode::kInvalid);
  EXPECT_EQ(Code(names_->RemoveDirectory(directory, "..")), ErrorCode::kNotEmpty);
  ASSERT_TRUE(names_->Unlink(directory, "x"));
  EXPECT_EQ(Stat(kRootInode).links, 3u);
  EXPECT_TRUE(names_->RemoveDirectory(kRootInode, "d"));
  EXPECT_EQ(Stat(kRootInode).links, 2u);
  EXPECT_FALSE(IsStored(keys::Inode(directory)));
}

class NamespaceRename : public NamespaceLinks {
 protected:
  std::optional<ErrorCode> Rename(InodeId from, std::string_view name, InodeId to, std::string_view new_name,
                                  RenameMode mode = RenameMode::kReplace) {
    return Code(names_->Rename(from, name, to, new_name, mode));
  }
};

TEST_F(NamespaceRename, MovesAFileAndTouchesAllThree) {
  const InodeId from = MakeDirectory(kRootInode, "from"), to = MakeDirectory(kRootInode, "to");
  const InodeId file = MakeFile(from, "f");
  for (const InodeId ino : {from, to, file}) Age(ino);
  EXPECT_EQ(Rename(from, "f", to, "g"), std::nullopt);
  EXPECT_THAT(List(from), ElementsAre(".", ".."));
  EXPECT_EQ(names_->Lookup(to, "g")->ino, file);
  EXPECT_GT(Stat(file).changed, Timestamp{1});
  EXPECT_EQ(Stat(file).modified, Timestamp{1});
  EXPECT_EQ(Stat(from).modified, Stat(file).changed);
  EXPECT_EQ(Stat(to).modified, Stat(file).changed);
}

TEST_F(NamespaceRename, MovedDirectoriesChangeTheirParent) {
  const InodeId from = MakeDirectory(kRootInode, "from"), to = MakeDirectory(kRootInode, "to");
  const InodeId moved = MakeDirectory(from, "d");
  EXPECT_EQ(Rename(from, "d", to, "e"), std::nullopt);
  EXPECT_EQ(Stat(from).links, 2u);
  EXPECT_EQ(Stat(to).links, 3u);
  EXPECT_EQ(names_->Lookup(moved, "..")->ino, to);
  EXPECT_EQ(Rename(to, "e", to, "f"), std::nullopt);
  EXPECT_EQ(Stat(to).links, 3u);
}

TEST_F(NamespaceRename, ReplacedFilesAreDeleted) {
  const InodeId old_file = MakeFile(kRootInode, "f"), new_file = MakeFile(kRootInode, "g");
  EXPECT_EQ(Rename(kRootInode, "g", kRootInode, "f"), std::nullopt);
  EXPECT_EQ(names_->Lookup(kRootInode, "f")->ino, new_file);
  EXPECT_THAT(data_.deleted(), ElementsAre(old_file.value));
  EXPECT_FALSE(IsStored(keys::Inode(old_file)));
}

TEST_F(NamespaceRename, ReplacedFilesInUseBecomeOrphans) {
  const InodeId old_file = MakeFile(kRootInode, "f");
  MakeFile(kRootInode, "g");
  const InodePtr open = *names_->Open(old_file);
  EXPECT_EQ(Rename(kRootInode, "g", kRootInode, "f"), std::nullopt);
  EXPECT_TRUE(IsStored(keys::Orphan(old_file)));
  names_->Close(open);
  EXPECT_FALSE(IsStored(keys::Inode(old_file)));
}

TEST_F(NamespaceRename, ReplacedDirectoriesMustBeEmpty) {
  const InodeId a = MakeDirectory(kRootInode, "a"), b = MakeDirectory(kRootInode, "b");
  const InodeId inner = MakeDirectory(a, "inner");
  MakeFile(b, "x");
  EXPECT_EQ(Rename(a, "inner", kRootInode, "b"), ErrorCode::kNotEmpty);
  ASSERT_TRUE(names_->Unlink(b, "x"));
  EXPECT_EQ(Rename(a, "inner", kRootInode, "b"), std::nullopt);
  EXPECT_EQ(Stat(kRootInode).links, 4u);
  EXPECT_EQ(Stat(a).links, 2u);
  EXPECT_EQ(names_->Lookup(inner, "..")->ino, kRootInode);
  // The directory loses a name and with it a link.
  EXPECT_EQ(Rename(kRootInode, "a", kRootInode, "b"), std::nullopt);
  EXPECT_EQ(Stat(kRootInode).links, 3u);
}

TEST_F(NamespaceRename, TypesMustFit) {
  const InodeId directory = MakeDirectory(kRootInode, "d"), file = MakeFile(kRootInode, "f");
  EXPECT_EQ(Rename(kRootInode, "d", kRootInode, "f"), ErrorCode::kNotDirectory);
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "d"), ErrorCode::kIsDirectory);
  EXPECT_EQ(Rename(kRootInode, "none", kRootInode, "f"), ErrorCode::kNotFound);
  EXPECT_EQ(Rename(kRootInode, ".", kRootInode, "f"), ErrorCode::kInvalid);
  EXPECT_EQ(Rename(kRootInode, "f", file, "x"), ErrorCode::kNotDirectory);
  EXPECT_EQ(Rename(kRootInode, "f", directory, std::string(256, 'n')), ErrorCode::kNameTooLong);
}

TEST_F(NamespaceRename, RenamingBetweenTwoNamesOfOneInodeKeepsBoth) {
  const InodeId file = MakeFile(kRootInode, "f");
  ASSERT_TRUE(names_->Link(file, kRootInode, "g"));
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "g"), std::nullopt);
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "f"), std::nullopt);
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "g", RenameMode::kExchange), std::nullopt);
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "g", RenameMode::kNoReplace), ErrorCode::kExists);
  EXPECT_EQ(Stat(file).links, 2u);
  EXPECT_THAT(List(kRootInode), ElementsAre(".", "..", "f", "g"));
}

TEST_F(NamespaceRename, ADirectoryCannotMoveBelowItself) {
  const InodeId a = MakeDirectory(kRootInode, "a"), b = MakeDirectory(a, "b"), c = MakeDirectory(b, "c");
  MakeFile(c, "f");
  EXPECT_EQ(Rename(kRootInode, "a", a, "x"), ErrorCode::kInvalid);
  EXPECT_EQ(Rename(kRootInode, "a", c, "x"), ErrorCode::kInvalid);
  EXPECT_EQ(Rename(kRootInode, "a", b, "c", RenameMode::kExchange), ErrorCode::kInvalid);
  EXPECT_EQ(Rename(c, "f", kRootInode, "a", RenameMode::kExchange), ErrorCode::kInvalid);
  EXPECT_EQ(Rename(b, "c", kRootInode, "a"), ErrorCode::kNotEmpty);
  EXPECT_EQ(Rename(b, "c", kRootInode, "c"), std::nullopt);
}

// The way to the root of a deep directory is searched without the mutex.
class DeepRename : public NamespaceTest {
 protected:
  static constexpr int kDepth = 200;
  InodeId MakeChain(std::string_view name) {
    InodeId bottom = MakeDirectory(kRootInode, name);
    for (int depth = 1; depth < kDepth; ++depth) bottom = MakeDirectory(bottom, "d");
    return bottom;
  }
  std::optional<ErrorCode> Rename(std::string_view from, InodeId to, std::string_view name,
                                  RenameMode mode = RenameMode::kReplace) {
    const auto renamed = names_->Rename(kRootInode, from, to, name, mode);
    return renamed ? std::nullopt : std::optional(renamed.error().code);
  }
};

TEST_F(DeepRename, ADirectoryCannotMoveFarBelowItself) {
  const InodeId bottom = MakeChain("a");
  const InodeId other = MakeDirectory(kRootInode, "b"), last = MakeDirectory(bottom, "last");
  EXPECT_EQ(Rename("a", bottom, "x"), ErrorCode::kInvalid);
  EXPECT_EQ(Rename("a", bottom, "last", RenameMode::kExchange), ErrorCode::kInvalid);
  EXPECT_EQ(Rename("b", bottom, "last", RenameMode::kExchange), std::nullopt);
  EXPECT_EQ(names_->Lookup(kRootInode, "b")->ino, last);
  EXPECT_EQ(Rename("b", bottom, "last"), std::nullopt) << "it replaces an empty directory";
  EXPECT_EQ(names_->Lookup(last, "..")->ino, bottom);
  EXPECT_EQ(names_->GetAttributes(other).error().code, ErrorCode::kStale);
}

TEST_F(DeepRename, ADirectoryThatMovesMeanwhileIsNoticed) {
  const InodeId a = MakeChain("a"), b = MakeChain("b");
  data_.on_look = [&] { EXPECT_EQ(Rename("b", a, "x"), std::nullopt); };
  data_.looks_before_call = 2;  // after the search, which found no obstacle
  EXPECT_EQ(Rename("a", b, "x"), ErrorCode::kInvalid);
}

TEST_F(NamespaceRename, NoReplaceReplacesNothing) {
  MakeFile(kRootInode, "f");
  const InodeId other = MakeFile(kRootInode, "g");
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "g", RenameMode::kNoReplace), ErrorCode::kExists);
  EXPECT_EQ(names_->Lookup(kRootInode, "g")->ino, other);
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "h", RenameMode::kNoReplace), std::nullopt);
}

TEST_F(NamespaceRename, ExchangeSwapsFilesAndDirectories) {
  const InodeId a = MakeDirectory(kRootInode, "a"), b = MakeDirectory(kRootInode, "b"), one = MakeDirectory(a, "one");
  const InodeId file = MakeFile(b, "file"), two = MakeDirectory(b, "two");
  EXPECT_EQ(Rename(a, "one", b, "none", RenameMode::kExchange), ErrorCode::kNotFound);
  EXPECT_EQ(Rename(a, "one", b, "two", RenameMode::kExchange), std::nullopt);
  EXPECT_EQ(names_->Lookup(a, "one")->ino, two);
  EXPECT_EQ(names_->Lookup(two, "..")->ino, a);
  EXPECT_EQ(names_->Lookup(one, "..")->ino, b);
  EXPECT_EQ(Rename(b, "two", a, "one", RenameMode::kExchange), std::nullopt);
  // Exchanges a file and a directory: one parent loses a link, the other gains it.
  EXPECT_EQ(Rename(b, "file", a, "one", RenameMode::kExchange), std::nullopt);
  EXPECT_EQ(Stat(a).links, 2u);
  EXPECT_EQ(Stat(b).links, 4u);
  EXPECT_EQ(names_->Lookup(a, "one")->ino, file);
  EXPECT_EQ(names_->Lookup(b, "file")->ino, one);
  EXPECT_THAT(data_.deleted(), IsEmpty());
}

TEST_F(NamespaceRename, DataIsInTheCatalogBeforeTheName) {
  const InodeId file = MakeFile(kRootInode, "f"), other = MakeFile(kRootInode, "g");
  MakeDirectory(kRootInode, "d");
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "x"), std::nullopt);
  EXPECT_THAT(data_.committed(), ElementsAre(file.value));
  EXPECT_EQ(Rename(kRootInode, "x", kRootInode, "g", RenameMode::kExchange), std::nullopt);
  EXPECT_THAT(data_.committed(), ElementsAre(file.value, file.value, other.value));
  EXPECT_EQ(Rename(kRootInode, "d", kRootInode, "e"), std::nullopt);
  EXPECT_EQ(data_.committed().size(), 3u);
}

TEST_F(NamespaceRename, OnlyUncommittedFilesBelowADirectoryAreCommitted) {
  const InodeId d = MakeDirectory(kRootInode, "d"), inner = MakeDirectory(d, "inner");
  const InodeId below = MakeFile(inner, "f"), clean = MakeFile(d, "clean"), elsewhere = MakeFile(kRootInode, "g");
  for (const InodeId ino : {below, elsewhere}) data_.uncommitted.push_back(*inodes_->Get(ino));
  EXPECT_EQ(Rename(kRootInode, "d", kRootInode, "e"), std::nullopt);
  EXPECT_THAT(data_.committed(), ElementsAre(below.value)) << "not " << clean.value << ", not " << elsewhere.value;
}

TEST_F(NamespaceRename, RenamingASymbolicLinkCommitsAllSettledFiles) {
  CreateRequest request;
  request.mode = S_IFLNK | 0777;
  request.symlink = "step-1";
  ASSERT_TRUE(names_->Create(kRootInode, "latest.tmp", request));
  EXPECT_EQ(Rename(kRootInode, "latest.tmp", kRootInode, "latest"), std::nullopt);
  EXPECT_EQ(data_.settled, 0) << "nothing was uncommitted";
  data_.uncommitted.push_back(*inodes_->Get(MakeFile(kRootInode, "f")));
  EXPECT_EQ(Rename(kRootInode, "latest", kRootInode, "best"), std::nullopt);
  EXPECT_EQ(data_.settled, 1);
}

TEST_F(NamespaceRename, ALinkIsMadeAfterTheDataOfItsFile) {
  const InodeId file = MakeFile(kRootInode, "f");
  ASSERT_TRUE(names_->Link(file, kRootInode, "g"));
  EXPECT_THAT(data_.committed(), ElementsAre(file.value));
  data_.commit_error = ErrorCode::kIo;
  EXPECT_EQ(Code(names_->Link(file, kRootInode, "h")), ErrorCode::kIo);
  EXPECT_EQ(Code(names_->Lookup(kRootInode, "h")), ErrorCode::kNotFound);
}

TEST_F(NamespaceRename, AFailedCommitOfDataLeavesTheNames) {
  const InodeId file = MakeFile(kRootInode, "f");
  data_.commit_error = ErrorCode::kNoSpace;
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "g"), ErrorCode::kNoSpace);
  EXPECT_EQ(names_->Lookup(kRootInode, "f")->ino, file);
  EXPECT_EQ(Code(names_->Lookup(kRootInode, "g")), ErrorCode::kNotFound);
}

TEST_F(NamespaceRename, ACommitThatFailsAsAWholeLeavesTheNames) {
  MakeFile(kRootInode, "f");
  data_.on_commit = [&] { data_.failed = true; };
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "g"), ErrorCode::kReadOnly);
  EXPECT_EQ(Code(names_->Lookup(kRootInode, "g")), ErrorCode::kNotFound);
}

TEST_F(NamespaceRename, AFileThatTookTheNameMeanwhileIsCommittedToo) {
  MakeFile(kRootInode, "f");
  InodeId second;
  data_.on_commit = [&] {
    ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
    second = MakeFile(kRootInode, "f");
  };
  EXPECT_EQ(Rename(kRootInode, "f", kRootInode, "g"), std::nullopt);
  EXPECT_EQ(names_->Lookup(kRootInode, "g")->ino, second);
  EXPECT_EQ(data_.committed().back(), second.value);
}

}  // namespace
}  // namespace weightfs
