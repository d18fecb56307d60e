// SPDX-License-Identifier: Apache-2.0
#include "remote/pull.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "client/file_limit.h"
#include "common/make_error.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "common/system_calls.h"
#include "remote/pull_directory.h"

namespace weightfs::remote {
namespace {

// Writes downloaded parts. Creates each file before its first part, reserves its space, and gives it its attributes
// after its last part. Large parts are written by a client::Handle, which bypasses a weightfs mount. Errors are full
// lines that name the file. The directory, whose directories exist, the plan and the handle must outlive the writer.
class PullWriter {
 public:
  PullWriter(PullDirectory& directory, const PullPlan& plan, client::Handle& handle)
      : directory_(directory),
        plan_(plan),
        handle_(handle),
        files_(std::make_unique<File[]>(plan.files.size())) {
    for (size_t index = 0; index < plan.files.size(); ++index) {
      const PlannedFile& planned = plan.files[index];
      files_[index].missing = planned.slice ? planned.size() - planned.slice->head.size() : planned.size();
    }
  }

  // Writes the files that have no parts. Must be called once.
  Result<void> WriteSmallest() {
    for (size_t index = 0; index < plan_.files.size(); ++index) {
      if (files_[index].missing > 0) continue;
      RETURN_IF_ERROR(Open(index));
      RETURN_IF_ERROR(directory_.Finish(*plan_.files[index].entry, std::move(files_[index].descriptor)));
    }
    return {};
  }

