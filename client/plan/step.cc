// SPDX-License-Identifier: Apache-2.0
#include "client/plan/step.h"

#include <algorithm>

#include "client/lane.h"
#include "client/target.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

bool Writes(const Operation& operation) { return operation.direction() == Operation::Direction::kWrite; }

// A copy of the memory is sent with its checksums, unless nobody changes the memory.
bool NeedsCopy(const Operation& operation) { return NeedsChecksums(operation) && !operation.stable(); }

// Returns the caller's memory, or null if O_DIRECT cannot use it.
std::byte* UsableMemory(const Operation& operation, uint64_t at, uint64_t size, uint64_t alignment) {
  std::byte* data = size > 0 ? operation.memory().Direct(at, size) : nullptr;
  return reinterpret_cast<uintptr_t>(data) % alignment == 0 ? data : nullptr;
}

// By a lease: whole blocks around the range, because a checksum covers a block and the last block of a file ends with
// zeros. If O_DIRECT can use the memory of the blocks between the ends, the ends become steps of their own.
Step PlanBlocks(const Operation& operation, uint64_t at, uint64_t end, uint64_t block_size) {
  const Layout& layout = operation.layout();
  const uint64_t left = end - at;
  const uint64_t file = operation.offset() + at;
  Step step{.at = at, .lead = file % kBlockSize};
  const Layout::Run run = layout.Locate(file - step.lead, RoundUp(step.lead + left, kBlockSize));
  if (run.descriptor < 0) {
    const uint64_t size = std::min(run.length - step.lead, left);
    if (Writes(operation)) return {.kind = Step::Kind::kEdge, .at = at, .size = size};
    return {.kind = Step::Kind::kHole, .at = at, .size = std::min(size, kLargestHole)};
  }
  step.descriptor = run.descriptor;
  step.offset = run.offset;
  step.alignment = run.is_memory ? 1 : layout.alignment().memory;
  const uint64_t unit = std::max(RoundDown(block_size, kBlockSize), kBlockSize);
  const uint64_t length = std::min(run.length, unit - (file - step.lead) % unit);
  step.size = std::min(length - step.lead, left);
  const uint64_t head = step.lead == 0 ? 0 : std::min(kBlockSize - step.lead, step.size);
  const uint64_t whole = RoundDown(step.size - head, kBlockSize);
  if (!NeedsCopy(operation) && UsableMemory(operation, at + head, whole, step.alignment) != nullptr) {
    step.size = head > 0 ? head : whole;
  }
  step.transfer = RoundUp(step.lead + step.size, kBlockSize);
  return step;
}

// The longest run of whole blocks for O_DIRECT, or the part before or after one, up to the next multiple of block_size.
Step PlanRange(const Operation& operation, uint64_t at, uint64_t end, uint64_t block_size) {
  const Layout& layout = operation.layout();
  const uint64_t file = operation.offset() + at;
  const uint64_t left = end - at;
  const uint64_t unit = layout.alignment().offset;
  Layout::Run run = layout.Locate(file, left);
  if (operation.direct_refused()) run.descriptor = -1;
  Step step{.at = at, .size = std::min(run.length, left), .offset = run.offset};
  if (run.descriptor >= 0 && run.offset % unit != 0) {
    step.size = std::min(step.size, RoundUp(run.offset, unit) - run.offset);
  } else if (run.descriptor >= 0 && step.size >= unit) {
    step.size = RoundDown(step.size, unit);
    step.descriptor = run.descriptor;
    step.alignment = layout.alignment().memory;
  }
  const uint64_t block = std::max(RoundDown(block_size, unit), unit);
  step.size = step.transfer = std::min(step.size, block - run.offset % block);
  // It goes through the page cache, but only after all direct transfers. A dirty page keeps the rest of its folio,
  // which may be megabytes, in the cache while a direct write next to it changes the device; that rest would stay
  // stale.
  if (Writes(operation) && run.descriptor >= 0 && step.descriptor < 0) step.kind = Step::Kind::kEdge;
  return step;
}

}  // namespace

bool NeedsChecksums(const Operation& operation) {
  return Writes(operation) && operation.access().needs_checksums();
}

Step PlanStep(const Operation& operation, uint64_t at, uint64_t end, const PlanLimits& limits) {
  Step step = operation.access().leased() ? PlanBlocks(operation, at, end, limits.block_size)
                                          : PlanRange(operation, at, end, limits.block_size);
  if (step.kind != Step::Kind::kDirect) return step;
  uint64_t bounce_size = limits.bounce_size;
  if (const auto& device = operation.device(); device != nullptr) {
    if (step.descriptor >= 0 && device->direct()) return step;
    bounce_size = DeviceLane::kBounceSize;
  } else if (!NeedsCopy(operation) && step.transfer == step.size) {
    step.data = UsableMemory(operation, at, step.size, step.alignment);
    if (step.data != nullptr) return step;
  }
  step.kind = Step::Kind::kBounce;
  step.transfer = std::min(step.transfer, bounce_size);
  step.size = std::min(step.size, step.transfer - step.lead);
  return step;
}

}  // namespace weightfs::client
