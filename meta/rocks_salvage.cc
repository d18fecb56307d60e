// SPDX-License-Identifier: Apache-2.0
// A database with damaged tables is opened for reading. Its iterator, which knows the order of versions and deletions
// in all tables, is moved past each damaged block. What the other tables hold in the keys of such a gap is then looked
// up one by one, because a lookup reads only as many tables as it needs.
#include "meta/rocks_salvage.h"

#include <fmt/format.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "meta/keys.h"

namespace weightfs {
namespace {

// Keys are compared in this many bytes behind their kind when a gap is searched for its end: an inode number and either
// an index or the start of a name.
constexpr size_t kDigits = 16;

__extension__ typedef unsigned __int128 Number;  // NOLINT: using does not take __extension__

// The bytes of a key behind its first one as a number; shorter keys end in zeros.
Number NumberOf(std::string_view key) {
  Number number = 0;
  for (size_t i = 1; i <= kDigits; ++i) {
    number = number << 8 | (i < key.size() ? static_cast<unsigned char>(key[i]) : 0);
  }
  return number;
}

std::string KeyOf(char kind, Number number) {
  std::string key(1 + kDigits, kind);
  for (size_t i = kDigits; i >= 1; --i, number >>= 8) key[i] = static_cast<char>(number & 0xff);
  return key;
}

using MakeIterator = std::function<std::unique_ptr<rocksdb::Iterator>()>;

// Moves RocksDB's iterators over all keys from `begin` to `end` (empty: the last one), past damage.
class Walk {
 public:
  Walk(MakeIterator make, std::string begin, std::string end)
      : make_(std::move(make)), begin_(std::move(begin)), end_(std::move(end)) {}

  // `visit(key, value)` returns Result<void>. `gap(begin, end)` is called for each damaged range.
  template <typename Visit, typename Gap>
  Result<void> Run(const Visit& visit, const Gap& gap) {
    std::string at = begin_;
    while (true) {
      const auto iterator = make_();
      for (iterator->Seek(at); iterator->Valid(); iterator->Next()) {
        const std::string_view key = iterator->key().ToStringView();
        if (!end_.empty() && key >= end_) return {};
        RETURN_IF_ERROR(visit(key, iterator->value().ToStringView()));
        at = std::string(key) + '\0';
      }
      if (iterator->status().ok()) return {};
      const auto next = FindReadable(at);
      gap(at, next.value_or(end_));
      if (!next) return {};
      at = *next;
    }
  }

 private:
  // Takes a new iterator each time: one that has met a damaged block may also fail in the block before it.
  bool IsReadable(const std::string& key) const {
    const auto iterator = make_();
    iterator->Seek(key);
    return iterator->Valid() || iterator->status().ok();
  }

  // The smallest key after `at`, about, from which the iterator can be read; nullopt when there is none before the end.
  std::optional<std::string> FindReadable(const std::string& at) {
    for (int kind = at.empty() ? 0 : static_cast<unsigned char>(at[0]); kind < 0x80; ++kind) {
      const char byte = static_cast<char>(kind);
      const bool same = !at.empty() && at[0] == byte;
      const Number low = same ? NumberOf(at) : 0;
      const auto found = FindReadable(byte, low);
      if (!found) continue;
      if (!end_.empty() && *found >= end_) return std::nullopt;
      return found;
    }
    return std::nullopt;
  }

  // Same, among the keys of one kind whose number is above `low`.
  std::optional<std::string> FindReadable(char kind, Number low) {
    const Number most = ~Number{0};
    Number bad = low, good = most;
    bool found = false;
    for (Number step = 1; !found && bad != most; step = step > most / 2 ? most : step * 2) {
      good = most - low < step ? most : low + step;
      found = IsReadable(KeyOf(kind, good));
      if (!found) bad = good;
    }
    if (!found) return std::nullopt;
    while (good - bad > 1) {
      const Number middle = bad + (good - bad) / 2;
      (IsReadable(KeyOf(kind, middle)) ? good : bad) = middle;
    }
    return KeyOf(kind, good);
  }

