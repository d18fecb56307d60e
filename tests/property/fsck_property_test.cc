// SPDX-License-Identifier: Apache-2.0
// Repairs catalogs with many random damages at once. A failure prints its seed; set WEIGHTFS_SEED to repeat it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "meta/keys.h"
#include "store/check/fsck.h"
#include "tests/support/catalog_check.h"
#include "tests/support/seeds.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

const TestStoreOptions kOptions{.device_size = ByteCount{16 * kMiB}};

// Creates a tree a few levels deep, with files of several extents.
CrashImage MakeStore() {
  TestStore store(kOptions);
  std::vector<InodeId> directories{kRootInode};
  std::vector<std::string> paths{""};
  for (int i = 0; i < 12; ++i) {
    const size_t above = static_cast<size_t>(i) / 2;
    const std::string name = fmt::format("d{}", i);
    directories.push_back(store->names().Create(directories[above], name, {.mode = S_IFDIR | 0755})->ino);
    paths.push_back(paths[above] + name + "/");
    EXPECT_TRUE(store.WriteFile(paths.back() + "file", std::string(static_cast<size_t>(i) * 9000 + 1, 'x')));
    const InodeId file = *store.Resolve(paths.back() + "file");
    EXPECT_TRUE(store->names().Link(file, directories[above], name + ".hard"));
    EXPECT_TRUE(store->names().SetExtendedAttribute(file, "user.a", "v", AttributeWrite::kAny));
    if (i % 3 != 0) continue;
    EXPECT_TRUE(store->names().CreateUnnamed(kRootInode, {.mode = S_IFREG}));
  }
  EXPECT_TRUE(store->SyncAll());
  EXPECT_TRUE(store->Close());
  return store.journal().ImageAt(store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill});
}

class Damage {
 public:
  Damage(KvContent& kv, uint64_t seed) : kv_(kv), random_(seed) {}

  void Once() {
    const auto at = Any();
    switch (Below(7)) {
      case 0: kv_.erase(at); return;
      case 1: at->second.resize(at->second.size() / 2); return;
      case 2:
        if (!at->second.empty()) at->second[Below(at->second.size())] ^= static_cast<char>(1U << Below(8));
        return;
      case 3: {
        // Replaces the value by that of another record of the same kind.
        const auto other = Any();
        if (other->first[0] == at->first[0]) at->second = other->second;
        return;
      }
      case 4: {
        // Moves the record to another key.
        std::string key = at->first;
        key[1 + Below(key.size() - 1)] ^= static_cast<char>(1U << Below(3));
        kv_[key] = at->second;
        return;
      }
      case 5: {
        // Adds an extent that is valid by itself.
        ExtentRecord record;
        record.device = {static_cast<uint16_t>(Below(10) == 0)};
        record.start = {500 + Below(200)};
        record.count = {1 + Below(20)};
        record.generation = Below(4);
        const std::string key = keys::Extent(InodeId{Below(45)}, FileBlock{Below(30)});
        kv_[key] = record.Encode(key);
        return;
      }
      default: {
        constexpr uint32_t kTypes[] = {S_IFDIR, S_IFDIR, S_IFREG, S_IFLNK};
        const EntryRecord entry{InodeId{1 + Below(45)}, kTypes[Below(4)]};
        kv_[keys::Entry(InodeId{1 + Below(45)}, fmt::format("n{}", Below(100)))] = entry.Encode();
      }
    }
  }

  uint64_t Below(uint64_t limit) { return random_() % limit; }

 private:
  KvContent::iterator Any() { return std::next(kv_.begin(), static_cast<ptrdiff_t>(Below(kv_.size()))); }

  KvContent& kv_;
  std::mt19937_64 random_;
};

FsckReport Check(CrashImage& image, bool repair) {
  Restarted media = Restart(image);
  BlockDevice* device = media.devices[0].get();
  const auto report = CheckStore(*media.kv, {&device, 1}, {.repair = repair});
  EXPECT_TRUE(report);
  image.kv = media.kv->content();
  return report ? *report : FsckReport();
}

// Seeds that once found a bug.
constexpr uint64_t kKnownSeeds[] = {2604368040};  // a record at the inode number that lost+found gets

void ExpectMended(const CrashImage& intact, uint64_t seed) {
  SCOPED_TRACE("WEIGHTFS_SEED=" + std::to_string(seed));
  CrashImage image = intact;
  Damage damage(image.kv, seed);
  for (uint64_t left = 1 + damage.Below(40); left > 0; --left) damage.Once();
  const FsckReport report = Check(image, /*repair=*/true);
  EXPECT_TRUE(report.sound());
  const FsckReport again = Check(image, /*repair=*/false);
  for (const Finding& finding : again.findings) {
    ADD_FAILURE() << FindingKindName(finding.kind) << ": " << finding.text;
  }
  EXPECT_THAT(CheckCatalog(image.kv), ::testing::IsEmpty());
  TestStore store(image, kOptions);
  ASSERT_TRUE(store.opened());
  EXPECT_FALSE(store->read_only());
}

TEST(FsckProperty, ARepairFixesAnyMixOfDamages) {
  const CrashImage intact = MakeStore();
  for (const uint64_t seed : kKnownSeeds) ExpectMended(intact, seed);
  const uint64_t first_seed = FirstSeed();
  for (uint64_t seed = first_seed; seed != first_seed + 400 && !::testing::Test::HasFailure(); ++seed) {
    ExpectMended(intact, seed);
  }
}

}  // namespace
}  // namespace weightfs
