// SPDX-License-Identifier: Apache-2.0
// The progress of a long operation. The operation reports it; the caller displays it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace weightfs {

struct Progress {
  enum class Unit : unsigned char {
    kBytes,
    kItems,  // counted items, named by `items`
    kParts,  // internal parts, without a meaning for the user
  };

  std::string_view step = {};  // current work, e.g. "reading data"; valid during the call
  uint64_t done = 0;           // out of `total`
  uint64_t total = 0;          // 0: unknown
  Unit unit = Unit::kBytes;
  std::string_view items = {};  // plural, e.g. "repairs"
  unsigned pass = 1;            // starts at 1; each pass has its own `done` and `total`
  unsigned passes = 1;          // maximum number
};

// Called on the thread that runs the operation; may be empty.
using ProgressFunction = std::function<void(const Progress&)>;

}  // namespace weightfs
