// SPDX-License-Identifier: Apache-2.0
// Checks of names and records that the source files of Namespace and fsck share. Included by them only.
#pragma once

#include <string_view>

#include "common/result.h"
#include "store/types.h"

namespace weightfs {

// Checks a name for lookup: kNotFound when it is empty, kNameTooLong, kInvalid when it contains a slash or a NUL.
inline Result<void> CheckName(std::string_view name) {
  if (name.empty()) return ErrorCode::kNotFound;
  if (name.size() > kMaximumName) return ErrorCode::kNameTooLong;
  if (name.find('/') != name.npos || name.find('\0') != name.npos) return ErrorCode::kInvalid;
  return {};
}

// Drops one link; a directory loses all of its links. Returns false when the record had none.
inline bool DropLink(InodeRecord& record) {
  if (record.links == 0) return false;
  record.links = S_ISDIR(record.mode) ? 0 : record.links - 1;
  return true;
}

// Repeats a step while it returns kAgain. A step reads the catalog without inode mutexes, and returns kAgain when the
// records have changed by the time it locks them.
template <typename Step>
auto WhileStale(const Step& step) {
  while (true) {
    auto result = step();
    if (result || result.error().code != ErrorCode::kAgain) return result;
  }
}

inline bool IsDots(std::string_view name) { return name == "." || name == ".."; }

}  // namespace weightfs
