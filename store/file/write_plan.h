// SPDX-License-Identifier: Apache-2.0
// How a write gathers what it needs, then applies it: File plans under the inode's mutex and changes nothing; the
// caller fetches what the plan lacks without the mutex; File applies a plan that lacks nothing, and that cannot fail.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/units.h"
#include "io/buffer.h"
#include "meta/records.h"
#include "store/file/dirty_map.h"
#include "store/space/space_manager.h"

namespace weightfs {

inline constexpr FileBlock BlockOf(uint64_t offset) { return {offset / kBlockSize}; }
inline constexpr FileBlock BlockEnd(uint64_t end) { return {(end + kBlockSize - 1) / kBlockSize}; }

// Which staging buffers take the bytes of a write that is copied: small ones, or the stripes of a stream.
enum class Staging : unsigned char { kSmall, kStripe };
inline constexpr ByteCount kSmallStaging{64 * kKiB}, kStripeStaging{2 * kMiB};

// The content of one block of a file, as it lies on a device.
struct BlockContent {
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  FileBlock block;
  ExtentRecord extent;                       // where it was read: good as long as the block is mapped there
  std::unique_ptr<std::byte[], Free> bytes;  // kBlockSize of them, aligned like a block
};

// What a plan lacks.
struct WriteNeeds {
  BlockCount space;                // to be reserved
  bool privileged = false;         // the reservation may use what is held back for operations that free space
  size_t small = 0, stripes = 0;   // staging buffers
  std::vector<FileBlock> content;  // blocks whose content has to be read, at most the two edges of a range
  bool empty() const { return space.value == 0 && small == 0 && stripes == 0 && content.empty(); }
};

// What was fetched for a write without the inode's mutex. It grows until a plan lacks nothing; what the write does not
// use goes back at the end.
struct WriteSupplies {
  SpaceReservation space;
  std::vector<Buffer> small, stripes;
  std::vector<BlockContent> content;
};

// A change of the bytes of one file, made by File::Plan…. Valid under the hold of Inode::mutex that made it.
class WritePlan {
 public:
  explicit WritePlan(WriteSupplies& supplies) : supplies_(supplies) {}

  // What the plan lacks. Only a plan that lacks nothing can be applied.
  const WriteNeeds& needs() const { return needs_; }
  // The plan needs this much space besides that for dirty blocks; the supplies hold it when it is applied.
  void NeedSpace(BlockCount count) {
    const BlockCount held = supplies_.space.held();
    needs_.space = held < count ? count - held : BlockCount{};
  }
  WriteSupplies& supplies() { return supplies_; }

 private:
  friend class File;

  // Bytes that are copied; zeros where `data` is null.
  struct Copy {
    uint64_t offset;
    uint64_t size;
    const std::byte* data;
  };
  // A whole block that is put into memory before the bytes are: what a partial overwrite keeps.
  struct Fill {
    FileBlock block;
    const std::byte* content;  // null: zeros
    Buffer hold;               // of `content`, where it is dirty memory
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
    std::optional<Fill> head;  // what the first block keeps in front of the data
  };

  WriteSupplies& supplies_;
  WriteNeeds needs_;
  std::vector<Copy> copies_;
  std::vector<Fill> fills_;
  std::vector<NewRange> ranges_;
  std::optional<Adoption> adoption_;
  BlockCount blocks_;                         // that become dirty and need space
  size_t small_used_ = 0, stripes_used_ = 0;  // of the supplies
};

}  // namespace weightfs
