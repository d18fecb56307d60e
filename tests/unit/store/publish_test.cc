// SPDX-License-Identifier: Apache-2.0
// Publications: directories that become immutable in one commit.
#include <linux/capability.h>

#include <array>
#include <cerrno>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meta/keys.h"
#include "meta/records.h"
#include "store/wal/wal_format.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

const Credentials kRoot{.uid = 0, .capabilities = uint64_t{1} << CAP_FOWNER};

// A store with d/f, d/sub/g (two blocks), d/link and, outside, o.
class Publishing : public testing::Test {
 protected:
  Publishing() {
    MakeDirectory("d");
    MakeDirectory("d/sub");
    EXPECT_TRUE(store_.WriteFile("d/f", "content"));
    EXPECT_TRUE(store_.WriteFile("d/sub/g", Pattern(7, 8192)));
    EXPECT_TRUE(store_.WriteFile("o", "outside"));
    EXPECT_TRUE(names().Create(Find("d"), "link", {.mode = S_IFLNK | 0777, .symlink = "f"}));
  }

  Namespace& names() { return store_->names(); }
  InodeId Find(std::string_view path) { return store_.Resolve(path).value(); }
  void MakeDirectory(std::string_view path) {
    const size_t slash = path.rfind('/');
    const InodeId parent = slash == path.npos ? kRootInode : Find(path.substr(0, slash));
    EXPECT_TRUE(names().Create(parent, path.substr(slash == path.npos ? 0 : slash + 1), {.mode = S_IFDIR | 0755}));
  }
  Result<PublicationRecord> Publish(std::string_view path, std::optional<uint64_t> version = std::nullopt) {
    return Publish(Find(path), version, &failed_);
  }
  // Repeats the call as long as it has to wait for others.
  Result<PublicationRecord> Publish(InodeId directory, std::optional<uint64_t> version, std::string* failed) {
    Namespace::PublishCall call(directory, who_, version);
    while (true) {
      auto published = store_->PublishTree(&call);
      *failed = call.failed();
      if (published || published.error().code != ErrorCode::kAgain) return published;
      std::this_thread::yield();
    }
  }
  Result<void> Unpublish(std::string_view path) { return store_->UnpublishTree(Find(path), who_, &failed_); }
  ErrorCode CodeOf(std::string_view path) {
    const auto published = Publish(path);
    return published ? ErrorCode{0} : published.error().code;
  }
  bool IsImmutable(std::string_view path) {
    const InodePtr inode = store_->inodes().Get(Find(path)).value();
    MutexLock lock(inode->mutex);
    return inode->IsImmutable();
  }
  // More than two batches of flags: e, with its subdirectory e/below.
  // From now on each batch is durable before it is in the index.
  void SyncEachBatch() {
    store_.kv().BeforeWrite([this] {
      SyncEachBatch();
      EXPECT_TRUE(store_->SyncAll());
    });
  }
  // The journal's sizes right after each batch from `begun` on.
  std::vector<size_t> BatchesAfter(size_t begun) {
    std::vector<size_t> after;
    const auto events = store_.journal().events();
    for (size_t i = begun; i < events.size(); ++i) {
      if (events[i].batch != nullptr) after.push_back(i + 1);
    }
    return after;
  }
  void MakeLargeTree() {
    MakeDirectory("e");
    MakeDirectory("e/below");
    for (size_t i = 0; i < 600; ++i) {
      ASSERT_OK(names().Create(Find(i % 2 == 0 ? "e" : "e/below"), std::to_string(i), {.mode = S_IFIFO | 0644}));
    }
    ASSERT_OK(store_->SyncAll());
  }
  // The number of inodes in the catalog that have the flag.
  static size_t Flags(const KvContent& content) {
    size_t flags = 0;
    for (const auto& [key, value] : content) {
      if (!key.starts_with(keys::kInode)) continue;
      flags += (InodeRecord::Decode(value).value().flags & kInodePublished) != 0 ? 1 : 0;
    }
    return flags;
  }
  static bool HasFact(const KvContent& content) {
    const auto fact = content.lower_bound(keys::Store(kPublishingFact));
    return fact != content.end() && fact->first.starts_with(keys::Store(kPublishingFact));
  }
  KvContent ContentAt(size_t cut) {
    return store_.journal().ImageAt(cut, {.kind = CrashOptions::Kind::kProcessKill}).kv;
  }
  std::vector<bool> ImmutableParts() {
    std::vector<bool> parts;
    for (const char* path : {"d", "d/f", "d/sub", "d/sub/g", "d/link"}) parts.push_back(IsImmutable(path));
    return parts;
  }

