// SPDX-License-Identifier: Apache-2.0
// The plan of an operation: a list of steps, made one by one, because an operation may have millions of them. PlanStep
// decides and changes nothing; the pipeline carries out its steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "client/operation.h"

namespace weightfs::client {

// What is done next with the bytes [at, at + size) of an operation's memory.
struct Step {
  enum class Kind : unsigned char {
    kHole,    // nothing is stored there: a read fills its memory with zeros
    kEdge,    // a partial block of a write: written after all other steps, by the buffered descriptor
    kDirect,  // a transfer between the memory and the file
    kBounce,  // a transfer through a bounce buffer, because O_DIRECT cannot use the memory, or a copy must be sent
  };
  Kind kind = Kind::kDirect;
  uint64_t at = 0;
  uint64_t size = 0;
  // Of a transfer:
  uint64_t lead = 0;         // bytes before this range: with a lease, whole blocks are transferred
  uint64_t transfer = 0;     // bytes, including the lead and the bytes behind the range
  int descriptor = -1;       // -1: use the buffered descriptor
  uint64_t offset = 0;       // offset for the descriptor
  uint64_t alignment = 1;    // of the memory
  std::byte* data = nullptr;  // kDirect: the caller's memory; null for that of a GPU, which cuFile accesses
};

struct PlanLimits {
  uint64_t block_size = 0;   // bytes of a transfer
  uint64_t bounce_size = 0;  // bytes of a bounce buffer in host memory
};

// The step at `at`, which is before `end`. It is at most 16 MiB of a hole, or one transfer, so that an operation can be
// canceled between its steps and a ring continues with other work.
Step PlanStep(const Operation& operation, uint64_t at, uint64_t end, const PlanLimits& limits);

// A hole of more bytes becomes several steps.
inline constexpr uint64_t kLargestHole = uint64_t{16} << 20;

// True if this is a write whose checksums the target takes.
bool NeedsChecksums(const Operation& operation);

}  // namespace weightfs::client
