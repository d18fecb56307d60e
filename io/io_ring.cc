// SPDX-License-Identifier: Apache-2.0
#include "io/io_ring.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/assert.h"
#include "common/units.h"

namespace weightfs {
namespace {

constexpr std::chrono::nanoseconds kRetryPause = std::chrono::milliseconds(1);

}  // namespace

Result<std::unique_ptr<IoRing>> IoRing::Create(const Options& options) {
  for (unsigned depth = options.depth;; depth /= 2) {
    auto kernel = KernelQueue::Create(depth, options.wakeable);
    if (kernel.has_value()) return std::make_unique<IoRing>(depth, std::move(*kernel));
    if (!options.may_shrink || kernel.error().code != ErrorCode::kAgain || depth <= 1) {
      return tl::unexpected(std::move(kernel).error());
    }
  }
}

IoRing::IoRing(unsigned depth, std::unique_ptr<KernelQueue> kernel)
    : depth_(depth), kernel_(std::move(kernel)), slots_(depth) {
  for (unsigned slot = depth; slot > 0; --slot) free_.push_back(slot - 1);
}

IoRing::~IoRing() { WEIGHTFS_ASSERT(in_kernel() == 0); }

size_t IoRing::queued() const {
  MutexLock lock(mutex_);
  return queue_.size();
}

size_t IoRing::in_kernel() const {
  MutexLock lock(mutex_);
  return InKernelLocked();
}

bool IoRing::idle() const {
  MutexLock lock(mutex_);
  return queue_.empty() && failed_.empty() && InKernelLocked() == 0;
}

void IoRing::Queue(std::span<const Transfer> transfers) {
  MutexLock lock(mutex_);
  for (const Transfer& transfer : transfers) queue_.push_back({transfer});
}

std::vector<void*> IoRing::Withdraw(const std::function<bool(void* owner)>& predicate) {
  std::vector<void*> owners;
  MutexLock lock(mutex_);
  std::erase_if(queue_, [&](const Entry& entry) {
    const bool withdrawn = predicate(entry.transfer.owner);
    if (withdrawn) owners.push_back(entry.transfer.owner);
    return withdrawn;
  });
  return owners;
}

size_t IoRing::Submit(size_t limit, size_t batch) {
  std::array<unsigned, kMaxBatch> slots;
  size_t sent = 0;
  for (;;) {
    const size_t most = std::min({limit - sent, batch, slots.size()});
    size_t count = 0;
    {
      MutexLock lock(mutex_);
      count = TakeBatchLocked(std::span(slots).first(most));
    }
    if (count == 0) return sent;
    const int rc = kernel_->Submit(std::span(slots).first(count));
    const size_t accepted = rc > 0 ? static_cast<size_t>(rc) : 0;
    sent += accepted;
    if (accepted == count && count == most) continue;
    // The queue was empty, or all slots were in use. The caller of Queue or Reap submits later changes.
    if (accepted == count) return sent;
    MutexLock lock(mutex_);
    // After a partial submission the next round gets the error of the first remaining transfer, if any.
    const int error_number = rc == 0 ? EAGAIN : std::max(-rc, 0);
    if (!RequeueLocked(std::span(slots).subspan(accepted, count - accepted), error_number)) return sent;
  }
}

size_t IoRing::TakeBatchLocked(std::span<unsigned> batch) {
  size_t count = 0;
  for (; count < batch.size() && !queue_.empty() && !free_.empty(); ++count) {
    const unsigned slot = batch[count] = free_.back();
    free_.pop_back();
    slots_[slot] = queue_.front();
    queue_.pop_front();
    kernel_->Prepare(slot, slots_[slot].transfer, slots_[slot].done);
  }
  return count;
}

bool IoRing::RequeueLocked(std::span<const unsigned> left, int error_number) {
  for (auto slot = left.rbegin(); slot != left.rend(); ++slot) {
    queue_.push_front(slots_[*slot]);
    free_.push_back(*slot);
  }
  if (error_number == 0 || error_number == EINTR) return true;
  if (error_number == EAGAIN) {
    if (InKernelLocked() > 0) return false;  // the next completion frees a slot
    refused_ = true;
  } else {
    // The error concerns only the first transfer.
    failed_.push_back({queue_.front().transfer, queue_.front().done, error_number});
    queue_.pop_front();
  }
  // Wake the reaping thread, which would otherwise wait for an event that does not come.
  if (reaping_) kernel_->Wake();
  return error_number != EAGAIN;
}

size_t IoRing::Reap(std::span<Completion> completions, size_t minimum,
                    std::optional<std::chrono::nanoseconds> timeout) {
  WEIGHTFS_ASSERT(!completions.empty() && minimum <= 1);
  size_t count = 0;
  MutexLock lock(mutex_);
  for (; count < completions.size() && !failed_.empty(); failed_.pop_front()) completions[count++] = failed_.front();
  if (count > 0) return count;
  if (std::exchange(refused_, false)) timeout = std::min(timeout.value_or(kRetryPause), kRetryPause);
  WEIGHTFS_ASSERT(!reaping_);
  reaping_ = true;
  lock.Unlock();
  std::array<KernelQueue::Event, kMaxBatch> events;
  const size_t wanted = std::min(completions.size(), events.size());
  const int rc = kernel_->Wait(minimum, std::span(events).first(wanted), timeout);
  // Any other error means that the queue is broken; without events no transfer would ever complete.
  WEIGHTFS_ASSERT(rc >= 0 || rc == -EINTR);
  lock.Lock();
  reaping_ = false;
  for (int i = 0; i < rc; ++i) {
    const auto& event = events[static_cast<size_t>(i)];
    if (const auto completion = CompleteLocked(event.slot, event.result)) completions[count++] = *completion;
  }
  return count;
}

std::optional<IoRing::Completion> IoRing::CompleteLocked(unsigned slot, int64_t result) {
  Entry& entry = slots_[slot];
  free_.push_back(slot);
  const Transfer& transfer = entry.transfer;
  if (result < 0) return Completion{transfer, entry.done, static_cast<int>(-result)};
  const uint64_t done = entry.done + static_cast<uint64_t>(result);
  if (done >= transfer.size) return Completion{transfer, transfer.size, 0};
  const uint64_t whole = RoundDown(done, transfer.unit);
  if (whole == entry.done) return Completion{transfer, done, 0};
  entry.done = whole;
  queue_.push_front(entry);
  return std::nullopt;
}

void IoRing::Wake() { kernel_->Wake(); }

}  // namespace weightfs