  // A sink for the jobs of the plan. Thread-safe.
  Result<void> Write(const DownloadedPart& part) {
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

 private:
  // Opened by the first part and closed by the last one.
  struct File {
    std::once_flag once;
    Result<void> opened = {};
    UniqueFd descriptor;
    std::atomic<uint64_t> missing = 0;  // bytes
  };

  Result<void> Open(size_t index) {
    const PlannedFile& planned = plan_.files[index];
    File& file = files_[index];
    ASSIGN_OR_RETURN(file.descriptor, directory_.MakeFile(planned.entry->path));
    RETURN_IF_ERROR(Reserve(planned, file));
    if (!planned.slice) return {};
    return WriteBytes(file, planned.entry->path, 0, std::as_bytes(std::span(planned.slice->head)));
  }

  Result<void> Reserve(const PlannedFile& planned, const File& file) const {
    if (planned.size() < client::kLeaseFrom) return {};
    const auto size = static_cast<off_t>(planned.size());
    if (fallocate(file.descriptor.get(), 0, 0, size) == 0) return {};
    if (errno == EOPNOTSUPP && ftruncate(file.descriptor.get(), size) == 0) return {};
    return SystemError(directory_.target() + "/" + planned.entry->path, "cannot reserve its space");
  }

  Result<void> WriteBytes(const File& file, std::string_view path, uint64_t offset,
                          std::span<const std::byte> bytes) const {
    const auto named = [&](int error_number) {
      return SystemError(fmt::format("{}/{}", directory_.target(), path),
                         fmt::format("cannot write at offset {}", offset), error_number);
    };
    if (bytes.size() >= client::kLeaseFrom) {
      const auto written = handle_.Write(file.descriptor.get(), client::MemoryView(bytes),
                                          {.offset = offset, .own_errors = true, .stable = true});
      if (!written) return named(written.error().error_number());
      return {};
    }
    if (!WriteFully(file.descriptor.get(), bytes, offset)) return named(errno);
    return {};
  }

  Result<void> WritePieces(const PlannedFile& planned, const File& file, const DownloadedPart& part,
                           uint64_t* written) const {
    *written = 0;
    const std::vector<SlicePiece>& pieces = planned.slice->pieces;
    const uint64_t end = part.offset + part.bytes.size();
    auto piece =
        std::ranges::upper_bound(pieces, part.offset, {}, [](const SlicePiece& at) { return at.from + at.size; });
    for (; piece != pieces.end() && piece->from < end; ++piece) {
      const uint64_t from = std::max(piece->from, part.offset), until = std::min(piece->from + piece->size, end);
      RETURN_IF_ERROR(WriteBytes(file, planned.entry->path, piece->to + (from - piece->from),
                                 part.bytes.subspan(from - part.offset, until - from)));
      *written += until - from;
    }
    return {};
  }

  PullDirectory& directory_;
  const PullPlan& plan_;
  client::Handle& handle_;
  const std::unique_ptr<File[]> files_;  // one for each file of the plan
};

// A write beyond the limit would kill the process.
Result<void> CheckFileLimit(const PullPlan& plan) {
  const uint64_t limit = client::FileSizeLimit();
  for (const PlannedFile& file : plan.files) {
    if (file.size() <= limit) continue;
    return MakeError(ErrorCode::kFileTooBig, "{}: it has {}, and the limit of this process is {} (ulimit -f)",
                     Printable(file.entry->path), FormatSize(ByteCount{file.size()}), FormatSize(ByteCount{limit}));
  }
  return {};
}

Result<void> CheckSpace(const PullPlan& plan, const PullDirectory& directory) {
  uint64_t bytes = 0;
  for (const PlannedFile& file : plan.files) bytes += RoundUp(file.size(), kBlockSize);
  return directory.CheckSpace(bytes, plan.files.size() + plan.directories.size() + plan.links.size());
}

// The directory may be used by a program that trusts what is in it.
void WarnOfLinks(const PullPlan& plan, const std::string& directory,
                 const std::function<void(const std::string& line)>& warn) {
  const LinkEntry* first = nullptr;
  size_t count = 0;
  for (const LinkEntry* link : plan.links) {
    if (!link->may_lead_outside()) continue;
    if (count++ == 0) first = link;
  }
  if (count == 0) return;
  warn(fmt::format("{}: {} symbolic link{} may lead out of the directory, e.g. {} to '{}'", Printable(directory), count,
                   count == 1 ? "" : "s", Printable(first->path), Printable(first->target)));
}

Result<void> CheckMayPublish(const PullDirectory& directory, const PullPlan& plan) {
  const size_t inodes = plan.files.size() + plan.directories.size() + plan.links.size();
  if (inodes > client::kMaximumPublication) {
    return MakeError(
        ErrorCode::kTooLarge,
        "{}: it cannot be published: it would have {} files and directories, and a publication has at most {}",
        Printable(directory.target()), inodes, client::kMaximumPublication);
  }
  const auto publication = client::PublicationOf(directory.root(), directory.temporary());
  if (publication || publication.error().code == ErrorCode::kNoAttribute) return {};
  return Error{publication.error().code,
               Printable(directory.target()) + ": it cannot be published: it is not on a weightfs mount"};
}

}  // namespace

Result<Manifest> FindVersion(const Series& series, std::optional<uint64_t> version) {
  if (!version) return series.LoadLatest();
  auto manifest = series.Load(*version);
  if (manifest || manifest.error().code != ErrorCode::kNotFound) return manifest;
  return MakeError(ErrorCode::kNotFound,
                   "{}: there is no such version, or it was not pushed completely; 'weightfs versions {}' lists them",
                   series.url(*version), series.url());
}

Result<PullReport> Pull(const Series& series, const Manifest& manifest, const std::string& directory,
                        const PullOptions& options) {
  ASSIGN_OR_RETURN(const auto target, PullDirectory::Create(directory));
  ASSIGN_OR_RETURN(const PullPlan plan, PlanPull(series, manifest, options.files, options.slices));
  if (options.publish) RETURN_IF_ERROR(CheckMayPublish(*target, plan));
  RETURN_IF_ERROR(CheckFileLimit(plan));
  RETURN_IF_ERROR(CheckSpace(plan, *target));

  for (const DirectoryEntry* entry : plan.directories) RETURN_IF_ERROR(target->MakeDirectory(entry->path));
  for (const LinkEntry* link : plan.links) RETURN_IF_ERROR(target->MakeLink(*link));
  ASSIGN_OR_RETURN(const auto handle, client::Handle::Create({}));
  PullWriter writer(*target, plan, *handle);
  RETURN_IF_ERROR(writer.WriteSmallest());
  const auto write = [&](const DownloadedPart& part) { return writer.Write(part); };
  ASSIGN_OR_RETURN(const DownloadReport downloaded, Download(series, manifest, plan.Jobs(), write, options.progress));
  // A directory may become read-only, and its time changes with its entries.
  for (auto entry = plan.directories.rbegin(); entry != plan.directories.rend(); ++entry) {
    RETURN_IF_ERROR(target->Finish(**entry));
  }
  if (series.bucket().is_interrupted()) {
    return Error{ErrorCode::kCancelled, series.url(manifest.version) + ": the pull was interrupted"};
  }
  RETURN_IF_ERROR(target->Commit());

  PullReport report{manifest.version, plan.files.size(), plan.bytes(), downloaded.bytes, downloaded.fetched_again};
  if (options.warn) WarnOfLinks(plan, target->target(), options.warn);
  if (target->lost_attributes() && options.warn) {
    options.warn(Printable(target->target()) +
                 ": the extended attributes of the version were lost: this filesystem has none");
  }
  if (options.publish) {
    auto published = client::Publish(target->root(), target->target(), manifest.version);
    if (!published) {
      Error error = std::move(published).error();
      error.what = "the pull is complete, but not published: " + error.what;
      return error;
    }
    report.published = *published;
  }
  return report;
}

}  // namespace weightfs::remote
