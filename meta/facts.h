// SPDX-License-Identifier: Apache-2.0
// Numbers about the store as a whole, under keys::Store. docs/FORMAT.md section 4.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"
#include "meta/kv_store.h"

namespace weightfs {

// No inode number at or above this one was ever given out. Raised in steps, in the batch of the first inode behind it.
inline constexpr const char* kNextInodeFact = "next_ino";
// How many inode records there are: written by every batch that adds or removes one.
inline constexpr const char* kInodeCountFact = "inodes";

std::string EncodeFact(uint64_t number);
// kCorrupt, or kVersion, when the bytes are no number.
Result<uint64_t> DecodeFact(std::string_view bytes);

// nullopt when the store does not have the fact.
Result<std::optional<uint64_t>> ReadFact(KvStore& catalog, std::string_view name);

}  // namespace weightfs
