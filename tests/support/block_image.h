// SPDX-License-Identifier: Apache-2.0
// The bytes of a device in memory: sparse, cheap to copy, with blocks shared between copies.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/units.h"

namespace weightfs {

// Immutable bytes.
using SharedBytes = std::shared_ptr<const std::vector<std::byte>>;

// Externally synchronized. Blocks never written read as zeros. Ranges outside the image abort.
class BlockImage {
 public:
  explicit BlockImage(ByteCount size) : size_(size) {}

  ByteCount size() const { return size_; }
  void Read(ByteOffset offset, std::span<std::byte> out) const;

  // Copies any range into the image.
  void Write(ByteOffset offset, std::span<const std::byte> in);

  // Keeps references into `in` instead of copying. `offset` and the size are multiples of kBlockSize.
  void WriteShared(ByteOffset offset, const SharedBytes& in);

  // The indexes of the blocks that were written, in order.
  std::vector<uint64_t> blocks() const;
  // A number that differs for different contents, nearly always.
  uint64_t Fingerprint() const;

 private:
  void CheckRange(ByteOffset offset, size_t size) const;

  ByteCount size_;
  std::unordered_map<uint64_t, std::shared_ptr<const std::byte>> blocks_;  // by block index; kBlockSize bytes each
};

}  // namespace weightfs