  TestStore store_{{.device_size = ByteCount{256 * kMiB}}};
  Credentials who_ = kRoot;
  std::string failed_;
};

#define EXPECT_REFUSED(expression) EXPECT_EQ((expression).error().code, ErrorCode::kPermission)

TEST_F(Publishing, EveryChangeIsRefused) {
  ASSERT_OK(Publish("d"));
  const InodeId d = Find("d"), sub = Find("d/sub"), f = Find("d/f");
  EXPECT_REFUSED(names().Create(d, "new", {.mode = S_IFREG | 0644}));
  EXPECT_REFUSED(names().CreateUnnamed(d, {.mode = S_IFREG | 0644}));
  EXPECT_REFUSED(names().Unlink(d, "f"));
  EXPECT_REFUSED(names().Unlink(d, "link"));
  EXPECT_REFUSED(names().Rename(d, "f", kRootInode, "moved", RenameMode::kReplace));
  EXPECT_REFUSED(names().Rename(kRootInode, "o", d, "f", RenameMode::kReplace));
  EXPECT_REFUSED(names().Rename(kRootInode, "o", d, "f", RenameMode::kExchange));
  EXPECT_REFUSED(names().Rename(kRootInode, "d", kRootInode, "e", RenameMode::kReplace));
  EXPECT_REFUSED(names().Rename(d, "sub", kRootInode, "sub", RenameMode::kReplace));
  EXPECT_REFUSED(names().Link(f, kRootInode, "second"));
  EXPECT_REFUSED(names().Link(Find("o"), d, "second"));
  for (const InodeId ino : {d, sub, f, Find("d/link")}) {
    EXPECT_REFUSED(names().SetAttributes(ino, {.mode = 0600}));
    EXPECT_REFUSED(names().SetAttributes(ino, {.modified = Timestamp{1, 0}}));
    EXPECT_REFUSED(names().SetExtendedAttribute(ino, "user.a", "b", AttributeWrite::kAny));
  }
  EXPECT_REFUSED(store_->OpenFile(f, false, /*writes=*/true));
  EXPECT_REFUSED(store_->OpenFile(f, /*truncate=*/true));
  EXPECT_REFUSED(store_.CreateMany("d", {{"new", "data"}}));
  EXPECT_REFUSED(store_.CreateMany("d", {{"f", "data"}}));
  const InodePtr open = store_.OpenPath("d/sub/g").value();
  EXPECT_REFUSED(store_.WriteAt(open, 0, "x"));
  EXPECT_REFUSED(store_->files().Append(open, AsBytes("x")));
  EXPECT_REFUSED(store_->files().Truncate(open, 1));
  EXPECT_REFUSED(store_->files().Fallocate(open, FallocateMode::kPunchHole, 0, 4096));
  EXPECT_REFUSED(store_->files().Fallocate(open, FallocateMode::kAllocate, 0, 1 << 20));
  EXPECT_REFUSED(store_->files().CopyRange(store_.OpenPath("o").value(), 0, open, 0, 4));
  EXPECT_REFUSED(store_.WriteDirect(open, 0, Pattern(1, 4096), std::nullopt));
  EXPECT_EQ(store_.ReadPath("d/sub/g").value(), Pattern(7, 8192));
  EXPECT_TRUE(names().Create(kRootInode, "elsewhere", {.mode = S_IFREG | 0644}));
}

