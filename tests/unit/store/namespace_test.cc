// SPDX-License-Identifier: Apache-2.0
#include <latch>
#include <thread>

#include "meta/records.h"
#include "tests/unit/store/namespace_fixture.h"

namespace weightfs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using NamespaceBasics = NamespaceTest;

TEST_F(NamespaceBasics, RootIsADirectoryOfItsOwner) {
  const Attributes root = Stat(kRootInode);
  EXPECT_EQ(root.mode, S_IFDIR | 0755u);
  EXPECT_EQ(root.uid, 10u);
  EXPECT_EQ(root.gid, 20u);
  EXPECT_EQ(root.links, 2u);
  EXPECT_EQ(names_->Lookup(kRootInode, "..")->ino, kRootInode);
  EXPECT_EQ(names_->inode_count(), 1u);
}

TEST_F(NamespaceBasics, InitializeRefusesACatalogInUse) {
  EXPECT_EQ(Code(Namespace::Initialize(*kv_, 0, 0)), ErrorCode::kExists);
}

TEST_F(NamespaceBasics, CreateReturnsTheRequestedAttributes) {
  CreateRequest request = File(0666);
  request.umask = 0027;
  const auto file = names_->Create(kRootInode, "f", request);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->mode, S_IFREG | 0640u);
  EXPECT_EQ(file->uid, 1u);
  EXPECT_EQ(file->gid, 2u);
  EXPECT_EQ(file->links, 1u);
  EXPECT_EQ(file->size, 0u);
  EXPECT_EQ(file->created, file->modified);
  EXPECT_EQ(file->created, file->accessed);
  EXPECT_EQ(names_->Lookup(kRootInode, "f")->ino, file->ino);
  EXPECT_EQ(names_->inode_count(), 2u);
}

TEST_F(NamespaceBasics, EveryTypeSurvivesARestart) {
  const CreateRequest device{.mode = S_IFCHR | 0600, .device_major = 5, .device_minor = 7};
  const auto node = names_->Create(kRootInode, "node", device);
  const auto pipe = names_->Create(kRootInode, "pipe", {.mode = S_IFIFO | 0600});
  const auto socket = names_->Create(kRootInode, "socket", {.mode = S_IFSOCK | 0600});
  const auto link = names_->Create(kRootInode, "link", {.mode = S_IFLNK, .symlink = "over/there"});
  const auto plain = names_->Create(kRootInode, "plain", {.mode = 0600});
  ASSERT_TRUE(node && pipe && socket && link && plain);
  Restart();
  EXPECT_EQ(Stat(node->ino).device_major, 5u);
  EXPECT_EQ(Stat(node->ino).device_minor, 7u);
  EXPECT_EQ(Stat(pipe->ino).mode, S_IFIFO | 0600u);
  EXPECT_EQ(Stat(socket->ino).mode, S_IFSOCK | 0600u);
  EXPECT_EQ(Stat(plain->ino).mode, S_IFREG | 0600u);
  EXPECT_EQ(Stat(link->ino).mode, S_IFLNK | 0777u);
  EXPECT_EQ(Stat(link->ino).size, 10u);
  EXPECT_EQ(*names_->ReadLink(link->ino), "over/there");
  EXPECT_EQ(Code(names_->ReadLink(pipe->ino)), ErrorCode::kInvalid);
  EXPECT_EQ(names_->inode_count(), 6u);
}

TEST_F(NamespaceBasics, CreateRefusesWhatPosixRefuses) {
  const InodeId file = MakeFile(kRootInode, "f");
  EXPECT_EQ(Code(names_->Create(kRootInode, "f", File())), ErrorCode::kExists);
  EXPECT_EQ(Code(names_->Create(kRootInode, ".", File())), ErrorCode::kExists);
  EXPECT_EQ(Code(names_->Create(file, "g", File())), ErrorCode::kNotDirectory);
  EXPECT_EQ(Code(names_->Create(InodeId{999}, "g", File())), ErrorCode::kStale);
  EXPECT_EQ(Code(names_->Create(kRootInode, "", File())), ErrorCode::kNotFound);
  EXPECT_EQ(Code(names_->Create(kRootInode, "a/b", File())), ErrorCode::kInvalid);
  EXPECT_EQ(Code(names_->Create(kRootInode, std::string(256, 'n'), File())), ErrorCode::kNameTooLong);
  EXPECT_EQ(Code(names_->Create(kRootInode, "t", {.mode = S_IFMT})), ErrorCode::kInvalid);
  EXPECT_TRUE(names_->Create(kRootInode, std::string(255, 'n'), File()));
}

