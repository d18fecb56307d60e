// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fault_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace weightfs {
namespace {

[[noreturn]] void Misuse(std::string_view path, const IoRequest& request, const char* what) {
  fmt::print(stderr, "FaultDevice {}: {} of {} bytes at {}: {}\n", path,
             request.operation == IoRequest::Operation::kRead ? "read" : "write", request.size.value,
             request.offset.value, what);
  std::abort();
}

}  // namespace

FaultDevice::FaultDevice(std::shared_ptr<Journal> journal, ByteCount size, FaultDeviceOptions options)
    : FaultDevice(std::move(journal), BlockImage(size), std::move(options)) {}

FaultDevice::FaultDevice(std::shared_ptr<Journal> journal, BlockImage image, FaultDeviceOptions options)
    : journal_(std::move(journal)),
      options_(std::move(options)),
      size_(image.size()),
      index_(journal_->AddDevice(image)),
      image_(std::move(image)),
      random_(options_.seed),
      worker_([this] { Run(); }) {}

FaultDevice::~FaultDevice() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

void FaultDevice::CheckRequest(const IoRequest& request) const {
  if (request.offset.value % kBlockSize != 0 || request.size.value % kBlockSize != 0 ||
      reinterpret_cast<uintptr_t>(request.data) % kBlockSize != 0) {
    Misuse(path(), request, "not aligned");
  }
  if (request.offset.value > size_.value || request.size.value > size_.value - request.offset.value) {
    Misuse(path(), request, "outside the device");
  }
}

void FaultDevice::Submit(std::span<IoRequest* const> requests) {
  MutexLock lock(mutex_);
  for (IoRequest* request : requests) {
    CheckRequest(*request);
    if (request->operation == IoRequest::Operation::kRead) {
      pending_.push_back(StartReadLocked(request));
      continue;
    }
    Pending pending{request};
    ++counts_.writes;
    counts_.written += request->size;
    pending.failure = NextFailureLocked(Target::kWrite);
    if (!pending.failure) pending.failure = ChargeBudgetLocked(request->size);
    pending.bytes = std::make_shared<const std::vector<std::byte>>(request->data, request->data + request->size.value);
    pending.stored = StoreLocked(request->offset, pending.bytes);
    pending_.push_back(std::move(pending));
  }
  changed_.notify_all();
}

FaultDevice::Pending FaultDevice::StartReadLocked(IoRequest* request) {
  ++counts_.reads;
  counts_.read += request->size;
  Pending pending{request};
  pending.failure = NextFailureLocked(Target::kRead);
  const bool reaches = unreadable_ && request->offset <= *unreadable_ && *unreadable_ < request->offset + request->size;
  if (reaches) pending.failure = ErrorCode::kIo;
  pending.lie = NextLieLocked({Lie::kStaleRead, Lie::kMisdirectedRead, Lie::kFlippedRead});
  return pending;
}

Result<void> FaultDevice::Read(ByteOffset offset, std::span<std::byte> out) {
  {
    MutexLock lock(mutex_);
    if (pending_.empty() && !held_ && !reads_held_ && !options_.reorder) {
      SynchronousRequest request(IoRequest::Operation::kRead, offset, out);
      CheckRequest(request);
      return ExecuteLocked(StartReadLocked(&request));
    }
  }
  return BlockDevice::Read(offset, out);
}

Result<void> FaultDevice::Write(ByteOffset offset, std::span<const std::byte> in) {
  CheckRequest(SynchronousRequest(IoRequest::Operation::kWrite, offset, in));
  MutexLock lock(mutex_);
  const auto failure = NextFailureLocked(Target::kSynchronousWrite);
  FinishWriteLocked(StoreLocked(offset, std::make_shared<const std::vector<std::byte>>(in.begin(), in.end())),
                    failure.has_value());
  if (failure) return *failure;
  return {};
}

