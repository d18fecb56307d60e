// SPDX-License-Identifier: Apache-2.0
// The caller's memory of one operation: one run of bytes, a strided tensor whose elements follow each other in
// row-major order of its indices, several of these, or one run of bytes in the memory of a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/export.h"
#include "common/error.h"

namespace weightfs::client {

// A value; borrows the memory. Reading it from several threads is safe, and so is Scatter to ranges that do
// not overlap. All positions are bytes in the logical, gathered order.
class WEIGHTFS_EXPORT MemoryView {
 public:
  MemoryView() = default;
  explicit MemoryView(std::span<std::byte> bytes) : base_(bytes.data()), size_(bytes.size()), run_(size_) {}
  // For a source of writes: nothing of this library writes to it.
  explicit MemoryView(std::span<const std::byte> bytes)
      : MemoryView(std::span(const_cast<std::byte*>(bytes.data()), bytes.size())) {}

  // `strides` are in bytes and may be negative or 0. EINVAL when the shape is impossible: it has more than 2^63 - 1
  // bytes, or elements outside of all addresses.
  static Result<MemoryView> Strided(void* base, size_t item_size, std::span<const int64_t> shape,
                                    std::span<const int64_t> strides);
  // Memory of a GPU, of which the host's processors see nothing. With a stream (CUDA's handle of it; 0 is the default
  // one) an operation begins after all that is in it so far.
  static MemoryView OnDevice(uint64_t address, size_t size, std::optional<uintptr_t> stream);

  // Several views in one, each at its place, in order and none over another. Between them, and up to `size`, are zeros
  // that nobody keeps.
  struct Part;
  static MemoryView Joined(std::vector<Part> parts, size_t size);

  size_t size() const { return size_; }
  bool on_device() const { return on_device_; }
  uint64_t device_address() const { return reinterpret_cast<uintptr_t>(base_); }
  std::optional<uintptr_t> stream() const { return stream_; }
  // True when two elements may share a byte, so that reading into it has no one meaning. Never false when they
  // do.
  bool may_overlap() const { return may_overlap_; }

  // The address of [offset, offset + length), when it is one run of the host's memory; null otherwise.
  std::byte* Direct(size_t offset, size_t length) const;
  // Copies out.size() bytes from `offset` on out of the host's memory.
  void Gather(size_t offset, std::span<std::byte> out) const;
  // The reverse.
  void Scatter(size_t offset, std::span<const std::byte> in) const;

 private:
  struct Dimension {
    int64_t count;
    int64_t stride;  // bytes
  };

  template <bool kGather>
  void Copy(size_t offset, size_t length, std::byte* other) const;
  bool MayOverlap() const;
  // Calls `visit` with each part of the range that is in a view, and the position of its first byte there.
  template <typename Visit>
  void ForEachPart(size_t offset, size_t length, Visit visit) const;

  std::byte* base_ = nullptr;
  size_t size_ = 0;
  size_t run_ = 0;                     // contiguous bytes at each index
  std::vector<Dimension> dimensions_;  // around the runs, outermost first; none: one run
  bool may_overlap_ = false;
  bool on_device_ = false;
  std::optional<uintptr_t> stream_;                 // of the device
  std::shared_ptr<const std::vector<Part>> parts_;  // of Joined
};

struct MemoryView::Part {
  size_t at = 0;
  MemoryView view;
};

}  // namespace weightfs::client