  const MakeIterator make_;
  const std::string begin_, end_;
};

rocksdb::Options DatabaseOptions() {
  rocksdb::Options options;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.paranoid_checks = false;  // a table that cannot be opened costs its own records only
  options.max_open_files = 512;     // tables are opened when they are read
  options.skip_stats_update_on_db_open = true;
  options.skip_checking_sst_file_sizes_on_db_open = true;
  return options;
}

rocksdb::ReadOptions Reading() {
  rocksdb::ReadOptions reading;
  reading.fill_cache = true;
  reading.total_order_seek = true;
  return reading;
}

// Newest first: level 0 in the order of its sequence numbers, then the other levels.
std::vector<rocksdb::LiveFileMetaData> TablesOf(rocksdb::DB& db) {
  std::vector<rocksdb::LiveFileMetaData> tables;
  db.GetLiveFilesMetaData(&tables);
  std::sort(tables.begin(), tables.end(), [](const auto& a, const auto& b) {
    return a.level != b.level ? a.level < b.level : a.largest_seqno > b.largest_seqno;
  });
  return tables;
}

class Salvage {
 public:
  Salvage(rocksdb::DB& db, const std::function<Result<void>(std::string_view, std::string_view)>& take)
      : db_(db), take_(take) {}

  Result<SalvageReport> Run() {
    const auto make = [this] { return std::unique_ptr<rocksdb::Iterator>(db_.NewIterator(Reading())); };
    RETURN_IF_ERROR(Walk(make, {}, {})
                        .Run([&](std::string_view key, std::string_view value) { return Take(key, value); },
                             [&](const std::string& begin, const std::string& end) {
                               report_.gaps.push_back({begin, end});
                             }));
    if (report_.gaps.empty()) return std::move(report_);
    const auto tables = TablesOf(db_);
    FindDamagedFiles(tables);
    for (const KeyGap& gap : report_.gaps) {
      std::set<std::string> seen;
      for (const auto& table : tables) RETURN_IF_ERROR(FillGap(gap, table, &seen));
    }
    return std::move(report_);
  }

 private:
  Result<void> Take(std::string_view key, std::string_view value) {
    ++report_.records;
    return take_(key, value);
  }

  void FindDamagedFiles(const std::vector<rocksdb::LiveFileMetaData>& tables) {
    for (const auto& table : tables) {
      rocksdb::SstFileReader reader{rocksdb::Options()};
      if (reader.Open(table.db_path + table.name).ok() && reader.VerifyChecksum().ok()) continue;
      report_.files.push_back(table.name.substr(table.name.find_first_not_of('/')));
    }
  }

  Result<void> FillGap(const KeyGap& gap, const rocksdb::LiveFileMetaData& table, std::set<std::string>* seen) {
    rocksdb::SstFileReader reader{rocksdb::Options()};
    if (!reader.Open(table.db_path + table.name).ok()) return {};
    const auto make = [&reader] { return std::unique_ptr<rocksdb::Iterator>(reader.NewIterator(Reading())); };
    return Walk(make, gap.begin, gap.end)
        .Run(
            [&](std::string_view key, std::string_view value) -> Result<void> {
              if (!seen->insert(std::string(key)).second) return {};
              std::string newest;
              const auto status = db_.Get(Reading(), rocksdb::Slice(key.data(), key.size()), &newest);
              if (status.IsNotFound()) return {};
              if (status.ok()) return Take(key, newest);
              ++report_.uncertain;
              return Take(key, value);
            },
            [](const std::string&, const std::string&) {});
  }

  rocksdb::DB& db_;
  const std::function<Result<void>(std::string_view, std::string_view)>& take_;
  SalvageReport report_;
};

}  // namespace

Result<SalvageReport> SalvageCatalog(
    const std::string& directory,
    const std::function<Result<void>(std::string_view key, std::string_view value)>& take) {
  rocksdb::DB* opened = nullptr;
  const auto status = rocksdb::DB::OpenForReadOnly(DatabaseOptions(), directory, &opened);
  const std::unique_ptr<rocksdb::DB> db(opened);
  if (!status.ok()) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}: the catalog cannot be read at all: {}", directory, status.ToString())};
  }
  return Salvage(*db, take).Run();
}

}  // namespace weightfs