TEST_F(NamespaceBasics, SymbolicLinksHaveATargetOfBoundedLength) {
  const auto link = [&](std::string_view target) {
    return Code(names_->Create(kRootInode, "l", {.mode = S_IFLNK, .symlink = target}));
  };
  EXPECT_EQ(link(""), ErrorCode::kNotFound);
  EXPECT_EQ(link(std::string(4096, 't')), ErrorCode::kNameTooLong);
  EXPECT_EQ(link(std::string_view("a\0b", 3)), ErrorCode::kInvalid);
  EXPECT_EQ(link(std::string(4095, 't')), std::nullopt);
}

TEST_F(NamespaceBasics, LookupRefusesWhatPosixRefuses) {
  const InodeId file = MakeFile(kRootInode, "f");
  EXPECT_EQ(Code(names_->Lookup(kRootInode, "none")), ErrorCode::kNotFound);
  EXPECT_EQ(Code(names_->Lookup(file, "f")), ErrorCode::kNotDirectory);
  EXPECT_EQ(Code(names_->Lookup(kRootInode, std::string(256, 'n'))), ErrorCode::kNameTooLong);
  EXPECT_EQ(names_->Lookup(kRootInode, ".")->ino, kRootInode);
}

TEST_F(NamespaceBasics, CreateTouchesTheParent) {
  Age(kRootInode);
  const auto file = names_->Create(kRootInode, "f", File());
  EXPECT_EQ(Stat(kRootInode).modified, file->created);
  EXPECT_EQ(Stat(kRootInode).changed, file->created);
  EXPECT_EQ(Stat(kRootInode).accessed, Timestamp{1});
  EXPECT_EQ(Stat(kRootInode).links, 2u);
  MakeDirectory(kRootInode, "d");
  EXPECT_EQ(Stat(kRootInode).links, 3u);
}

TEST_F(NamespaceBasics, SetGroupIdDirectoriesHandDownTheirGroup) {
  const auto parent = names_->Create(kRootInode, "p", {.mode = S_IFDIR | S_ISGID | 0770, .uid = 1, .gid = 77});
  const auto file = names_->Create(parent->ino, "f", File());
  const auto directory = names_->Create(parent->ino, "d", Directory());
  EXPECT_EQ(file->gid, 77u);
  EXPECT_EQ(file->mode & S_ISGID, 0u);
  EXPECT_EQ(directory->gid, 77u);
  EXPECT_NE(directory->mode & S_ISGID, 0u);
}

TEST_F(NamespaceBasics, ReadDirectoryListsDotsThenNamesInOrder) {
  const InodeId directory = MakeDirectory(kRootInode, "d");
  const InodeId file = MakeFile(directory, "b");
  MakeDirectory(directory, "a");
  EXPECT_THAT(List(directory), ElementsAre(".", "..", "a", "b"));
  const auto entries = ReadDirectory(*names_, directory);
  EXPECT_EQ((*entries)[0].ino, directory);
  EXPECT_EQ((*entries)[1].ino, kRootInode);
  EXPECT_EQ((*entries)[2].type, static_cast<uint32_t>(S_IFDIR));
  EXPECT_EQ((*entries)[3].ino, file);
  EXPECT_EQ(Code(ReadDirectory(*names_, file)), ErrorCode::kNotDirectory);
}

TEST_F(NamespaceBasics, SetAttributesSetsOnlyTheGivenFields) {
  const InodeId file = MakeFile(kRootInode, "f");
  Age(file);
  const auto changed = names_->SetAttributes(file, {.mode = 04711, .uid = 5, .gid = 6, .modified = Timestamp{7, 8}});
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->mode, S_IFREG | 04711u);
  EXPECT_EQ(changed->uid, 5u);
  EXPECT_EQ(changed->gid, 6u);
  EXPECT_EQ(changed->accessed, Timestamp{1});
  EXPECT_EQ(changed->modified, (Timestamp{7, 8}));
  EXPECT_GT(changed->changed, Timestamp{1});
  Restart();
  EXPECT_EQ(Stat(file).mode, S_IFREG | 04711u);
  EXPECT_EQ(Stat(file).changed, changed->changed);
}

