// SPDX-License-Identifier: Apache-2.0
#include "store/file/block_reads.h"

#include <cstring>
#include <utility>

#include "common/assert.h"
#include "common/checksum.h"
#include "common/log.h"

namespace weightfs {

// The read of one device run.
class BlockReads::Transfer final : public IoRequest {
 public:
  Transfer(BlockReads& group, FileBlock first, const DeviceRun& run, std::byte* memory,
           std::span<const uint32_t> checksums)
      : device(run.device), first_(first), checksums_(checksums.begin(), checksums.end()), group_(group) {
    operation = Operation::kRead;
    offset = ToBytes(run.run.start);
    data = memory;
    size = ToBytes(run.run.count);
  }
  void OnComplete(Result<void> result) override;

  const DeviceId device;
  std::shared_ptr<BlockReads> keep;  // keeps the group from Submit to the end of this transfer

 private:
  bool Verify();

  const FileBlock first_;
  const std::vector<uint32_t> checksums_;
  BlockReads& group_;
  ReadAttempts attempts_;
};

BlockReads::BlockReads(const Context& context, InodeId ino, Done done)
    : context_(context), ino_(ino), epoch_(std::in_place, context.space), done_(std::move(done)) {}

BlockReads::~BlockReads() = default;

std::shared_ptr<BlockReads> BlockReads::Create(const Context& context, InodeId ino, Done done) {
  return std::shared_ptr<BlockReads>(new BlockReads(context, ino, std::move(done)));
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
  if (!result) {
    spdlog::error("read failed: inode {}, file offset {}, device {}, device offset {}: {}", group_.ino_.value,
                  first_.value * kBlockSize, device.value, offset.value, ToString(result.error()));
    group_.Fail(result.error(), {data, size.value});
  } else if (group_.context_.verify && !Verify()) {
    return;  // another read was submitted
  }
  const auto group = std::exchange(keep, nullptr);  // the group owns this transfer
  group->Complete();
}

// Checks every block. Returns false when a mismatch starts another read. Blocks that remain wrong are marked as failed.
bool BlockReads::Transfer::Verify() {
  const auto matches = [this](size_t block) {
    return Crc32c({data + block * kBlockSize, kBlockSize}) == checksums_[block];
  };
  size_t bad = 0;
  while (bad < checksums_.size() && matches(bad)) ++bad;
  if (bad == checksums_.size()) return true;
  ++group_.context_.checksum_errors;
  const bool again = attempts_.ReadAgain();
  for (; bad < checksums_.size(); ++bad) {
    if (matches(bad)) continue;
    spdlog::error("checksum mismatch: inode {}, file offset {}, device {}, device offset {}{}", group_.ino_.value,
                  (first_.value + bad) * kBlockSize, device.value, offset.value + bad * kBlockSize,
                  again ? "; reading again" : "; giving up: reads of it fail with EIO");
    if (again) break;
    group_.Fail(Error{ErrorCode::kCorrupt}, {data + bad * kBlockSize, kBlockSize});
  }
  if (!again) return true;
  IoRequest* request = this;
  group_.context_.devices[device].Submit({&request, 1});
  return false;
}

}  // namespace weightfs
