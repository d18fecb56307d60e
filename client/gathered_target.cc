// SPDX-License-Identifier: Apache-2.0
#include "client/gathered_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/units.h"

namespace weightfs::client {
namespace {

class GatheredTarget final : public Target {
 public:
  GatheredTarget(std::unique_ptr<Target> file, std::shared_ptr<const GatheredBlocks> blocks)
      : file_(std::move(file)), blocks_(std::move(blocks)) {}

  const std::string& path() const override { return file_->path(); }
  Run Locate(uint64_t offset, uint64_t length) const override {
    const auto& run = blocks_->Find(offset);
    return file_->Locate(FileOffset(offset), std::min(length, run.at + run.length - offset));
  }
  uint64_t FileOffset(uint64_t offset) const override {
    const auto& run = blocks_->Find(offset);
    return run.offset + (offset - run.at);
  }
  DirectAlignment alignment() const override { return file_->alignment(); }
  int any() const override { return file_->any(); }
  std::optional<FileId> id() const override { return file_->id(); }
  int Buffered(int* error_number) const override { return file_->Buffered(error_number); }
  Result<uint64_t> Size() const override { return file_->Size(); }
  bool leased() const override { return file_->leased(); }
  Result<void> CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const override {
    return file_->CheckRead(FileOffset(offset), blocks, last);
  }
  Result<void> Finish(bool success) override { return file_->Finish(success); }

 private:
  const std::unique_ptr<Target> file_;
  const std::shared_ptr<const GatheredBlocks> blocks_;
};

}  // namespace

Result<GatheredBlocks> GatheredBlocks::Create(std::span<const ByteRange> ranges, const MemoryView& memory) {
  std::byte* base = memory.on_device() ? nullptr : memory.Direct(0, memory.size());
  if (base == nullptr && memory.size() > 0)
    return Error{ErrorCode::kInvalid, "ranges are read into contiguous host memory only"};
  GatheredBlocks blocks;
  uint64_t done = 0;
  std::vector<MemoryView::Part> parts;
  for (const ByteRange& range : ranges) {
    if (range.size > memory.size() - done || range.offset < blocks.end_ || range.offset > INT64_MAX - range.size) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("the range of {} bytes at {} does not lie behind the previous one, or not in the memory",
                               range.size, range.offset)};
    }
    if (range.size == 0) continue;
    if (blocks.runs_.empty()) blocks.begin_ = range.offset;
    const uint64_t at = blocks.Add(range) - blocks.begin_;
    parts.push_back({at, MemoryView(std::span(base + done, range.size))});
    done += range.size;
  }
  if (done != memory.size()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("the ranges have {} bytes together, the memory has {}", done, memory.size())};
  }
  if (!parts.empty()) blocks.memory_ = MemoryView::Joined(std::move(parts), parts.back().at + parts.back().view.size());
  return blocks;
}

uint64_t GatheredBlocks::Add(const ByteRange& range) {
  end_ = range.offset + range.size;
  const uint64_t first = RoundDown(range.offset, kBlockSize);
  const uint64_t last = RoundUp(end_, kBlockSize);
  if (runs_.empty()) {
    runs_.push_back({.at = first, .offset = first, .length = last - first});
  } else if (const uint64_t covered = runs_.back().offset + runs_.back().length; first <= covered + kNearby) {
    runs_.back().length = std::max(last, covered) - runs_.back().offset;
  } else {
    runs_.push_back({.at = runs_.back().at + runs_.back().length, .offset = first, .length = last - first});
  }
  return runs_.back().at + (range.offset - runs_.back().offset);
}

const GatheredBlocks::Run& GatheredBlocks::Find(uint64_t at) const {
  const auto behind = std::partition_point(runs_.begin(), runs_.end(), [at](const Run& run) { return run.at <= at; });
  return *std::prev(behind);
}

std::unique_ptr<Target> MakeGatheredTarget(std::unique_ptr<Target> file, std::shared_ptr<const GatheredBlocks> blocks) {
  return std::make_unique<GatheredTarget>(std::move(file), std::move(blocks));
}

}  // namespace weightfs::client