TEST_F(NamespaceBasics, ASizeAloneIsIgnored) {
  const InodeId file = MakeFile(kRootInode, "f");
  const size_t events = journal_->size();
  EXPECT_EQ(names_->SetAttributes(file, {.size = 5})->size, 0u);
  EXPECT_EQ(journal_->size(), events);
}

TEST_F(NamespaceBasics, TheCommittedSizeIsWhatOperationsStore) {
  const InodeId file = MakeFile(kRootInode, "f");
  const InodePtr inode = *names_->Open(file);
  {
    MutexLock lock(inode->mutex);
    inode->attributes.size = 12345;  // written, not yet committed
  }
  ASSERT_TRUE(names_->SetAttributes(file, {.mode = 0600}));
  EXPECT_EQ(Stat(file).size, 12345u);
  EXPECT_EQ(StoredRecord(file).size, 0u);
  names_->Close(inode);
}

TEST_F(NamespaceBasics, InodeNumbersAreNeverUsedAgain) {
  const InodeId first = MakeFile(kRootInode, "f");
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  Restart();
  const InodeId second = MakeFile(kRootInode, "f");
  EXPECT_GT(second, first);
  // More than one step of the bound, in a single mount.
  InodeId last = second;
  for (int i = 0; i < 1500; ++i) {
    const InodeId next = MakeFile(kRootInode, "n" + std::to_string(i));
    EXPECT_EQ(next.value, last.value + 1);
    last = next;
  }
  EXPECT_GT(ReadFact(*kv_, kNextInodeFact)->value(), last.value);
}

TEST_F(NamespaceBasics, AFailedWriteChangesNothing) {
  const InodeId directory = MakeDirectory(kRootInode, "d");
  const InodeId file = MakeFile(directory, "f");
  const Attributes before = Stat(directory), file_before = Stat(file);
  kv_->FailWrite(1);  // and all later ones, as the contract says
  EXPECT_EQ(Code(names_->Create(directory, "g", File())), ErrorCode::kIo);
  EXPECT_TRUE(Code(names_->Create(directory, "h", Directory())));
  EXPECT_TRUE(Code(names_->Link(file, directory, "l")));
  EXPECT_TRUE(Code(names_->Rename(directory, "f", kRootInode, "f", RenameMode::kReplace)));
  EXPECT_TRUE(Code(names_->Unlink(directory, "f")));
  EXPECT_TRUE(Code(names_->SetAttributes(file, {.mode = 0})));
  EXPECT_TRUE(Code(names_->SetExtendedAttribute(file, "user.a", "v", AttributeWrite::kAny)));
  EXPECT_TRUE(Code(names_->CreateUnnamed(directory, File())));
  EXPECT_EQ(Stat(directory).links, before.links);
  EXPECT_EQ(Stat(directory).modified, before.modified);
  EXPECT_EQ(Stat(file).links, 1u);
  EXPECT_EQ(Stat(file).mode, file_before.mode);
  EXPECT_EQ(Stat(file).changed, file_before.changed);
  EXPECT_THAT(List(directory), ElementsAre(".", "..", "f"));
  EXPECT_EQ(Code(names_->GetExtendedAttribute(file, "user.a")), ErrorCode::kNoAttribute);
  EXPECT_EQ(names_->inode_count(), 3u);
}

