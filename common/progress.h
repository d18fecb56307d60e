// SPDX-License-Identifier: Apache-2.0
// How far a long operation has come. The operation reports it; the caller shows it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace weightfs {

struct Progress {
  enum class Unit : unsigned char {
    kBytes,
    kItems,  // of the kind that `items` names
    kParts,  // of the operation: they mean nothing to the user
  };

  std::string_view step = {};  // the work under way, e.g. "reading data"; valid during the call
  uint64_t done = 0;           // of `total`
  uint64_t total = 0;          // 0: unknown
  Unit unit = Unit::kBytes;
  std::string_view items = {};  // plural, e.g. "repairs"
  unsigned pass = 1;            // counts from 1; every pass has its own `done` and `total`
  unsigned passes = 1;          // at most
};

// Called on the thread that called the operation; may be empty.
using ProgressFunction = std::function<void(const Progress&)>;

}  // namespace weightfs