TEST_F(Publishing, DescribesThePublicationAndKeepsIt) {
  const auto first = Publish("d");
  ASSERT_OK(first);
  EXPECT_EQ(first->files, 2U);
  EXPECT_EQ(first->bytes, 7U + 8192);
  EXPECT_GT(first->version, 20'260'000'000'000U);
  EXPECT_EQ(Publish("d").value(), *first);
  EXPECT_EQ(Publish("d", first->version).value(), *first);
  EXPECT_EQ(Publish("d", 5).error().code, ErrorCode::kExists);
  EXPECT_EQ(names().GetPublication(Find("d")).value(), *first);
  EXPECT_EQ(names().GetPublication(Find("d/sub")).error().code, ErrorCode::kNoAttribute);
}

TEST_F(Publishing, VersionsFromTheTimeGrow) {
  MakeDirectory("e");
  const uint64_t first = Publish("d")->version, second = Publish("e")->version;
  EXPECT_GT(second, first);
  ASSERT_OK(Unpublish("d"));
  EXPECT_GT(Publish("d")->version, second);
  MakeDirectory("n");
  EXPECT_EQ(Publish("n", 1000)->version, 1000U);
  EXPECT_EQ(Publish("n", kMaximumVersion + 1).error().code, ErrorCode::kInvalid);
}

TEST_F(Publishing, TimesGrowThoughTheClockIsSetBack) {
  constexpr uint64_t kLater = uint64_t{4'000'000'000} * 1'000'000'000 + 999'999'999;  // of a clock that was wrong
  KvBatch batch;
  batch.Put(keys::Store(kLastPublicationFact), EncodeFact(kLater));
  ASSERT_OK(store_.kv().Write(std::move(batch)));
  const auto first = Publish("d");
  ASSERT_OK(first);
  EXPECT_EQ(first->time, (Timestamp{4'000'000'001, 0}));
  ASSERT_OK(Unpublish("d"));
  ASSERT_OK(store_.Remount());
  EXPECT_EQ(Publish("d")->time, (Timestamp{4'000'000'001, 1}));
}

TEST_F(Publishing, SurvivesARemountAndCanBeReverted) {
  const auto published = Publish("d");
  ASSERT_OK(published);
  ASSERT_OK(store_.Remount());
  EXPECT_EQ(names().GetPublication(Find("d")).value(), *published);
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, true));
  ASSERT_OK(Unpublish("d"));
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, false));
  EXPECT_EQ(names().GetPublication(Find("d")).error().code, ErrorCode::kNoAttribute);
  EXPECT_EQ(Unpublish("d").error().code, ErrorCode::kNoAttribute);
  EXPECT_TRUE(store_.WriteFile("d/f", "new content"));
  EXPECT_TRUE(names().Unlink(Find("d/sub"), "g"));
}

TEST_F(Publishing, TheRecordOfThePublicationIsHidden) {
  ASSERT_OK(Publish("d"));
  EXPECT_TRUE(names().ListExtendedAttributes(Find("d")).value().empty());
  const std::string name(kPublicationName);
  EXPECT_EQ(names().GetExtendedAttribute(Find("d"), name).error().code, ErrorCode::kNotSupported);
  EXPECT_EQ(names().RemoveExtendedAttribute(Find("d"), name).error().code, ErrorCode::kNotSupported);
}

TEST_F(Publishing, AFileThatIsOpenForWritingIsNamed) {
  const InodePtr open = store_->OpenFile(Find("d/sub/g"), false, /*writes=*/true).value();
  EXPECT_EQ(CodeOf("d"), ErrorCode{ETXTBSY});
  EXPECT_EQ(failed_, "sub/g");
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, false));
  EXPECT_TRUE(store_.WriteAt(open, 0, "x"));
  store_->CloseFile(open, 0, /*writes=*/true);
  EXPECT_EQ(CodeOf("d"), ErrorCode{0});
}

TEST_F(Publishing, WaitsForWritersBetweenCalls) {
  constexpr std::chrono::hours kForEver{1};
  const InodePtr open = store_->OpenFile(Find("d/f"), false, /*writes=*/true).value();
  const InodePtr second = store_->OpenFile(Find("d/sub/g"), false, /*writes=*/true).value();
  Namespace::PublishCall call(Find("d"), who_, std::nullopt, kForEver);
  EXPECT_EQ(store_->PublishTree(&call).error().code, ErrorCode::kAgain);
  EXPECT_TRUE(IsImmutable("d"));
  EXPECT_FALSE(IsImmutable("d/f"));
  EXPECT_REFUSED(names().Unlink(Find("d"), "f"));
  store_->CloseFile(open, 0, /*writes=*/true);
  EXPECT_EQ(store_->PublishTree(&call).error().code, ErrorCode::kAgain);
  store_->CloseFile(second, 0, /*writes=*/true);
  const auto published = store_->PublishTree(&call);
  ASSERT_OK(published);
  EXPECT_EQ(published->files, 2U);
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, true));
}

