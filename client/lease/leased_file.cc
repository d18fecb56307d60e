// SPDX-License-Identifier: Apache-2.0
#include "client/lease/leased_file.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <utility>

#include "client/lease/leased_blocks.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

class LeasedFile final : public LeasedAccess {
 public:
  LeasedFile(const OpenedFile::Options& options, bool in_place) : options_(options), in_place_(in_place) {}
  ~LeasedFile() override = default;  // ends the lease; the file rolls back an unfinished write

  Result<void> Begin(const Access& file, const std::shared_ptr<LeaseConnections>& connections);
  void Adopt(std::unique_ptr<Access> file) { file_ = std::move(file); }

  const std::string& path() const override { return file_->path(); }
  int any() const override { return file_->any(); }
  int Buffered(int* error_number) const override { return file_->Buffered(error_number); }
  Result<uint64_t> Size() const override { return file_->Size(); }
  Result<void> Finish(bool success) override;

  Result<void> CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const override;

 private:
  bool writes() const { return options_.writes(); }
  uint64_t end() const { return options_.offset + options_.size; }
  Result<void> Commit();

  const OpenedFile::Options options_;
  const bool in_place_;
  std::unique_ptr<Access> file_;
  lease::Token token_{};
};

Result<void> LeasedFile::Begin(const Access& file, const std::shared_ptr<LeaseConnections>& connections) {
  if (options_.size == 0) return Error{ErrorCode::kInvalid, "no lease: there is nothing to transfer"};
  const auto take = [&](lease::Kind kind, uint64_t offset, uint64_t length) -> Result<lease::Message> {
    ASSIGN_OR_RETURN(auto begun, Lease::Begin(connections, file.any(), kind, offset, length));
    lease_ = std::move(begun.lease);
    token_ = begun.token;
    return std::move(begun.answer);
  };
  if (writes()) {
    const uint64_t first = RoundUp(options_.offset, kBlockSize) / kBlockSize;
    const uint64_t last =
        (options_.whole_file ? RoundUp(end(), kBlockSize) : RoundDown(end(), kBlockSize)) / kBlockSize;
    if (last <= first) return Error{ErrorCode::kInvalid, "no lease: the write fills no block"};
    auto answer = take(lease::Kind::kReserve, first * kBlockSize, last - first);
    if (in_place_ && !answer.has_value() && answer.error().error_number() == ENOSPC) {
      auto in_place = take(lease::Kind::kReserveInPlace, 0, last - first);
      const bool is_unknown = !in_place.has_value() && in_place.error().error_number() == EINVAL;  // an older mount
      if (!is_unknown) answer = std::move(in_place);
    }
    if (!answer.has_value()) return std::move(answer).error();
    return TakeReservation(std::move(*answer), first, last - first);
  }
  ASSIGN_OR_RETURN(auto answer, take(lease::Kind::kRead, options_.offset, options_.size));
  ASSIGN_OR_RETURN(const uint64_t file_size, blocks_.TakeReadAnswer(std::move(answer), options_.offset, options_.size));
  // The file has been truncated since it was opened.
  if (file_size < end()) return Error{ErrorCode::kNoAttribute, "no lease: the file ends before what is to be read"};
  return {};
}

Result<void> LeasedFile::CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const {
  const auto damage = blocks_.FindDamage(offset, blocks);
  if (!damage) return {};
  if (last) RETURN_IF_ERROR(CheckLease(*lease_, path()));
  return DamagedRead(path(), damage->block * kBlockSize, damage->what);
}

Result<void> LeasedFile::Finish(bool success) {
  Result<void> committed;
  if (success && writes()) committed = Commit();
  lease_.reset();
  blocks_ = {};  // An operation that the caller keeps must not keep the devices' descriptors.
  // Also makes the commit durable: its fsync covers names, edges and the lease's blocks at once.
  auto finished = file_->Finish(success && committed.has_value());
  return committed.has_value() ? finished : committed;
}