TEST_F(NamespaceBasics, AReadOnlyNamespaceRefusesChangesAndKeepsOrphans) {
  const auto orphan = names_->CreateUnnamed(kRootInode, File());
  MakeFile(kRootInode, "f");
  const auto before = kv_->content();
  names_.reset();
  inodes_ = std::make_unique<InodeTable>(*kv_, file_services_.services(), 64);
  names_ = std::make_unique<Namespace>(*kv_, *inodes_, data_);
  data_.read_only = true;
  ASSERT_TRUE(names_->Recover(/*read_only=*/true));
  EXPECT_EQ(Code(names_->Create(kRootInode, "g", File())), ErrorCode::kReadOnly);
  EXPECT_EQ(Code(names_->Unlink(kRootInode, "f")), ErrorCode::kReadOnly);
  EXPECT_EQ(Code(names_->RemoveDirectory(kRootInode, "f")), ErrorCode::kReadOnly);
  EXPECT_EQ(Code(names_->Rename(kRootInode, "f", kRootInode, "g", RenameMode::kReplace)), ErrorCode::kReadOnly);
  EXPECT_EQ(Code(names_->SetAttributes(kRootInode, {.mode = 0})), ErrorCode::kReadOnly);
  EXPECT_EQ(Code(names_->SetExtendedAttribute(kRootInode, "user.a", "", AttributeWrite::kAny)), ErrorCode::kReadOnly);
  EXPECT_EQ(Code(names_->RemoveExtendedAttribute(kRootInode, "user.a")), ErrorCode::kReadOnly);
  names_->Close(*names_->Open(orphan->ino));
  names_->Forget(orphan->ino, 1);
  EXPECT_EQ(kv_->content(), before);
}

TEST_F(NamespaceBasics, TheNumberOfInodesIsStoredAtTheEndAndOtherwiseCounted) {
  const std::string fact = keys::Store(kInodeCountFact);
  EXPECT_TRUE(IsStored(fact)) << "of a new store";
  MakeFile(kRootInode, "f");
  EXPECT_FALSE(IsStored(fact));
  Restart();
  EXPECT_EQ(names_->inode_count(), 2u);
  MakeFile(kRootInode, "g");
  ASSERT_TRUE(names_->StoreCount());
  EXPECT_EQ(kv_->content().at(fact), EncodeFact(3));
  Restart();
  EXPECT_EQ(names_->inode_count(), 3u);
  Put(fact, "garbage");
  Restart();
  ASSERT_TRUE(names_->StoreCount());
  EXPECT_EQ(kv_->content().at(fact), EncodeFact(3)) << "counted by the mount, which then changes nothing";
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  EXPECT_FALSE(IsStored(fact));
}

using NamespaceOrphans = NamespaceTest;

TEST_F(NamespaceOrphans, AnUnlinkedFileLivesUntilItsLastClose) {
  const InodeId file = MakeFile(kRootInode, "f");
  ASSERT_TRUE(names_->SetExtendedAttribute(file, "user.a", "v", AttributeWrite::kAny));
  const InodePtr first = *names_->Open(file), second = *names_->Open(file);
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  EXPECT_EQ(Stat(file).links, 0u);
  EXPECT_TRUE(IsStored(keys::Orphan(file)));
  names_->Close(first);
  EXPECT_EQ(Stat(file).links, 0u);
  EXPECT_THAT(data_.deleted(), IsEmpty());
  names_->Close(second);
  EXPECT_EQ(Code(names_->GetAttributes(file)), ErrorCode::kStale);
  EXPECT_EQ(Code(names_->Open(file)), ErrorCode::kStale);
  EXPECT_FALSE(IsStored(keys::Orphan(file)));
  EXPECT_FALSE(IsStored(keys::Inode(file)));
  EXPECT_FALSE(IsStored(keys::Attribute(file, "user.a")));
  EXPECT_THAT(data_.deleted(), ElementsAre(file.value));
  EXPECT_EQ(names_->inode_count(), 1u);
}

TEST_F(NamespaceOrphans, AnUnlinkedFileLivesUntilTheKernelForgetsIt) {
  const InodeId file = MakeFile(kRootInode, "f");
  inodes_->AddLookups(file, 3);
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  names_->Forget(file, 2);
  EXPECT_EQ(Stat(file).links, 0u);
  names_->Forget(file, 1);
  EXPECT_EQ(Code(names_->GetAttributes(file)), ErrorCode::kStale);
  EXPECT_THAT(data_.deleted(), ElementsAre(file.value));
}