TEST_F(Publishing, AWriterThatStaysIsAnErrorAfterTheWait) {
  const InodePtr open = store_->OpenFile(Find("d/f"), false, /*writes=*/true).value();
  Namespace::PublishCall call(Find("d"), who_, std::nullopt, std::chrono::milliseconds(0));
  EXPECT_EQ(store_->PublishTree(&call).error().code, ErrorCode{ETXTBSY});
  EXPECT_EQ(call.failed(), "f");
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, false));
}

TEST_F(Publishing, ACallThatIsGivenUpChangesNothing) {
  const InodePtr open = store_->OpenFile(Find("d/sub/g"), false, /*writes=*/true).value();
  {
    Namespace::PublishCall call(Find("d"), who_, std::nullopt, std::chrono::hours(1)),
        inner(Find("d/sub"), who_, std::nullopt, std::chrono::hours(1));
    EXPECT_EQ(store_->PublishTree(&call).error().code, ErrorCode::kAgain);
    EXPECT_EQ(store_->PublishTree(&inner).error().code, ErrorCode::kAgain);
    EXPECT_TRUE(IsImmutable("d/link"));
  }
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, false));
  store_->CloseFile(open, 0, /*writes=*/true);
  ASSERT_OK(Publish("d"));
}

// In a damaged catalog, or in one that somebody has made.
TEST_F(Publishing, ADirectoryBelowItselfIsAnError) {
  const auto add = [&](std::string_view path, std::string_view name, InodeId ino) {
    KvBatch batch;
    batch.Put(keys::Entry(Find(path), name), EntryRecord{ino, S_IFDIR}.Encode());
    ASSERT_OK(store_.kv().Write(std::move(batch)));
  };
  const auto remove = [&](std::string_view path, std::string_view name) {
    KvBatch batch;
    batch.Delete(keys::Entry(Find(path), name));
    ASSERT_OK(store_.kv().Write(std::move(batch)));
  };
  for (const char* above : {"d/sub", "d"}) {
    add("d/sub", "round", Find(above));
    EXPECT_EQ(CodeOf("d"), ErrorCode::kCorrupt);
    EXPECT_EQ(failed_, "sub/round");
    EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, false));
    remove("d/sub", "round");
  }
  ASSERT_OK(Publish("d"));
  add("d/sub", "round", Find("d"));
  EXPECT_EQ(Unpublish("d").error().code, ErrorCode::kCorrupt);
  remove("d/sub", "round");
  ASSERT_OK(Unpublish("d"));
}

TEST_F(Publishing, OtherNamesOfAFileMustBeInTheDirectory) {
  ASSERT_OK(names().Link(Find("d/f"), Find("d/sub"), "inside"));
  ASSERT_OK(names().Link(Find("d/f"), kRootInode, "outside"));
  EXPECT_EQ(CodeOf("d"), ErrorCode::kTooManyLinks);
  EXPECT_TRUE(failed_ == "f" || failed_ == "sub/inside") << failed_;
  EXPECT_FALSE(IsImmutable("d/f"));
  ASSERT_OK(names().Unlink(kRootInode, "outside"));
  const auto published = Publish("d");
  ASSERT_OK(published);
  EXPECT_EQ(published->files, 2U);
}

