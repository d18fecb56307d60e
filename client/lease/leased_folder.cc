// SPDX-License-Identifier: Apache-2.0
#include "client/lease/leased_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "client/lease/leased_blocks.h"
#include "common/result.h"
#include "common/umask.h"
#include "common/units.h"
#include "lease/ioctl.h"

namespace weightfs::client {
namespace {

uint64_t BlocksOf(uint64_t bytes) { return RoundUp(bytes, kBlockSize) / kBlockSize; }

// The base class for both directions.
class LeasedFiles : public LeasedAccess {
 public:
  explicit LeasedFiles(std::shared_ptr<const LeasedFolder> folder) : folder_(std::move(folder)) {}

  const std::string& path() const override { return folder_->path(); }
  int Buffered(int* error_number) const override {
    *error_number = EOPNOTSUPP;  // there is no single file
    return -1;
  }
  Result<uint64_t> Size() const override { return blocks_.count() * kBlockSize; }

 protected:
  const std::shared_ptr<const LeasedFolder> folder_;
};

class SavedFiles : public LeasedFiles {
 public:
  SavedFiles(std::shared_ptr<const LeasedFolder> folder, const LeasedFolder::SaveOptions& options)
      : LeasedFiles(std::move(folder)), options_(options) {}

  Result<MemoryView> Begin(std::span<const NamedMemory> files, std::unique_ptr<Lease> lease);
  Result<void> Finish(bool success) override;

 private:
  Error NotReserved(Error error, uint64_t blocks) const;
  Error Refused(Error error, std::optional<uint64_t> failed) const;

  const LeasedFolder::SaveOptions options_;
  std::vector<lease::FileEntry> entries_;
  std::vector<std::byte> names_;  // NUL-terminated
};

Result<MemoryView> SavedFiles::Begin(std::span<const NamedMemory> files, std::unique_ptr<Lease> lease) {
  lease_ = std::move(lease);
  uint64_t blocks = 0;
  std::vector<MemoryView::Part> parts;
  for (const auto& [name, memory] : files) {
    parts.push_back({blocks * kBlockSize, memory});
    entries_.push_back({memory.size()});
    const auto bytes = std::as_bytes(std::span(name.c_str(), name.size() + 1));
    names_.insert(names_.end(), bytes.begin(), bytes.end());
    blocks += BlocksOf(memory.size());
  }
  // The size of the commit request is known now. A refusal at commit time would be too late for a fallback.
  RETURN_IF_ERROR(CheckBody(lease::CommitManyBody(entries_.size(), names_.size(), blocks)));
  // A reservation has at least one block.
  const lease::ReserveRequest request{.token = folder_->ticket().token, .blocks = std::max<uint64_t>(blocks, 1)};
  RETURN_IF_ERROR(folder_->PermitChange());
  auto reserved = lease_->Call(lease::Kind::kReserve, std::array{lease::BytesOf(request)});
  if (!reserved.has_value()) return NotReserved(std::move(reserved).error(), request.blocks);
  RETURN_IF_ERROR(TakeReservation(*std::move(reserved), 0, request.blocks));
  return MemoryView::Joined(std::move(parts), blocks * kBlockSize);
}

Error SavedFiles::NotReserved(Error error, uint64_t blocks) const {
  error.path = path();
  error.what = fmt::format("write of {} files, {} bytes in whole blocks, to {}: {}", entries_.size(),
                           blocks * kBlockSize, path(), error.what);
  return error;
}

Result<void> SavedFiles::Finish(bool success) {
  Result<void> result;
  if (success) {
    const auto mask = options_.mode ? mode_t{0} : CurrentUmask();
    const lease::CommitManyRequest request{.token = folder_->ticket().token,
                                           .files = entries_.size(),
                                           .mode = static_cast<uint16_t>(options_.mode.value_or(kFileMode & ~mask)),
                                           .masked = static_cast<uint16_t>(kFileMode & mask),
                                           .durable = static_cast<uint16_t>(options_.durable),
                                           .keep_modes = static_cast<uint16_t>(!options_.mode)};
    const uint64_t blocks =
        std::accumulate(entries_.begin(), entries_.end(), uint64_t{0},
                        [](uint64_t sum, const lease::FileEntry& entry) { return sum + BlocksOf(entry.size); });
    const std::span<const std::byte> names(names_);
    const auto checksums = lease::Bytes(std::span<const uint32_t>(blocks_.checksums(), blocks));
    const std::array body{lease::BytesOf(request), lease::Bytes(entries_), names, checksums};
    std::optional<uint64_t> failed;
    result = folder_->PermitChange();
    if (result.has_value()) {
      const auto answer = lease_->Call(lease::Kind::kCommitMany, body, &failed);
      if (!answer.has_value()) result = answer.error();
    }
    if (!result.has_value()) result = Refused(std::move(result).error(), failed);
  }
  lease_.reset();
  return result;
}

Error SavedFiles::Refused(Error error, std::optional<uint64_t> failed) const {
  error.path = path();
  std::string what = fmt::format("{} files", entries_.size());
  if (failed && *failed < entries_.size()) {
    const auto* name = reinterpret_cast<const char*>(names_.data());
    for (uint64_t i = 0; i < *failed; ++i) name += std::strlen(name) + 1;
    error.path = path() + "/" + name;
    what = name;
  }
  error.what =
      fmt::format("write to {}: the mount did not commit {}, and so none of the files: {}", path(), what, error.what);
  return error;
}

class LoadedFiles : public LeasedFiles {
 public:
  LoadedFiles(std::shared_ptr<const LeasedFolder> folder, std::span<const NamedMemory> files, size_t first,
              std::shared_ptr<FileErrors> errors)
      : LeasedFiles(std::move(folder)), files_(files), first_(first), errors_(std::move(errors)) {}