TEST_F(NamespaceOrphans, AnUnlinkedFileLivesUntilBothCloseAndForget) {
  const InodeId file = MakeFile(kRootInode, "f");
  inodes_->AddLookups(file, 1);
  const InodePtr open = *names_->Open(file);
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  names_->Forget(file, 1);
  EXPECT_EQ(Stat(file).links, 0u);
  names_->Close(open);
  EXPECT_EQ(Code(names_->GetAttributes(file)), ErrorCode::kStale);
}

TEST_F(NamespaceOrphans, OrphansAreNotEvictedByNewInodes) {
  const InodeId file = MakeFile(kRootInode, "f");
  inodes_->AddLookups(file, 1);
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  for (int i = 0; i < 200; ++i) MakeFile(kRootInode, std::to_string(i));
  names_->Forget(file, 1);
  EXPECT_FALSE(IsStored(keys::Inode(file)));
}

TEST_F(NamespaceOrphans, AnUnusedFileGoesAtOnceInOneBatch) {
  const InodeId file = MakeFile(kRootInode, "f");
  const size_t events = journal_->size();
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  EXPECT_EQ(journal_->size(), events + 1);
  EXPECT_FALSE(IsStored(keys::Inode(file)));
  EXPECT_THAT(data_.deleted(), ElementsAre(file.value));
}

TEST_F(NamespaceOrphans, AClosedFileThatTheKernelKnowsGoesInOneBatch) {
  const InodeId file = MakeFile(kRootInode, "f");
  inodes_->AddLookups(file, 1);
  const size_t events = journal_->size();
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  EXPECT_FALSE(IsStored(keys::Inode(file)));
  EXPECT_FALSE(IsStored(keys::Orphan(file)));
  EXPECT_TRUE(names_->HasOrphans());
  EXPECT_THAT(data_.deleted(), IsEmpty()) << "it may be opened again";
  names_->Forget(file, 1);
  EXPECT_EQ(journal_->size(), events + 1);
  EXPECT_FALSE(names_->HasOrphans());
  EXPECT_THAT(data_.deleted(), ElementsAre(file.value));
  EXPECT_EQ(Code(names_->Open(file)), ErrorCode::kStale);
  EXPECT_EQ(inodes_->Find(file), nullptr);
}

TEST_F(NamespaceOrphans, AnOperationOnADeletedFilePutsItsRecordsBack) {
  const std::vector<std::function<bool(InodeId)>> operations = {
      [&](InodeId ino) { return names_->SetAttributes(ino, {.mode = 0600}).has_value(); },
      [&](InodeId ino) { return names_->SetExtendedAttribute(ino, "user.a", "v", AttributeWrite::kAny).has_value(); },
      [&](InodeId ino) { return Code(names_->RemoveExtendedAttribute(ino, "user.a")) == ErrorCode::kNoAttribute; },
      [&](InodeId ino) {
        const auto opened = names_->Open(ino);
        if (opened) names_->Close(*opened);
        return opened.has_value();
      },
  };
  for (size_t at = 0; at < operations.size(); ++at) {
    const InodeId file = MakeFile(kRootInode, "f");
    inodes_->AddLookups(file, 1);
    ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
    EXPECT_EQ(Code(names_->GetExtendedAttribute(file, "user.a")), ErrorCode::kNoAttribute);
    EXPECT_FALSE(IsStored(keys::Inode(file))) << at;
    EXPECT_TRUE(operations[at](file)) << at;
    EXPECT_TRUE(IsStored(keys::Inode(file)) && IsStored(keys::Orphan(file))) << at;
    EXPECT_EQ(names_->inode_count(), 2u);
    names_->Forget(file, 1);
    EXPECT_FALSE(IsStored(keys::Inode(file)) || IsStored(keys::Orphan(file))) << at;
    EXPECT_THAT(data_.deleted(), ::testing::Contains(file.value));
  }
}

TEST_F(NamespaceOrphans, TheAttributesOfADeletedFileAreReadFromAReadOnlyStore) {
  const InodeId file = MakeFile(kRootInode, "f");
  inodes_->AddLookups(file, 1);
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  kv_->FailWrite(1);
  EXPECT_EQ(Stat(file).links, 0u);
  EXPECT_EQ(Code(names_->Link(file, kRootInode, "g")), ErrorCode::kNotFound);
  EXPECT_EQ(Code(names_->Open(file)), ErrorCode::kIo);
}

