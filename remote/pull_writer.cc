// SPDX-License-Identifier: Apache-2.0
#include "remote/pull_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/printable.h"
#include "common/unique_fd.h"

namespace weightfs::remote {

// Opened by the first part and closed by the last one.
struct PullWriter::File {
  std::once_flag once;
  Result<void> opened = {};
  UniqueFd descriptor;
  std::atomic<uint64_t> missing = 0;  // bytes
};

Result<std::unique_ptr<PullWriter>> PullWriter::Create(PullDirectory& directory, const PullPlan& plan) {
  ASSIGN_OR_RETURN(auto handle, client::Handle::Create({}));
  return std::unique_ptr<PullWriter>(new PullWriter(directory, plan, std::move(handle)));
}

PullWriter::PullWriter(PullDirectory& directory, const PullPlan& plan, std::unique_ptr<client::Handle> handle)
    : directory_(directory),
      plan_(plan),
      handle_(std::move(handle)),
      files_(std::make_unique<File[]>(plan.files.size())) {
  for (size_t index = 0; index < plan.files.size(); ++index) {
    const PlannedFile& planned = plan.files[index];
    files_[index].missing = planned.slice ? planned.size() - planned.slice->head.size() : planned.size();
  }
}

PullWriter::~PullWriter() = default;

Result<void> PullWriter::WriteSmallest() {
  for (size_t index = 0; index < plan_.files.size(); ++index) {
    if (files_[index].missing > 0) continue;
    RETURN_IF_ERROR(Open(index));
    RETURN_IF_ERROR(directory_.Finish(*plan_.files[index].entry, std::move(files_[index].descriptor)));
  }
  return {};
}

Result<void> PullWriter::Write(const DownloadedPart& part) {
  const PlannedFile& planned = plan_.files[part.job];
  File& file = files_[part.job];
  std::call_once(file.once, [&] { file.opened = Open(part.job); });
  RETURN_IF_ERROR(file.opened);
  uint64_t written = part.bytes.size();
  if (planned.slice) {
    RETURN_IF_ERROR(WritePieces(planned, file, part, &written));
  } else {
    RETURN_IF_ERROR(WriteBytes(file, planned.entry->path, part.offset, part.bytes));
  }
  if (written == 0 || file.missing.fetch_sub(written) != written) return {};
  return directory_.Finish(*planned.entry, std::move(file.descriptor));
}

Result<void> PullWriter::Open(size_t index) {
  const PlannedFile& planned = plan_.files[index];
  File& file = files_[index];
  ASSIGN_OR_RETURN(file.descriptor, directory_.MakeFile(planned.entry->path));
  RETURN_IF_ERROR(Reserve(planned, file));
  if (!planned.slice) return {};
  return WriteBytes(file, planned.entry->path, 0, std::as_bytes(std::span(planned.slice->head)));
}

Result<void> PullWriter::Reserve(const PlannedFile& planned, const File& file) const {
  if (planned.size() < client::kLeaseFrom) return {};
  const auto size = static_cast<off_t>(planned.size());
  if (fallocate(file.descriptor.get(), 0, 0, size) == 0) return {};
  if (errno == EOPNOTSUPP && ftruncate(file.descriptor.get(), size) == 0) return {};
  return SystemError(directory_.target() + "/" + planned.entry->path, "cannot reserve its space");
}

Result<void> PullWriter::WriteBytes(const File& file, std::string_view path, uint64_t offset,
                                    std::span<const std::byte> bytes) const {
  const auto named = [&](int error_number) {
    return SystemError(fmt::format("{}/{}", directory_.target(), path),
                       fmt::format("cannot write at offset {}", offset), error_number);
  };
  if (bytes.size() >= client::kLeaseFrom) {
    const auto written = handle_->Write(file.descriptor.get(), client::MemoryView(bytes),
                                        {.offset = offset, .own_errors = true, .stable = true});
    if (!written) return named(written.error().error_number());
    return {};
  }
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        pwrite(file.descriptor.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return named(count == 0 ? EIO : errno);
    done += static_cast<size_t>(count);
  }
  return {};
}

Result<void> PullWriter::WritePieces(const PlannedFile& planned, const File& file, const DownloadedPart& part,
                                     uint64_t* written) const {
  *written = 0;
  const std::vector<SlicePiece>& pieces = planned.slice->pieces;
  const uint64_t end = part.offset + part.bytes.size();
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), part.offset,
                                [](uint64_t offset, const SlicePiece& at) { return offset < at.from + at.size; });
  for (; piece != pieces.end() && piece->from < end; ++piece) {
    const uint64_t from = std::max(piece->from, part.offset), until = std::min(piece->from + piece->size, end);
    RETURN_IF_ERROR(WriteBytes(file, planned.entry->path, piece->to + (from - piece->from),
                               part.bytes.subspan(from - part.offset, until - from)));
    *written += until - from;
  }
  return {};
}

}  // namespace weightfs::remote
