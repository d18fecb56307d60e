// SPDX-License-Identifier: Apache-2.0
// Whole tensors by the handles of the client library: past a mount by leases of the store's blocks, and by the same
// handle on the host's files.
#pragma once

#include <memory>
#include <string>

#include "bench/suite/system.h"
#include "bench/suite/workload.h"
#include "client/handle.h"

namespace weightfs::bench {

// The memory of a tensor.
enum class Alignment : unsigned char {
  kHuge,        // like the reference's
  kUnaligned,   // begins 32 bytes into a page, like that of a Python object
  kSmallPages,  // pages of 4 KiB, like those of a program that asks for nothing special
};
inline constexpr uint64_t kUnalignment = 32;

// Not thread-safe.
class Tensors {
 public:
  // The content's bytes are those before `content.data` + size + kUnalignment; `into` has as many.
  static Result<std::unique_ptr<Tensors>> Create(const Content& content, std::byte* into);

  // One tensor of the content's size, by a lease (`direct`, required) or without. Writes are durable. A read with
  // `check` compares what it got.
  Amount Read(const std::string& path, Alignment alignment, bool direct, bool check);
  Amount Write(const std::string& path, Alignment alignment, bool direct);
  // The mount's leases: many small tensors in one durable commit, and in one read.
  Amount SaveMany(const SmallFiles& files);
  Amount LoadMany(const SmallFiles& files);

 private:
  Tensors(const Content& content, std::byte* into) : content_(content), into_(into) {}
  std::byte* Into(Alignment alignment) const;
  const std::byte* From(Alignment alignment) const;

  const Content content_;
  std::byte* const into_;
  Memory small_pages_;  // the content: reads bring the same
  std::unique_ptr<client::Handle> direct_, plain_;
};

}  // namespace weightfs::bench