// Of a file that is unlinked at that moment, and that the kernel knows.
TEST_F(NamespaceOrphans, NoUseOfAFileIsStaleBesideItsUnlink) {
  const std::vector<std::function<bool(InodeId)>> operations = {
      [&](InodeId ino) { return names_->GetAttributes(ino).has_value(); },
      [&](InodeId ino) { return names_->SetAttributes(ino, {.mode = 0600}).has_value(); },
      [&](InodeId ino) { return names_->SetExtendedAttribute(ino, "user.a", "v", AttributeWrite::kAny).has_value(); },
      [&](InodeId ino) {
        const auto opened = names_->Open(ino);
        if (opened) names_->Close(*opened);
        return opened.has_value();
      },
  };
  for (int round = 0; round < 2000; ++round) {
    const InodeId file = MakeFile(kRootInode, "f");
    inodes_->AddLookups(file, 1);
    std::latch begin(2);
    std::thread unlink([&] {
      begin.arrive_and_wait();
      EXPECT_TRUE(names_->Unlink(kRootInode, "f"));
    });
    begin.arrive_and_wait();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(operations[round % operations.size()](file)) << round;
    unlink.join();
    names_->Forget(file, 1);
  }
}

TEST_F(NamespaceOrphans, AFileThatTheKernelForgetsDuringItsUnlinkGoesAtOnce) {
  const InodeId file = MakeFile(kRootInode, "f");
  inodes_->AddLookups(file, 1);
  data_.on_read = [&] { names_->Forget(file, 1); };
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  EXPECT_FALSE(names_->HasOrphans());
  EXPECT_FALSE(IsStored(keys::Inode(file)));
  EXPECT_THAT(data_.deleted(), ElementsAre(file.value));
}

TEST_F(NamespaceOrphans, AMountDeletesTheOrphansThatACrashLeft) {
  const InodeId file = MakeFile(kRootInode, "f"), directory = MakeDirectory(kRootInode, "d");
  const auto unnamed = names_->CreateUnnamed(kRootInode, File());
  const InodePtr open = *names_->Open(file);
  inodes_->AddLookups(directory, 1);
  ASSERT_TRUE(names_->Unlink(kRootInode, "f"));
  ASSERT_TRUE(names_->RemoveDirectory(kRootInode, "d"));
  EXPECT_EQ(names_->inode_count(), 4u);
  Restart();
  for (const InodeId gone : {file, directory, unnamed->ino}) {
    EXPECT_EQ(Code(names_->GetAttributes(gone)), ErrorCode::kStale);
    EXPECT_FALSE(IsStored(keys::Orphan(gone)));
  }
  EXPECT_EQ(names_->inode_count(), 1u);
}

TEST_F(NamespaceOrphans, ARemovedDirectoryTakesNoNewNames) {
  const InodeId directory = MakeDirectory(kRootInode, "d"), file = MakeFile(kRootInode, "f");
  inodes_->AddLookups(directory, 1);
  ASSERT_TRUE(names_->RemoveDirectory(kRootInode, "d"));
  EXPECT_EQ(Code(names_->Create(directory, "x", File())), ErrorCode::kNotFound);
  EXPECT_EQ(Code(names_->CreateUnnamed(directory, File())), ErrorCode::kNotFound);
  EXPECT_EQ(Code(names_->Link(file, directory, "x")), ErrorCode::kNotFound);
  EXPECT_EQ(Code(names_->Rename(kRootInode, "f", directory, "x", RenameMode::kReplace)), ErrorCode::kNotFound);
  EXPECT_THAT(List(directory), ElementsAre(".", ".."));
  names_->Forget(directory, 1);
}

TEST_F(NamespaceOrphans, ADirectoryThatWasRemovedWithItsParentTakesNoDirectory) {
  const InodeId above = MakeDirectory(kRootInode, "above"), directory = MakeDirectory(above, "d");
  MakeDirectory(kRootInode, "e");
  inodes_->AddLookups(directory, 1);
  ASSERT_TRUE(names_->RemoveDirectory(above, "d"));
  ASSERT_TRUE(names_->RemoveDirectory(kRootInode, "above"));
  EXPECT_EQ(Code(names_->Rename(kRootInode, "e", directory, "x", RenameMode::kReplace)), ErrorCode::kNotFound);
  names_->Forget(directory, 1);
}

