// SPDX-License-Identifier: Apache-2.0
#include "client/lease/leased_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/units.h"

namespace weightfs::client {
namespace {

class LeasedRows final : public Target {
 public:
  LeasedRows(std::string path, const LeaseWindows& leases, LeaseWindows::Pins pins, RowLayout layout)
      : path_(std::move(path)),
        file_size_(leases.file_size()),
        window_size_(leases.window_size()),
        alignment_(pins.windows().front()->blocks.alignment()),
        pins_(std::move(pins)),
        layout_(std::move(layout)) {}

  const std::string& path() const override { return path_; }
  Run Locate(uint64_t offset, uint64_t length) const override;
  uint64_t FileOffset(uint64_t offset) const override;
  DirectAlignment alignment() const override { return alignment_; }
  bool leased() const override { return true; }
  int Buffered(int* error_number) const override {
    *error_number = EIO;  // the pipeline reads leased blocks through the devices only
    return -1;
  }
  Result<uint64_t> Size() const override { return file_size_; }
  Result<void> CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const override;
  Result<void> Finish(bool success) override;

 private:
  const LeaseWindows::Window& WindowOf(uint64_t file_offset) const { return pins_.Find(file_offset / window_size_); }
  Result<void> CheckMount() const;

  const std::string path_;
  const uint64_t file_size_;
  const uint64_t window_size_;
  const DirectAlignment alignment_;
  LeaseWindows::Pins pins_;
  RowLayout layout_;
};

uint64_t LeasedRows::FileOffset(uint64_t offset) const {
  return RoundDown(layout_.offsets[offset / layout_.stride], kBlockSize) + offset % layout_.stride;
}

Target::Run LeasedRows::Locate(uint64_t offset, uint64_t length) const {
  const uint64_t in_row = offset % layout_.stride;
  const uint64_t lead = layout_.offsets[offset / layout_.stride] % kBlockSize;
  const uint64_t covered = RoundUp(lead + layout_.length, kBlockSize);
  // Between the rows is nothing; the operation's memory discards it.
  if (in_row >= covered) return {-1, 0, std::min(length, layout_.stride - in_row)};
  const uint64_t at = FileOffset(offset);
  const uint64_t in_window = window_size_ - at % window_size_;
  return WindowOf(at).blocks.Locate(at, std::min({length, covered - in_row, in_window}));
}

Result<void> LeasedRows::CheckMount() const {
  for (const auto& window : pins_.windows()) {
    if (window->lease->alive()) continue;
    return Error{ErrorCode{EPIPE},
                 fmt::format("read of {}: the mount went away, and the lease of the file with it", path_), path_};
  }
  return {};
}

Result<void> LeasedRows::CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const {
  const uint64_t at = FileOffset(offset);
  const auto damage = WindowOf(at).blocks.FindDamage(at, blocks);
  if (!damage) return {};
  // Without the lease, the blocks may have been reused.
  if (last) RETURN_IF_ERROR(CheckMount());
  return DamagedRead(path_, damage->block * kBlockSize, damage->what);
}

// The blocks kept their content during the transfers if the leases outlived them.
Result<void> LeasedRows::Finish(bool success) {
  Result<void> result;
  if (success) result = CheckMount();
  pins_ = {};
  layout_ = {};
  return result;
}

}  // namespace

std::unique_ptr<Target> MakeLeasedRows(std::string path, const LeaseWindows& leases, LeaseWindows::Pins pins,
                                       RowLayout layout) {
  return std::make_unique<LeasedRows>(std::move(path), leases, std::move(pins), std::move(layout));
}

}  // namespace weightfs::client