Result<void> FaultDevice::Flush() {
  MutexLock lock(mutex_);
  ++counts_.flushes;
  const size_t covered = journal_->size();
  if (const auto code = NextFailureLocked(Target::kFlush)) {
    journal_->Append({.kind = Journal::Event::Kind::kFlushFailed, .device = index_, .subject = covered});
    return *code;
  }
  if (NextLieLocked({Lie::kLostFlush})) return {};
  journal_->Append({.kind = Journal::Event::Kind::kFlush, .device = index_, .subject = covered});
  return {};
}

void FaultDevice::Fail(Target target, Failure failure) {
  MutexLock lock(mutex_);
  triggers_[static_cast<size_t>(target)] = {failure.nth, failure.and_later, failure.code};
}

void FaultDevice::FailReadsAt(ByteOffset offset) {
  MutexLock lock(mutex_);
  unreadable_ = offset;
}

void FaultDevice::StopFailing() {
  MutexLock lock(mutex_);
  triggers_ = {};
  unreadable_.reset();
  lying_ = {};
  budget_ = {std::numeric_limits<uint64_t>::max()};
}

void FaultDevice::StartLying(Lie lie, uint64_t nth, bool and_later) {
  MutexLock lock(mutex_);
  lie_ = lie;
  lying_ = {nth, and_later};
  has_lied_ = false;
  stale_ = image_;
}

bool FaultDevice::has_lied() const {
  MutexLock lock(mutex_);
  return has_lied_;
}

std::optional<FaultDevice::Lie> FaultDevice::NextLieLocked(std::initializer_list<Lie> lies) {
  if (lying_.left == 0 || std::find(lies.begin(), lies.end(), lie_) == lies.end()) return std::nullopt;
  if (lying_.left > 1) {
    --lying_.left;
    return std::nullopt;
  }
  if (!lying_.and_later) lying_.left = 0;
  has_lied_ = true;
  return lie_;
}

FaultDevice::Stored FaultDevice::StoreLocked(ByteOffset offset, SharedBytes bytes) {
  Stored stored{offset, std::move(bytes)};
  const size_t size = stored.bytes->size();
  const auto lie = NextLieLocked({Lie::kLostWrite, Lie::kMisdirectedWrite, Lie::kTornWrite, Lie::kFlippedWrite});
  if (lie == Lie::kLostWrite) {
    stored.bytes = nullptr;
  } else if (lie == Lie::kMisdirectedWrite) {
    const bool repeats = last_write_ == offset || last_write_.value + size > size_.value;
    stored.offset = repeats ? ByteOffset{offset.value + 2 * size <= size_.value ? offset.value + size : 0} : last_write_;
  } else if (lie) {
    std::vector<std::byte> changed = *stored.bytes;
    constexpr size_t kSector = 512;
    if (lie == Lie::kFlippedWrite) changed[size / 3] ^= std::byte{16};
    for (size_t at = kSector; lie == Lie::kTornWrite && at < size; at += 2 * kSector) {
      image_.Read(offset + ByteCount{at}, std::span(changed).subspan(at, kSector));
    }
    stored.bytes = std::make_shared<const std::vector<std::byte>>(std::move(changed));
  }
  last_write_ = offset;
  if (stored.bytes != nullptr) {
    stored.event = journal_->Append(
        {.kind = Journal::Event::Kind::kWrite, .device = index_, .offset = stored.offset, .bytes = stored.bytes});
  }
  return stored;
}

void FaultDevice::FinishWriteLocked(const Stored& stored, bool failed) {
  if (stored.bytes == nullptr) return;
  if (!failed) image_.WriteShared(stored.offset, stored.bytes);
  const auto kind = failed ? Journal::Event::Kind::kWriteFailed : Journal::Event::Kind::kWriteDone;
  journal_->Append({.kind = kind, .device = index_, .subject = stored.event});
}

void FaultDevice::ReadLocked(ByteOffset offset, std::span<std::byte> out, std::optional<Lie> lie) {
  if (lie == Lie::kStaleRead) return stale_->Read(offset, out);
  if (lie == Lie::kMisdirectedRead) {
    const uint64_t next = offset.value + out.size();
    offset = {next + out.size() <= size_.value ? next : 0};
  }
  image_.Read(offset, out);
  if (lie == Lie::kFlippedRead) out[out.size() / 3] ^= std::byte{16};
}