TEST_F(NamespaceOrphans, UnnamedFilesGetANameByLink) {
  const auto file = names_->CreateUnnamed(kRootInode, File());
  ASSERT_TRUE(file);
  EXPECT_EQ(file->links, 0u);
  EXPECT_TRUE(IsStored(keys::Orphan(file->ino)));
  const InodePtr open = *names_->Open(file->ino);
  const auto linked = names_->Link(file->ino, kRootInode, "named");
  ASSERT_TRUE(linked);
  EXPECT_EQ(linked->links, 1u);
  names_->Close(open);
  Restart();
  EXPECT_EQ(names_->Lookup(kRootInode, "named")->ino, file->ino);
  // A name that was removed does not come back.
  const InodePtr again = *names_->Open(file->ino);
  ASSERT_TRUE(names_->Unlink(kRootInode, "named"));
  EXPECT_EQ(Code(names_->Link(file->ino, kRootInode, "named")), ErrorCode::kNotFound);
  names_->Close(again);
}

TEST_F(NamespaceOrphans, UnnamedFilesGoWithTheirLastUse) {
  const auto file = names_->CreateUnnamed(kRootInode, File());
  names_->Close(*names_->Open(file->ino));
  EXPECT_FALSE(IsStored(keys::Inode(file->ino)));
  EXPECT_EQ(Code(names_->CreateUnnamed(kRootInode, Directory())), ErrorCode::kInvalid);
}

using NamespaceDamage = NamespaceTest;

TEST_F(NamespaceDamage, DamagedRecordsAreErrorsOfTheirOwnAlone) {
  check_at_end_ = false;
  const InodeId directory = MakeDirectory(kRootInode, "d");
  MakeFile(directory, "good");
  const InodeId file = MakeFile(directory, "file");
  Put(keys::Entry(directory, "torn"), "\x01");
  Put(keys::Entry(directory, "nowhere"), EntryRecord{InodeId{5000}, S_IFREG}.Encode());
  Put(keys::Inode(file), "\x01torn");
  Restart();
  EXPECT_EQ(Code(names_->Lookup(directory, "torn")), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(names_->Lookup(directory, "nowhere")), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(names_->Lookup(directory, "file")), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(names_->Unlink(directory, "torn")), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(names_->Unlink(directory, "nowhere")), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(names_->Unlink(directory, "file")), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(names_->Rename(directory, "nowhere", kRootInode, "x", RenameMode::kReplace)), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(names_->Create(directory, "torn", File())), ErrorCode::kCorrupt);
  EXPECT_EQ(Code(ReadDirectory(*names_, directory)), ErrorCode::kCorrupt);
  EXPECT_TRUE(names_->Lookup(directory, "good"));
}

TEST_F(NamespaceDamage, ALoopOfDirectoriesFailsTheOperation) {
  check_at_end_ = false;
  const InodeId one = MakeDirectory(kRootInode, "one"), two = MakeDirectory(one, "two");
  const InodeId three = MakeDirectory(kRootInode, "three");
  InodeRecord record = StoredRecord(one);
  record.parent = two.value;
  Put(keys::Inode(one), record.Encode());
  Put(keys::Entry(one, "self"), EntryRecord{one, S_IFDIR}.Encode());
  Restart();
  EXPECT_EQ(Code(names_->Rename(kRootInode, "three", two, "x", RenameMode::kReplace)), ErrorCode::kCorrupt);
  EXPECT_TRUE(Code(names_->RemoveDirectory(one, "self")));
  EXPECT_TRUE(Code(names_->Rename(one, "self", one, "two", RenameMode::kReplace)));
  EXPECT_TRUE(Code(names_->Rename(one, "self", two, "y", RenameMode::kReplace)));
  EXPECT_EQ(Stat(three).links, 2u);
}