  Result<MemoryView> Begin(std::unique_ptr<Lease> lease);
  Result<void> CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const override;
  Result<void> Finish(bool /*success*/) override {
    lease_.reset();
    return {};
  }

 private:
  // A file as described by the mount's answer.
  struct Found {
    size_t index = 0;  // index in files_
    std::span<const lease::Extent> extents;
    std::span<const uint32_t> checksums;  // one per block
  };
  // A file's position in the operation.
  struct Placed {
    uint64_t begin = 0;  // first block
    size_t index = 0;
  };
  std::string NameOf(size_t index) const { return path() + "/" + files_[index].name; }
  bool IsUsable(size_t index, const lease::FileAnswer& answer);
  Result<MemoryView> Place(std::vector<Found> found);

  const std::span<const NamedMemory> files_;
  const size_t first_;
  const std::shared_ptr<FileErrors> errors_;
  std::vector<Placed> placed_;  // in the order of the operation
};

Result<MemoryView> LoadedFiles::Begin(std::unique_ptr<Lease> lease) {
  lease_ = std::move(lease);
  const lease::ReadManyRequest request{.token = folder_->ticket().token, .files = files_.size()};
  std::vector<std::byte> names;
  for (const auto& file : files_) {
    const auto bytes = std::as_bytes(std::span(file.name.c_str(), file.name.size() + 1));
    names.insert(names.end(), bytes.begin(), bytes.end());
  }
  const std::span<const std::byte> text(names);
  ASSIGN_OR_RETURN(auto message, lease_->Call(lease::Kind::kReadMany, std::array{lease::BytesOf(request), text}));
  lease::BodyReader body(message.body());
  lease::ReadManyAnswer answer;
  std::vector<lease::FileAnswer> answers;
  std::vector<lease::Extent> extents;
  std::vector<uint32_t> checksums;
  if (!body.Take(&answer) || !body.Take(files_.size(), &answers) || !body.Take(answer.extents, &extents) ||
      !body.Take(answer.checksums, &checksums)) {
    return MalformedAnswer();
  }
  std::span<const lease::Extent> extents_left(extents);
  std::span<const uint32_t> checksums_left(checksums);
  std::vector<Found> found;
  for (size_t i = 0; i < files_.size(); ++i) {
    const auto& file = answers[i];
    if (file.extents > extents_left.size() || file.checksums > checksums_left.size()) return MalformedAnswer();
    if (IsUsable(i, file)) {
      if (file.checksums != BlocksOf(file.file_size)) return MalformedAnswer();
      found.push_back({i, extents_left.first(file.extents), checksums_left.first(file.checksums)});
    }
    extents_left = extents_left.subspan(file.extents);
    checksums_left = checksums_left.subspan(file.checksums);
  }
  blocks_.Adopt(std::move(message.descriptors));
  return Place(std::move(found));
}

bool LoadedFiles::IsUsable(size_t index, const lease::FileAnswer& answer) {
  const std::string path = NameOf(index);
  if (answer.error != 0) {
    const char* why = answer.error == EINVAL ? "no lease: it is no regular file" : std::strerror(answer.error);
    errors_->Add(first_ + index, {ErrorCode{answer.error},
                                  fmt::format("read of {} bytes at offset 0 of {}: cannot open the file: {}",
                                              files_[index].memory.size(), path, why),
                                  path});
    return false;
  }
  if (answer.file_size == files_[index].memory.size()) return true;
  errors_->Add(first_ + index, OtherSize(path, files_[index].memory.size(), answer.file_size));
  return false;
}

// Files that are adjacent on a device are read together.
Result<MemoryView> LoadedFiles::Place(std::vector<Found> found) {
  const auto place = [](const Found& file) {
    return file.extents.empty() ? std::pair<uint32_t, uint64_t>{}
                                : std::pair{file.extents[0].device, file.extents[0].device_block};
  };
  std::sort(found.begin(), found.end(), [&](const Found& a, const Found& b) { return place(a) < place(b); });
  uint64_t blocks = 0;
  std::vector<MemoryView::Part> parts;
  for (const auto& file : found) {
    placed_.push_back({blocks, file.index});
    parts.push_back({blocks * kBlockSize, files_[file.index].memory});
    blocks += file.checksums.size();
  }
  RETURN_IF_ERROR(blocks_.Reset(0, blocks));
  for (size_t i = 0; i < found.size(); ++i) {
    const Found& file = found[i];
    const uint64_t begin = placed_[i].begin;
    std::copy(file.checksums.begin(), file.checksums.end(), blocks_.checksums() + begin);
    const uint64_t count = file.checksums.size();
    for (const auto& extent : file.extents) {
      if (extent.file_block >= count || extent.count > count - extent.file_block) return MalformedAnswer();
    }
    RETURN_IF_ERROR(blocks_.Add(file.extents, begin));
  }
  return MemoryView::Joined(std::move(parts), blocks * kBlockSize);
}

Result<void> LoadedFiles::CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const {
  while (const auto damage = blocks_.FindDamage(offset, blocks)) {
    const auto behind = std::partition_point(placed_.begin(), placed_.end(),
                                             [&](const Placed& file) { return file.begin <= damage->block; });
    // Empty files begin at the same block as the next file, and precede it.
    const Placed& file = *std::prev(behind);
    Error error = DamagedRead(NameOf(file.index), (damage->block - file.begin) * kBlockSize, damage->what);
    if (!last) return error;
    RETURN_IF_ERROR(CheckLease(*lease_, NameOf(file.index)));
    errors_->Add(first_ + file.index, std::move(error));
    const uint64_t next = (damage->block + 1) * kBlockSize;
    blocks = blocks.subspan(next - offset);
    offset = next;
  }
  return {};
}

}  // namespace

void FileErrors::Add(size_t index, Error error) {
  MutexLock lock(mutex_);
  errors_.emplace(index, std::move(error));
}

std::map<size_t, Error> FileErrors::TakeFrom(size_t first) {
  MutexLock lock(mutex_);
  std::map<size_t, Error> out;
  while (!errors_.empty() && errors_.rbegin()->first >= first) out.insert(errors_.extract(std::prev(errors_.end())));
  return out;
}

Result<std::shared_ptr<const LeasedFolder>> LeasedFolder::Open(const std::string& path,
                                                               std::shared_ptr<LeaseConnections> connections) {
  UniqueFd descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) {
    return Error{ErrorCode{errno}, fmt::format("cannot open the directory {}: {}", path, std::strerror(errno)), path};
  }
  auto ticket = AskForTicket(descriptor.get());
  if (!ticket.has_value()) {
    Error error = std::move(ticket).error();
    error.what = fmt::format("{}: {}", path, error.what);
    error.path = path;
    return error;
  }
  return std::shared_ptr<const LeasedFolder>(
      new LeasedFolder(path, std::move(descriptor), std::move(*ticket), std::move(connections)));
}

