// SPDX-License-Identifier: Apache-2.0
// Reads what is left of a damaged catalog. Only rocks_*.cc include RocksDB.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs {

// A range of keys, without `end`, in which records may be missing.
struct KeyGap {
  std::string begin;
  std::string end;  // empty: no end
};

struct SalvageReport {
  uint64_t records = 0;            // given to the caller
  uint64_t uncertain = 0;          // of these, records whose newest version may be lost, or that may have been deleted
  std::vector<KeyGap> gaps;        // in order
  std::vector<std::string> files;  // damaged, without their directory
};

// Calls `take` for every record of the catalog in `directory` that can be read. It changes nothing there. A damaged
// block of a table costs the records in that block; where another table has an older version of one of them, that
// version is used. The log is read up to its first damaged record. `take` gets each key once. Errors are those of
// `take`, and kCorrupt, as a full line, when the files that list the tables are damaged too.
Result<SalvageReport> SalvageCatalog(
    const std::string& directory,
    const std::function<Result<void>(std::string_view key, std::string_view value)>& take);

}  // namespace weightfs
