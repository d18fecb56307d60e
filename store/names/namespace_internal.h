// SPDX-License-Identifier: Apache-2.0
// Checks of names and records that the sources of Namespace and fsck share. Nobody else includes this.
#pragma once

#include <string_view>

#include "common/result.h"
#include "store/types.h"

namespace weightfs {

// A name that can be looked up: kNotFound for none, kNameTooLong, kInvalid where it holds a slash or a NUL.
inline Result<void> CheckName(std::string_view name) {
  if (name.empty()) return ErrorCode::kNotFound;
  if (name.size() > kMaximumName) return ErrorCode::kNameTooLong;
  if (name.find('/') != name.npos || name.find('\0') != name.npos) return ErrorCode::kInvalid;
  return {};
}

// One link less; a directory has no others. False when the record says that there was none.
inline bool DropLink(InodeRecord& record) {
  if (record.links == 0) return false;
  record.links = S_ISDIR(record.mode) ? 0 : record.links - 1;
  return true;
}

// Repeats a step as long as it says kAgain: what it had read from the catalog, without the mutexes of inodes, had
// changed by the time it took them.
template <typename Step>
auto WhileStale(const Step& step) {
  while (true) {
    auto result = step();
    if (result || result.error().code != ErrorCode::kAgain) return result;
  }
}

inline bool IsDots(std::string_view name) { return name == "." || name == ".."; }

}  // namespace weightfs