Result<void> LeasedFolder::PermitChange() const {
  const auto& key = ticket_.token;
  if (fsetxattr(descriptor_.get(), WEIGHTFS_CHANGE_ATTRIBUTE, key.data(), key.size(), 0) == 0) return {};
  const char* why = errno == EOPNOTSUPP ? "no lease: the mount is of an older version; mount it again"
                                        : std::strerror(errno);
  return Error{ErrorCode{errno}, fmt::format("{}: {}", path_, why), path_};
}

Result<LeasedFolder::Batch> LeasedFolder::Save(std::span<const NamedMemory> files, const SaveOptions& options) const {
  ASSIGN_OR_RETURN(auto lease, Lease::Connect(connections_, ticket_, descriptor_.get()));
  auto access = std::make_unique<SavedFiles>(shared_from_this(), options);
  ASSIGN_OR_RETURN(auto memory, access->Begin(files, std::move(lease)));
  return Batch{std::move(access), std::move(memory)};
}

Result<LeasedFolder::Batch> LeasedFolder::Load(std::span<const NamedMemory> files, size_t first,
                                               std::shared_ptr<FileErrors> errors) const {
  ASSIGN_OR_RETURN(auto lease, Lease::Connect(connections_, ticket_, descriptor_.get()));
  auto access = std::make_unique<LoadedFiles>(shared_from_this(), files, first, std::move(errors));
  ASSIGN_OR_RETURN(auto memory, access->Begin(std::move(lease)));
  return Batch{std::move(access), std::move(memory)};
}

Error OtherSize(const std::string& path, uint64_t memory, uint64_t file) {
  return {file < memory ? ErrorCode::kNoAttribute : ErrorCode::kInvalid,
          fmt::format("read of {} bytes at offset 0 of {}: the file has {} bytes, not the buffer's size", memory, path,
                      file),
          path};
}

}  // namespace weightfs::client
