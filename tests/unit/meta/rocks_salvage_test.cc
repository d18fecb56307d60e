// SPDX-License-Identifier: Apache-2.0
#include "meta/rocks_salvage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "meta/keys.h"
#include "meta/rocks_kv_store.h"
#include "tests/support/temporary_directory.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using Records = std::map<std::string, std::string>;

class RocksSalvageTest : public testing::Test {
 protected:
  std::string directory() const { return (temporary_.path() / "meta").string(); }

  // Writes 2000 records of two kinds, and, in a second table, new versions of some and the deletion of others.
  Records Make() {
    Records records;
    RocksKvStore::Options options;
    options.create = true;
    for (uint64_t round = 0; round < 2; ++round) {
      const auto store = RocksKvStore::Open(directory(), options).value();
      options.create = false;
      KvBatch batch;
      for (uint64_t ino = 1; ino <= 1000; ++ino) {
        for (const std::string& key : {keys::Inode(InodeId{ino}), keys::Entry(InodeId{1}, "n" + std::to_string(ino))}) {
          if (round == 1 && ino % 7 != 0) continue;
          if (round == 1 && ino % 2 != 0) {
            batch.Delete(key);
            records.erase(key);
          } else {
            records[key] = std::to_string(round) + std::string(100, 'v');
            batch.Put(key, records[key]);
          }
        }
      }
      EXPECT_TRUE(store->Write(std::move(batch)).has_value());
    }
    return records;
  }

  // The tables, the oldest first.
  std::vector<fs::path> Tables() const {
    std::vector<fs::path> tables;
    for (const auto& entry : fs::directory_iterator(directory())) {
      if (entry.path().extension() == ".sst") tables.push_back(entry.path());
    }
    std::sort(tables.begin(), tables.end());
    return tables;
  }

  static void Flip(const fs::path& path, uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 4));
  }

  Records Salvage(SalvageReport* report) {
    Records found;
    auto salvaged = SalvageCatalog(directory(), [&](std::string_view key, std::string_view value) -> Result<void> {
      EXPECT_TRUE(found.emplace(key, value).second) << "a key came twice";
      return {};
    });
    EXPECT_TRUE(salvaged.has_value());
    if (salvaged) *report = std::move(*salvaged);
    EXPECT_EQ(report->records, found.size());
    return found;
  }

  TemporaryDirectory temporary_;
};

TEST_F(RocksSalvageTest, OfAnIntactCatalogGivesEverything) {
  const Records records = Make();
  SalvageReport report;
  EXPECT_EQ(Salvage(&report), records);
  EXPECT_TRUE(report.gaps.empty() && report.files.empty());
}

TEST_F(RocksSalvageTest, LosesOnlyTheRecordsOfADamagedBlock) {
  const Records records = Make();
  const fs::path table = Tables().front();
  Flip(table, fs::file_size(table) / 2);
  SalvageReport report;
  const Records found = Salvage(&report);
  EXPECT_GE(found.size(), records.size() - 60);
  EXPECT_LT(found.size(), records.size());
  for (const auto& [key, value] : found) {
    const auto original = records.find(key);
    ASSERT_NE(original, records.end()) << "a deleted record came back";
    EXPECT_EQ(value, original->second);
  }
  ASSERT_EQ(report.gaps.size(), 1U);
  for (const auto& [key, value] : records) {
    if (found.contains(key)) continue;
    EXPECT_TRUE(report.gaps[0].begin <= key && key < report.gaps[0].end);
  }
  EXPECT_EQ(report.files, std::vector<std::string>{table.filename().string()});
}

TEST_F(RocksSalvageTest, TakesOlderVersionsWhereTheNewestIsLost) {
  const Records records = Make();
  ASSERT_GE(Tables().size(), 2U) << "the test needs two tables";
  Flip(Tables().back(), 200);
  SalvageReport report;
  const Records found = Salvage(&report);
  for (const auto& [key, value] : records) EXPECT_TRUE(found.contains(key));
  EXPECT_GT(report.uncertain, 0U);
}

TEST_F(RocksSalvageTest, SurvivesDamageAnywhereInATable) {
  const Records records = Make();
  const fs::path table = Tables().front(), copy = temporary_.path() / "copy";
  fs::copy_file(table, copy);
  const uint64_t size = fs::file_size(table);
  for (uint64_t offset = 0; offset < size; offset += size / 40) {
    SCOPED_TRACE(offset);
    fs::copy_file(copy, table, fs::copy_options::overwrite_existing);
    Flip(table, offset);
    SalvageReport report;
    const Records found = Salvage(&report);
    EXPECT_GE(found.size(), records.size() - 60);
  }
}

}  // namespace
}  // namespace weightfs