TEST_F(Publishing, PublicationsAreNotNested) {
  ASSERT_OK(Publish("d/sub"));
  EXPECT_EQ(CodeOf("d"), ErrorCode::kBusy);
  EXPECT_EQ(failed_, "sub");
  EXPECT_FALSE(IsImmutable("d/f"));
  ASSERT_OK(Unpublish("d/sub"));
  ASSERT_OK(Publish("d"));
  EXPECT_FALSE(Publish("d/sub"));
  EXPECT_FALSE(Unpublish("d/sub"));
  EXPECT_EQ(CodeOf("d"), ErrorCode{0});
}

TEST_F(Publishing, OnlyTheOwnerOfEverythingPublishes) {
  who_ = {.uid = 1000, .gid = 1000};
  for (const char* path : {"d", "d/sub", "d/link", "d/f"}) {
    ASSERT_OK(names().SetAttributes(Find(path), {.uid = 1000}));
  }
  EXPECT_EQ(CodeOf("d"), ErrorCode::kPermission);
  EXPECT_EQ(failed_, "sub/g");
  ASSERT_OK(names().SetAttributes(Find("d/sub/g"), {.uid = 1000}));
  ASSERT_OK(Publish("d"));
  who_.uid = 1001;
  EXPECT_REFUSED(Unpublish("d"));
  who_.uid = 1000;
  EXPECT_TRUE(Unpublish("d"));
}

TEST_F(Publishing, TheRootCannotBePublished) {
  EXPECT_EQ(Publish(kRootInode, std::nullopt, &failed_).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(Publish(Find("o"), std::nullopt, &failed_).error().code, ErrorCode::kNotDirectory);
}

// The batch, and the sync that makes it durable.
TEST_F(Publishing, ACrashLeavesAllOrNothing) {
  ASSERT_OK(store_->SyncAll());
  ASSERT_OK(store_.WriteFile("d/late", Pattern(3, 5000)));  // not durable yet
  const size_t begun = store_.journal().size();
  ASSERT_OK(Publish("d"));
  const size_t done = store_.journal().size();
  int before = 0;
  for (size_t cut = begun; cut <= done; ++cut) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      TestStore after(store_.journal().ImageAt(cut, {.seed = seed}), {});
      ASSERT_OK(after.opened());
      const bool published = after->names().GetPublication(after.Resolve("d").value()).has_value();
      if (cut == done) {
        ASSERT_TRUE(published);
      }
      before += published ? 0 : 1;
      for (const char* path : {"d", "d/f", "d/sub", "d/sub/g", "d/link", "d/late"}) {
        const auto ino = after.Resolve(path);
        if (!published && !ino) continue;
        const InodePtr inode = after->inodes().Get(ino.value()).value();
        MutexLock lock(inode->mutex);
        ASSERT_EQ(inode->IsImmutable(), published) << path << " after " << cut;
      }
      if (published) {
        ASSERT_EQ(after.ReadPath("d/late").value(), Pattern(3, 5000)) << cut;
      }
    }
  }
  EXPECT_GT(before, 0);
}

TEST_F(Publishing, AFailedBatchPublishesNothing) {
  ASSERT_OK(store_->SyncAll());
  store_.kv().FailWrite(1);
  EXPECT_FALSE(Publish("d"));
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, false));
}

TEST_F(Publishing, AFailureBeforeTheLastBatchIsReverted) {
  ASSERT_OK(store_->SyncAll());
  const InodeId d = Find("d");
  store_.kv().FailGet(1);  // of the last version
  EXPECT_EQ(Publish(d, std::nullopt, &failed_).error().code, ErrorCode::kIo);
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, false));
  EXPECT_EQ(Flags(store_.kv().content()), 0U);
  EXPECT_FALSE(HasFact(store_.kv().content()));
  ASSERT_OK(Publish("d"));
}

// Others wait for one batch only, and a larger one would delay them.
TEST_F(Publishing, ALargeTreeTakesManyBatches) {
  MakeLargeTree();
  const size_t begun = store_.journal().size();
  ASSERT_OK(Publish("e"));
  ASSERT_OK(Unpublish("e"));
  size_t batches = 0, largest = 0;
  const auto events = store_.journal().events();
  for (size_t i = begun; i < events.size(); ++i) {
    if (events[i].batch == nullptr) continue;
    ++batches;
    largest = std::max(largest, wal::EncodePart(*events[i].batch, {}).size());
  }
  EXPECT_EQ(batches, 8U);  // the flags in three batches, and the publication
  EXPECT_LE(largest, kSmallBatch);  // for which the log always has space
}