TEST_F(NamespaceDamage, AStoreWithoutItsFactsOrRootDoesNotMount) {
  check_at_end_ = false;
  const auto without = [&](const std::string& key) {
    auto content = kv_->content();
    content.erase(key);
    MemoryKvStore kv(std::make_shared<Journal>(), content);
    InodeTable inodes(kv, file_services_.services(), 64);
    return Code(Namespace(kv, inodes, data_).Recover(false));
  };
  EXPECT_EQ(without(keys::Store(kNextInodeFact)), ErrorCode::kCorrupt);
  EXPECT_EQ(without(keys::Inode(kRootInode)), ErrorCode::kCorrupt);
  EXPECT_EQ(without(keys::Store(kInodeCountFact)), std::nullopt);
}

TEST_F(NamespaceDamage, DamagedOrphansStopNoMount) {
  check_at_end_ = false;
  const InodeId file = MakeFile(kRootInode, "f");
  Put(keys::Orphan(InodeId{5000}), "");
  Put(keys::Orphan(file), "");
  Put("o", "");
  Restart();
  EXPECT_TRUE(names_->Lookup(kRootInode, "f"));
}

TEST_F(NamespaceDamage, ErrorsOfTheCatalogAreReturned) {
  MakeFile(kRootInode, "f");
  kv_->FailGet(1);
  EXPECT_EQ(Code(names_->Lookup(kRootInode, "f")), ErrorCode::kIo);
  kv_->FailIterator(1);
  EXPECT_EQ(Code(ReadDirectory(*names_, kRootInode)), ErrorCode::kIo);
  const InodeId directory = MakeDirectory(kRootInode, "d");
  kv_->FailIterator(1);
  EXPECT_EQ(Code(names_->RemoveDirectory(kRootInode, "d")), ErrorCode::kIo);
  EXPECT_EQ(Stat(directory).links, 2u);
}

TEST_F(NamespaceBasics, UnusedOrphansArePassedOnAndDeletedOnce) {
  std::vector<InodePtr> unused;
  names_->OnOrphan([&unused](const InodePtr& inode) { unused.push_back(inode); });
  for (const char* name : {"a", "b"}) {
    const InodeId file = MakeFile(kRootInode, name);
    inodes_->AddLookups(file, 1);
    const InodePtr opened = *names_->Open(file);
    EXPECT_TRUE(names_->Unlink(kRootInode, name));
    names_->Forget(file, 1);
    EXPECT_TRUE(unused.empty() || unused.back()->id != file) << "it is open";
    names_->Close(opened);
    ASSERT_EQ(unused.back()->id, file);
    unused.push_back(opened);
  }
  EXPECT_TRUE(names_->HasOrphans());
  const InodeId linked = MakeFile(kRootInode, "c");
  inodes_->AddLookups(linked, 1);
  names_->Forget(linked, 1);
  EXPECT_EQ(unused.size(), 4u);
  names_->DeleteOrphans(unused);
  names_->DeleteOrphans(unused);
  EXPECT_FALSE(names_->HasOrphans());
  EXPECT_EQ(names_->inode_count(), 2u);
  EXPECT_EQ(data_.deleted().size(), 2u);
}

TEST_F(NamespaceBasics, ThreadsSeeEachNameOnceOrNotAtAll) {
  const InodeId directory = MakeDirectory(kRootInode, "d");
  std::vector<std::thread> threads;
  std::atomic<int> created{0}, removed{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string name = std::to_string(i % 7);
        if (t % 2 == 0) {
          created += names_->Create(directory, name, File()).has_value() ? 1 : 0;
        } else {
          removed += names_->Unlink(directory, name).has_value() ? 1 : 0;
        }
        if (const auto found = names_->Lookup(directory, name)) {
          names_->SetAttributes(found->ino, {.uid = 3}).has_value();
          if (auto open = names_->Open(found->ino)) names_->Close(*open);
          inodes_->AddLookups(found->ino, 1);
          names_->Forget(found->ino, 1);
        }
        names_->Rename(directory, name, kRootInode, name, RenameMode::kReplace).has_value();
        names_->Rename(kRootInode, name, directory, name, RenameMode::kNoReplace).has_value();
        EXPECT_TRUE(ReadDirectory(*names_, directory));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(created.load(), 0);
  EXPECT_LE(removed.load(), created.load());
  Restart();
}

}  // namespace
}  // namespace weightfs
