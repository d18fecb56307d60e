// SPDX-License-Identifier: Apache-2.0
// Counters of the whole store, under keys::Store. See docs/FORMAT.md section 4.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"
#include "meta/kv_store.h"

namespace weightfs {

// Binds the catalog to its store: the store id as text.
inline constexpr const char* kStoreIdFact = "store_id";
// All inode numbers at or above this one are unused. Raised in steps, in the batch of the first inode beyond the old
// value.
inline constexpr const char* kNextInodeFact = "next_ino";
// The number of inode records. The first batch that adds or removes one deletes the fact, and a clean unmount writes it
// again. A mount counts the records if it is missing.
inline constexpr const char* kInodeCountFact = "inodes";

// The greatest version that a publication has got from the time (Namespace::PublishTree).
inline constexpr const char* kLastVersionFact = "last_version";

// Before the number of a directory: some inodes of its tree have kInodePublished, but it has no publication, because
// Namespace::PublishTree or UnpublishTree has not ended. The value is the number, too.
inline constexpr const char* kPublishingFact = "publishing/";

// The time of the latest publication, in nanoseconds since the epoch. Later ones have greater times, whatever the clock
// says (Namespace::PublishTree).
inline constexpr const char* kLastPublicationFact = "last_publication";

std::string EncodeFact(uint64_t number);
// Returns kCorrupt or kVersion when the bytes are not a number.
Result<uint64_t> DecodeFact(std::string_view bytes);

// Returns nullopt when the store does not have the fact.
Result<std::optional<uint64_t>> ReadFact(KvStore& catalog, std::string_view name);

}  // namespace weightfs