TEST_F(Publishing, TheFlagsOfLongLinksAreSmallBatches) {
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(names().Create(Find("d"), std::to_string(i),
                             {.mode = S_IFLNK | 0777, .symlink = std::string(4095, 'l')}));
  }
  const size_t begun = store_.journal().size();
  ASSERT_OK(Publish("d"));
  const auto events = store_.journal().events();
  for (size_t i = begun; i < events.size(); ++i) {
    if (events[i].batch == nullptr) continue;
    EXPECT_LE(wal::EncodePart(*events[i].batch, {}).size(), kSmallBatch);
  }
  EXPECT_TRUE(IsImmutable("d/19"));
}

// Otherwise this waits for ever. A removal that finds no name writes nothing: the log has the batches in order, so that
// another waits for this one.
TEST_F(Publishing, NamesElsewhereChangeWhileTheFlagsAreWritten) {
  size_t tries = 0;
  const auto unlink = [&] {
    std::thread([&] { EXPECT_EQ(names().Unlink(kRootInode, "none").error().code, ErrorCode::kNotFound); }).join();
    ++tries;
  };
  store_.kv().BeforeWrite(unlink);
  ASSERT_OK(Publish("d"));
  store_.kv().BeforeWrite([&] { store_.kv().BeforeWrite(unlink); });  // after the publication
  ASSERT_OK(Unpublish("d"));
  EXPECT_EQ(tries, 2U);
}

// A crash after each batch, and after each one of the recovery from that.
TEST_F(Publishing, AnInterruptedPublicationIsReverted) {
  MakeLargeTree();
  SyncEachBatch();
  const size_t begun = store_.journal().size();
  ASSERT_OK(Publish("e"));
  ASSERT_OK(Unpublish("e"));
  store_.kv().BeforeWrite(nullptr);
  size_t published = 0, interrupted = 0;
  for (const size_t cut : BatchesAfter(begun)) {
    const CrashOptions killed{.kind = CrashOptions::Kind::kProcessKill};
    const CrashImage image = store_.journal().ImageAt(cut, killed);
    TestStore after(image, {});
    ASSERT_OK(after.opened());
    const InodeId e = after.Resolve("e").value();
    const bool whole = after->names().GetPublication(e).has_value();
    published += whole ? 1 : 0;
    interrupted += HasFact(image.kv) ? 1 : 0;
    const auto check = [&](const KvContent& content) {
      ASSERT_EQ(Flags(content), whole ? 602U : 0U) << cut;
      ASSERT_FALSE(HasFact(content)) << cut;
    };
    check(after.kv().content());
    EXPECT_EQ(after->names().Create(e, "new", {.mode = S_IFREG | 0644}).has_value(), !whole);
    if (!HasFact(image.kv)) continue;
    const size_t recovered = after.journal().size();
    for (size_t again = 0; again < recovered; ++again) {
      TestStore twice(after.journal().ImageAt(again, killed), {});
      ASSERT_OK(twice.opened());
      check(twice.kv().content());
    }
  }
  EXPECT_EQ(published, 1U);    // after the last batch of the publication
  EXPECT_EQ(interrupted, 6U);  // three batches of flags, and the first three that revert them
}

// A program that does not know the fact may have cleared the flags and published again.
TEST_F(Publishing, AFactThatIsOutOfDateRevertsNothing) {
  const auto remount_with = [&](InodeId ino) {
    KvBatch batch;
    batch.Put(keys::Store(kPublishingFact + std::to_string(ino.value)), EncodeFact(ino.value));
    ASSERT_OK(store_.kv().Write(std::move(batch)));
    ASSERT_OK(store_.Remount());
    EXPECT_FALSE(HasFact(store_.kv().content()));
  };
  ASSERT_OK(Publish("d"));
  for (const InodeId ino : {Find("d"), Find("d/sub"), Find("o"), InodeId{1'000'000}}) remount_with(ino);
  EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, true));
  EXPECT_TRUE(names().GetPublication(Find("d")));
  // Below the interrupted one, another was made.
  ASSERT_OK(Unpublish("d"));
  ASSERT_OK(Publish("d/sub"));
  const InodePtr top = store_->inodes().Get(Find("d")).value();
  KvBatch batch;
  {
    MutexLock lock(top->mutex);
    InodeRecord record = top->CatalogRecord();
    record.flags |= kInodePublished;
    batch.Put(keys::Inode(top->id), record.Encode());
  }
  ASSERT_OK(store_.kv().Write(std::move(batch)));
  remount_with(Find("d"));
  EXPECT_EQ(ImmutableParts(), std::vector<bool>({false, false, true, true, false}));
}

