// SPDX-License-Identifier: Apache-2.0
// The two steps of a write, gather and apply: File plans under the inode's mutex and changes nothing; the caller
// fetches what the plan lacks without the mutex; File applies a plan that lacks nothing, which cannot fail.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "common/units.h"
#include "io/buffer.h"
#include "meta/records.h"
#include "store/file/dirty_map.h"
#include "store/space/space_manager.h"

namespace weightfs {

inline constexpr FileBlock BlockOf(uint64_t offset) { return {offset / kBlockSize}; }
inline constexpr FileBlock BlockEnd(uint64_t end) { return {(end + kBlockSize - 1) / kBlockSize}; }

// The staging buffers for a copied write: small ones, or the stripes of a stream.
enum class Staging : unsigned char { kSmall, kStripe };
inline constexpr ByteCount kSmallStaging{64 * kKiB}, kStripeStaging{2 * kMiB};

// The content of one block of a file, read from a device.
struct BlockContent {
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  FileBlock block;
  ExtentRecord extent;                       // where it was read; valid while the block is mapped there
  std::unique_ptr<std::byte[], Free> bytes;  // kBlockSize bytes, aligned to kBlockSize
};

// The resources that a plan lacks.
struct WriteNeeds {
  BlockCount space;                // to reserve
  bool privileged = false;         // the reservation may use the reserve for operations that free space
  size_t small = 0, stripes = 0;   // staging buffers
  std::vector<FileBlock> content;  // blocks whose content must be read: at most the two edges of a range
  bool empty() const { return space.value == 0 && small == 0 && stripes == 0 && content.empty(); }
};

// The resources fetched for a write without the inode's mutex. They grow until a plan lacks nothing. Unused ones are
// released at the end.
struct WriteSupplies {
  SpaceReservation space;
  std::vector<Buffer> small, stripes;
  std::vector<BlockContent> content;
};

// A change of the bytes of one file, made by File::Plan…. Valid in the hold of Inode::mutex in which it was made.
class WritePlan {
 public:
  explicit WritePlan(WriteSupplies& supplies) : supplies_(supplies) {}

  // The resources that the plan lacks. Only a plan that lacks nothing can be applied.
  const WriteNeeds& needs() const { return needs_; }
  // Requires that the supplies hold `count` blocks of space when the plan is applied. The file's own reservation covers
  // the blocks that are dirty already.
  void NeedSpace(BlockCount count) {
    const BlockCount held = supplies_.space.held();
    needs_.space = held < count ? count - held : BlockCount{};
  }
  WriteSupplies& supplies() { return supplies_; }

 private:
  friend class File;

  // Bytes to copy; zeros when `data` is null.
  struct Copy {
    uint64_t offset;
    uint64_t size;
    const std::byte* data;
  };
  // The full content of a block, put into memory before a partial overwrite of it.
  struct Fill {
    FileBlock block;
    const std::byte* content;  // null: zeros
    Buffer hold;               // keeps `content` alive when it is dirty memory
  };
  struct NewRange {
    FileBlock first;
    BlockCount count;
    DirtyBlocks blocks;
  };
  // The caller's buffer becomes dirty memory of [first, end).
  struct Adoption {
    FileBlock first, end;
    uint64_t offset, size;
    Buffer buffer;
    std::optional<Fill> head;  // the old content of the first block, whose head the data does not cover
  };

  WriteSupplies& supplies_;
  WriteNeeds needs_;
  std::vector<Copy> copies_;
  std::vector<Fill> fills_;
  std::vector<NewRange> ranges_;
  std::optional<Adoption> adoption_;
  BlockCount blocks_;                         // blocks that become dirty and need space
  size_t small_used_ = 0, stripes_used_ = 0;  // taken from the supplies
};

}  // namespace weightfs
