// SPDX-License-Identifier: Apache-2.0
// Whole tensors through handles of the client library: on a mount by leases of the store's blocks, and with the same
// handle on the host's files.
#pragma once

#include <memory>
#include <string>

#include "bench/worker/files.h"
#include "client/handle.h"

namespace weightfs::bench {

// The memory of a tensor.
enum class Alignment : unsigned char {
  kHuge,        // like the reference
  kUnaligned,   // begins 32 bytes into a page, like the memory of a Python object
  kSmallPages,  // 4 KiB pages, like the memory of a program without special allocation
};
inline constexpr uint64_t kUnalignment = 32;

// Not thread-safe.
class Tensors {
 public:
  // `content.data` has size + kUnalignment readable bytes, and so has `into`.
  static Result<std::unique_ptr<Tensors>> Create(const Content& content, std::byte* into);

  // One tensor of the content's size, with a lease (`direct`: required) or without. Writes are durable. `check`
  // verifies the data that was read.
  Amount Read(const std::string& path, Alignment alignment, bool direct, bool check);
  Amount Write(const std::string& path, Alignment alignment, bool direct);
  // Many small tensors through leases of the mount: in one durable commit, and in one read.
  Amount SaveMany(const SmallFiles& files);
  Amount LoadMany(const SmallFiles& files);

  // Aligned reads of rows at random offsets through a reader with a lease, for `*seconds`, which becomes the time that
  // they took, without opening the file: one at a time with depth 1, otherwise in batches, with `depth` in the kernel.
  Amount ReadRows(const std::string& path, uint64_t row, unsigned depth, uint64_t seed, bool check,
                  double* seconds) const;

 private:
  Tensors(const Content& content, std::byte* into) : content_(content), into_(into) {}
  std::byte* Into(Alignment alignment) const;
  const std::byte* From(Alignment alignment) const;

  const Content content_;
  std::byte* const into_;
  Memory small_pages_;  // contains the content; reads return the same bytes
  std::unique_ptr<client::Handle> direct_, plain_;
};

}  // namespace weightfs::bench