void FaultDevice::SetWriteBudget(ByteCount bytes, ErrorCode code) {
  MutexLock lock(mutex_);
  budget_ = bytes;
  budget_code_ = code;
}

void FaultDevice::Hold() {
  MutexLock lock(mutex_);
  held_ = true;
}

void FaultDevice::HoldReads() {
  MutexLock lock(mutex_);
  reads_held_ = true;
}

void FaultDevice::Release() {
  MutexLock lock(mutex_);
  held_ = reads_held_ = false;
  changed_.notify_all();
}

void FaultDevice::WaitForHeld(size_t count) {
  MutexLock lock(mutex_);
  while (pending_.size() < count) changed_.wait(lock.native());
}

void FaultDevice::CompleteOne() {
  MutexLock lock(mutex_);
  one_ = true;
  changed_.notify_all();
  while (one_) changed_.wait(lock.native());
}

void FaultDevice::Corrupt(ByteOffset offset) {
  MutexLock lock(mutex_);
  std::vector<std::byte> byte(1);
  image_.Read(offset, byte);
  byte[0] = ~byte[0];
  image_.Write(offset, byte);
  journal_->Append({.kind = Journal::Event::Kind::kCorruption,
                    .device = index_,
                    .offset = offset,
                    .bytes = std::make_shared<const std::vector<std::byte>>(std::move(byte))});
}

FaultDevice::Counts FaultDevice::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

std::optional<ErrorCode> FaultDevice::NextFailureLocked(Target target) {
  Trigger& trigger = triggers_[static_cast<size_t>(target)];
  if (trigger.left == 0) return std::nullopt;
  if (trigger.left > 1) {
    --trigger.left;
    return std::nullopt;
  }
  if (!trigger.and_later) trigger.left = 0;
  return trigger.code;
}

std::optional<ErrorCode> FaultDevice::ChargeBudgetLocked(ByteCount bytes) {
  if (bytes > budget_) {
    budget_ = {};  // The device is full, so a later, smaller write must also fail.
    return budget_code_;
  }
  budget_ -= bytes;
  return std::nullopt;
}

bool FaultDevice::CanCompleteLocked(const Pending& pending) const {
  if (one_ || stopping_) return true;
  return !held_ && !(reads_held_ && pending.request->operation == IoRequest::Operation::kRead);
}

// Returns nothing when no request may complete.
std::optional<FaultDevice::Pending> FaultDevice::TakeLocked() {
  std::vector<std::ptrdiff_t> ready;
  for (size_t at = 0; at < pending_.size() && (options_.reorder || ready.empty()); ++at) {
    if (CanCompleteLocked(pending_[at])) ready.push_back(static_cast<std::ptrdiff_t>(at));
  }
  if (ready.empty()) return std::nullopt;
  const auto taken = pending_.begin() + ready[options_.reorder ? random_() % ready.size() : 0];
  Pending pending = std::move(*taken);
  pending_.erase(taken);
  return pending;
}

Result<void> FaultDevice::ExecuteLocked(const Pending& pending) {
  const IoRequest& request = *pending.request;
  if (request.operation == IoRequest::Operation::kRead) {
    if (pending.failure) return *pending.failure;
    ReadLocked(request.offset, {request.data, request.size.value}, pending.lie);
    return {};
  }
  if (std::memcmp(pending.bytes->data(), request.data, pending.bytes->size()) != 0) {
    Misuse(path(), request, "the memory changed while it was being written");
  }
  FinishWriteLocked(pending.stored, pending.failure.has_value());
  if (pending.failure) return *pending.failure;
  return {};
}

void FaultDevice::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    if (pending_.empty() && stopping_) return;
    const std::optional<Pending> pending = TakeLocked();
    if (!pending) {
      changed_.wait(lock.native());
      continue;
    }
    Result<void> result = ExecuteLocked(*pending);
    lock.Unlock();
    pending->request->OnComplete(std::move(result));
    lock.Lock();
    if (std::exchange(one_, false)) changed_.notify_all();
  }
}

}  // namespace weightfs