// fsck repairs it, and a mount serves the rest until then.
TEST_F(Publishing, DamageInAnInterruptedPublicationIsLeftToFsck) {
  ASSERT_OK(store_->SyncAll());
  SyncEachBatch();
  const size_t begun = store_.journal().size();
  ASSERT_OK(Publish("d"));
  store_.kv().BeforeWrite(nullptr);
  CrashImage image = store_.journal().ImageAt(BatchesAfter(begun).front(), {.kind = CrashOptions::Kind::kProcessKill});
  ASSERT_TRUE(HasFact(image.kv));
  const std::string entry = keys::Entry(Find("d/sub"), "g"), intact = image.kv.at(entry);
  image.kv[entry] = "damaged";
  {
    TestStore after(image, {});
    ASSERT_OK(after.opened());
    EXPECT_TRUE(HasFact(after.kv().content()));
    EXPECT_TRUE(after->names().Create(kRootInode, "new", {.mode = S_IFREG | 0644}));
  }
  image.kv[entry] = intact;
  TestStore repaired(image, {});
  ASSERT_OK(repaired.opened());
  EXPECT_EQ(Flags(repaired.kv().content()), 0U);
}

// The writer has not been told yet: until then each attempt names the file, and the directory stays as it is.
TEST_F(Publishing, AFileWhoseWriteFailedIsNamedUntilItsWriterKnows) {
  ASSERT_OK(store_->SyncAll());
  const InodePtr file = store_->OpenFile(Find("d/sub/g"), false, /*writes=*/true).value();
  store_.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(store_.WriteAt(file, 0, std::string(4096, 'x')));
  store_->CloseFile(file, 0, /*writes=*/true);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(CodeOf("d"), ErrorCode::kIo);
    EXPECT_EQ(failed_, "sub/g");
    EXPECT_EQ(ImmutableParts(), std::vector<bool>(5, false));
  }
  EXPECT_EQ(store_->Sync(file).error().code, ErrorCode::kIo);
  ASSERT_OK(Publish("d"));
  EXPECT_EQ(store_.ReadPath("d/sub/g").value(), Pattern(7, 8192));
}

TEST_F(Publishing, ConcurrentCallsShareOnePublication) {
  std::array<std::optional<PublicationRecord>, 4> published;
  std::vector<std::thread> threads;
  const InodeId directory = Find("d");
  for (auto& one : published) {
    threads.emplace_back([&] {
      std::string failed;
      const auto made = Publish(directory, std::nullopt, &failed);
      if (made) one = *made;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : published) {
    ASSERT_TRUE(one.has_value());
    EXPECT_EQ(one->id, published[0]->id);
  }
}

TEST_F(Publishing, TheNumberOfInodesIsLimited) {
  MakeDirectory("many");
  const InodeId many = Find("many");
  for (size_t count = 1; count < Namespace::kMaximumTree; ++count)
    ASSERT_OK(names().Create(many, std::to_string(count), {.mode = S_IFLNK | 0777, .symlink = "f"}));
  ASSERT_OK(Publish("many"));
  ASSERT_OK(Unpublish("many"));
  ASSERT_OK(names().Create(many, "another", {.mode = S_IFLNK | 0777, .symlink = "f"}));
  EXPECT_EQ(CodeOf("many"), ErrorCode::kTooLarge);
  EXPECT_FALSE(IsImmutable("many"));
}

}  // namespace
}  // namespace weightfs
