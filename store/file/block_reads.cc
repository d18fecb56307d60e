// SPDX-License-Identifier: Apache-2.0
#include "store/file/block_reads.h"

#include <cstring>
#include <utility>

#include "common/assert.h"
#include "common/checksum.h"
#include "common/log.h"

namespace weightfs {

// Of one transfer whose good parts are used: a device that reads nothing costs no more.
constexpr unsigned kMostUnreadable = 8;

// The read of one device run. If the device cannot read it as a whole, its blocks are read one by one.
class BlockReads::Transfer final : public IoRequest {
 public:
  Transfer(BlockReads& group, FileBlock first, const DeviceRun& run, std::byte* memory,
           std::span<const uint32_t> checksums)
      : IoRequest(Operation::kRead, ToBytes(run.run.start), {memory, ToBytes(run.run.count).value}),
        device(run.device),
        first_(first),
        blocks_(run.run.count),
        checksums_(checksums.begin(), checksums.end()),
        group_(group) {}
  void OnComplete(Result<void> result) override;

  const DeviceId device;
  std::shared_ptr<BlockReads> keep;  // keeps the group from Submit to the end of this transfer

 private:
  bool Take(const Result<void>& result);
  bool Verify();

  const FileBlock first_;
  const BlockCount blocks_;
  const std::vector<uint32_t> checksums_;
  BlockReads& group_;
  BlockCount done_;  // blocks before the request's, of which nothing is to be done any more
  unsigned unreadable_ = 0;
  ReadAttempts attempts_;  // of the request's blocks
};

BlockReads::BlockReads(const Context& context, InodeId ino, Use use, Done done)
    : context_(context), ino_(ino), use_(use), epoch_(std::in_place, context.space), done_(std::move(done)) {}

BlockReads::~BlockReads() = default;

std::shared_ptr<BlockReads> BlockReads::Create(const Context& context, InodeId ino, Use use, Done done) {
  return std::shared_ptr<BlockReads>(new BlockReads(context, ino, use, std::move(done)));
}

void BlockReads::Add(FileBlock first, const DeviceRun& run, std::byte* memory, std::span<const uint32_t> checksums) {
  WEIGHTFS_ASSERT(!context_.verify || checksums.size() == run.run.count.value);
  ++pending_;
  transfers_.push_back(std::make_unique<Transfer>(*this, first, run, memory, checksums));
}

void BlockReads::AddZeros(std::span<std::byte> memory) { zeros_.push_back(memory); }

void BlockReads::Fail(const Error& error, std::span<const std::byte> memory) {
  MutexLock lock(mutex_);
  if (!error_) error_ = error;
  failed_.push_back(memory);
}

void BlockReads::Submit(std::span<const std::shared_ptr<BlockReads>> groups) {
  if (groups.empty()) return;
  IoBatch batch(groups.front()->context_.devices);
  for (const auto& group : groups) {
    for (const auto& transfer : group->transfers_) {
      transfer->keep = group;
      batch.Add(transfer->device, transfer.get());
    }
  }
  batch.Submit();
  for (const auto& group : groups) {
    for (const std::span<std::byte> memory : group->zeros_) std::memset(memory.data(), 0, memory.size());
    group->Complete();
  }
}

void BlockReads::Complete() {
  if (--pending_ > 0) return;
  Result<void> result;
  Failed failed;
  {
    MutexLock lock(mutex_);
    if (error_) result = *error_;
    failed = std::move(failed_);
  }
  epoch_.reset();
  std::exchange(done_, nullptr)(std::move(result), std::move(failed));
}

void BlockReads::Transfer::OnComplete(Result<void> result) {
  if (Take(result)) {
    const auto group = std::exchange(keep, nullptr);  // the group owns this transfer
    return group->Complete();
  }
  IoRequest* request = this;
  group_.context_.devices[device].Submit({&request, 1});
}

// Takes what the request has read. Returns false if another one is to be submitted.
bool BlockReads::Transfer::Take(const Result<void>& result) {
  if (!result) {
    spdlog::error("read failed: inode {}, file offset {}, device {}, device offset {}, {} bytes: {}", group_.ino_.value,
                  (first_.value + done_.value) * kBlockSize, device.value, offset.value, size.value,
                  ToString(result.error()));
    if (size.value > kBlockSize) {
      size = ByteCount{kBlockSize};
      return false;
    }
    group_.Fail(result.error(), {data, kBlockSize});
    ++unreadable_;
  } else if (group_.context_.verify && !Verify()) {
    return false;
  }
  done_ += BlockCount{size.value / kBlockSize};
  data += size.value;
  offset += size;
  attempts_ = {};
  if (done_ < blocks_ && unreadable_ == (group_.use_ == Use::kParts ? kMostUnreadable : 1)) {
    group_.Fail(result.error(), {data, ToBytes(blocks_ - done_).value});
    return true;
  }
  return done_ == blocks_;
}

// Checks every block of the request. Returns false if they are to be read again. Blocks that remain wrong are marked as
// failed.
bool BlockReads::Transfer::Verify() {
  const size_t blocks = size.value / kBlockSize;
  const auto matches = [this](size_t block) {
    return Crc32c({data + block * kBlockSize, kBlockSize}) == checksums_[done_.value + block];
  };
  size_t bad = 0;
  while (bad < blocks && matches(bad)) ++bad;
  if (bad == blocks) return true;
  ++group_.context_.checksum_errors;
  const bool again = attempts_.ReadAgain();
  for (; bad < blocks; ++bad) {
    if (matches(bad)) continue;
    spdlog::error("checksum mismatch: inode {}, file offset {}, device {}, device offset {}{}", group_.ino_.value,
                  (first_.value + done_.value + bad) * kBlockSize, device.value, offset.value + bad * kBlockSize,
                  again ? "; reading again" : "; giving up: reads of it fail with EIO");
    if (again) break;
    group_.Fail(Error{ErrorCode::kCorrupt}, {data + bad * kBlockSize, kBlockSize});
  }
  return !again;
}

}  // namespace weightfs