Result<void> LeasedFile::Commit() {
  const uint64_t begin = blocks_.first() * kBlockSize;
  const uint64_t length = options_.whole_file ? options_.size : blocks_.count() * kBlockSize;
  const lease::CommitRequest request{.token = token_,
                                     .file_offset = begin,
                                     .length = length,
                                     .new_size = options_.whole_file ? options_.size : lease::kToEnd};
  const auto checksums = lease::Bytes(std::span<const uint32_t>(blocks_.checksums(), blocks_.count()));
  auto answer = lease_->Call(lease::Kind::kCommit, std::array{lease::BytesOf(request), checksums});
  if (answer.has_value()) {
    // The kernel learns of a new size only when it is asked; until then an O_APPEND write of another program would go
    // to the old end.
    if (auto size = file_->Size(); !size.has_value()) return std::move(size).error();
    return {};
  }
  Error error = std::move(answer).error();
  error.what = fmt::format("write of {} bytes at offset {} of {}: the mount did not commit it: {}", options_.size,
                           options_.offset, path(), error.what);
  error.path = path();
  error.offset = options_.offset;
  return error;
}

constexpr int kAttempts = 2;  // for a file that changes while it is being loaded

// Returns an empty descriptor if the file has changed.
Result<UniqueFd> LoadOpenFile(const std::shared_ptr<LeaseConnections>& connections, int descriptor, uint64_t offset,
                              uint64_t length, lease::Kind kind, const std::function<bool()>& interrupted) {
  const uint64_t end = offset + length;
  uint64_t content = 0;
  UniqueFd memory;
  while (true) {
    if (interrupted && interrupted()) return Error{ErrorCode::kCancelled, "a signal has ended the load"};
    ASSIGN_OR_RETURN(auto begun, Lease::Begin(connections, descriptor, kind, offset, end - offset, interrupted));
    lease::MapAnswer answer;
    if (!lease::BodyReader(begun.answer.body()).Take(&answer) || begun.answer.descriptors.size() > 1) {
      return Error{ErrorCode{EPROTO}, "no lease: the mount has answered without an end"};
    }
    if (answer.file_size < end) {
      return Error{ErrorCode::kNoAttribute, "no lease: the file ends before what is to be read"};
    }
    if (content != 0 && answer.content != content) return UniqueFd();
    if (answer.end <= offset || answer.end > end || begun.answer.descriptors.empty()) {
      return Error{ErrorCode{EPROTO}, "no lease: the mount has answered with another range"};
    }
    memory = std::move(begun.answer.descriptors.front());
    if (answer.end == end) return memory;
    content = answer.content;
    offset = answer.end;
  }
}

}  // namespace

Result<std::unique_ptr<Access>> LeaseFile(std::unique_ptr<Access>& file, const OpenedFile::Options& options,
                                          bool in_place, const std::shared_ptr<LeaseConnections>& connections) {
  auto made = std::make_unique<LeasedFile>(options, in_place);
  if (auto begun = made->Begin(*file, connections); !begun.has_value()) {
    Error error = std::move(begun).error();
    error.what =
        fmt::format("{} of {} bytes at offset {} of {}: {}", options.writes() ? "write" : "read",
                    options.size, options.offset, file->path(), error.what);
    error.path = file->path();
    error.offset = options.offset;
    return error;
  }
  made->Adopt(std::move(file));
  return std::unique_ptr<Access>(std::move(made));
}

Result<UniqueFd> MapOpenFile(const std::shared_ptr<LeaseConnections>& connections, int descriptor, uint64_t offset,
                             uint64_t length, bool load, const std::function<bool()>& interrupted) {
  // First what is loaded, which does not wait behind the loads of other programs.
  auto loaded = LoadOpenFile(connections, descriptor, offset, length, lease::Kind::kMapLoaded, interrupted);
  if (!load || loaded || loaded.error().code != ErrorCode::kNoMemory) return loaded;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ASSIGN_OR_RETURN(UniqueFd memory,
                     LoadOpenFile(connections, descriptor, offset, length, lease::Kind::kMap, interrupted));
    if (memory) return memory;
  }
  return Error{ErrorCode::kAgain, "the file is being written all the time"};
}

}  // namespace weightfs::client
