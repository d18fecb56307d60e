// SPDX-License-Identifier: Apache-2.0
#include "client/open/opener.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "client/file_limit.h"
#include "client/lease/leased_file.h"
#include "client/plan/gathered.h"

namespace weightfs::client {
namespace {

// A file that is replaced again and again between two calls is an error after so many opens.
constexpr unsigned kTries = 100;

}  // namespace

std::string FromTheRoot(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  std::error_code none;
  const auto directory = std::filesystem::current_path(none);
  // The absolute path is not usable if this process may not search it, or if something was mounted over it.
  if (none || !std::filesystem::equivalent(directory, ".", none)) return path;
  std::string absolute = (directory / path).string();
  return absolute.size() < PATH_MAX ? absolute : path;
}

FileId IdOfPath(const std::string& path) {
  const bool is_normal = path.find("//") == std::string::npos && path.find("/.") == std::string::npos;
  const size_t number = is_normal ? std::hash<std::string>()(path)
                                  : std::hash<std::string>()(std::filesystem::path(path).lexically_normal().string());
  return {.device = UINT64_MAX, .inode = number};
}

Error HeldByThisThread(const std::string& path, uint64_t offset) {
  return {ErrorCode{EDEADLK},
          "the SaveMany or LoadMany that this callback or signal handler interrupts has the file until it returns; use "
          "the file after that",
          path, offset};
}

Result<Opener::Opened> Opener::Open(Request& request, bool first) const {
  OpenedFile::Options& file = request.file;
  const FileId named = first ? IdOfPath(file.where) : FileId();
  bool must_wait = first;
  for (unsigned tries = 1;; ++tries) {
    Opened opened;
    const uint64_t renames = ranges_->renames();
    // A write that may have to wait creates its file at its turn.
    const bool may_create = !must_wait || !ranges_->contains(named);
    auto made = OpenedFile::Open(file, may_create);
    const bool absent = !made.has_value() && made.error().error_number() == ENOENT;
    if (absent && first && (!file.writes() || !may_create)) {
      // An earlier operation on the path may create the file, which has no inode yet.
      ASSIGN_OR_RETURN(opened.registration, List(file, named, named));
      if (opened.waits()) return opened;
      must_wait = false;  // the earlier operations have other ranges
      if (ranges_->renames() != renames || file.writes()) continue;
    }
    if (!made.has_value()) return std::move(made).error();
    if (first) {
      auto listed = List(file, (*made)->id(), named);
      // One that waits must not undo what the earlier ones have done.
      if (!listed.has_value() || (*listed != nullptr && (*listed)->waits())) (*made)->KeepOnFailure();
      ASSIGN_OR_RETURN(opened.registration, std::move(listed));
    }
    if (opened.waits()) {
      opened.target.access = *std::move(made);
      return opened;
    }
    // An atomic write creates its own file, so it is not affected by renames.
    if (first && ranges_->renames() != renames && !file.atomic) continue;
    const auto prepared = (*made)->Prepare();
    if (!prepared.has_value() && prepared.error().code == ErrorCode::kStale && tries < kTries) continue;
    ASSIGN_OR_RETURN(file.offset, prepared);
    ASSIGN_OR_RETURN(opened.target, Complete(*std::move(made), request));
    return opened;
  }
}

Result<Target> Opener::OpenAgain(Request& request) const {
  ASSIGN_OR_RETURN(auto opened, Open(request, /*first=*/false));
  return std::move(opened.target);
}

Result<std::shared_ptr<PendingRanges::Registration>> Opener::List(const OpenedFile::Options& file,
                                                                  std::optional<FileId> id, FileId named) const {
  FileRange range{.file = {}, .begin = file.offset, .end = file.offset + file.size, .writes = file.writes()};
  // A whole-file write affects everything up to the end of the file. An append begins after all earlier operations have
  // ended, so it overlaps all of them.
  if (file.whole_file) range.end = UINT64_MAX;
  if (file.appends) range.begin = 0, range.end = UINT64_MAX;
  if (!id || range.begin == range.end) return std::shared_ptr<PendingRanges::Registration>();
  // Also listed by path: an atomic write puts another file there, and later operations must see that file. It is listed
  // by path alone, because the number of its temporary file may become that of another file while it is pending.
  std::vector<FileRange> ranges;
  if (!file.atomic) ranges.push_back({*id, range.begin, range.end, range.writes});
  if (file.descriptor < 0) ranges.push_back({named, range.begin, range.end, range.writes});
  auto registration = ranges_->Add(ranges, file.atomic);
  // A progress callback may start what it cannot wait for.
  if (registration->deadlocks() && !Operation::CallbackScope::active()) return HeldByThisThread(file.path, file.offset);
  return registration;
}

Result<Target> Opener::Complete(std::unique_ptr<OpenedFile> file, const Request& request) const {
  const OpenedFile::Options& options = request.file;
  OpenedFile& opened = *file;
  Target target{.access = std::move(file)};
  const bool required = direct_ == Direct::kRequire;
  const bool wanted = required || (direct_ == Direct::kAuto && request.may_lease && options.size >= kLeaseFrom);
  if (wanted && options.size > 0) {
    // After a refusal for the limit of file sizes, a write through the mount would not have the space.
    const bool in_place = options.whole_file && !required && FileSizeLimit() == UINT64_MAX;
    auto leased = LeaseFile(target.access, options, in_place, connections_);
    // Through the mount, the part that fits would destroy the old file.
    const bool full = options.whole_file && !leased.has_value() && leased.error().error_number() == ENOSPC;
    if (!leased.has_value() && (required || full)) return std::move(leased).error();
    if (leased.has_value()) {
      opened.WriteElsewhere();
      target.access = *std::move(leased);
    }
  }
  if (!target.leased()) RETURN_IF_ERROR(opened.Reserve());
  // The ring would need the descriptor for the partial blocks of a read. If it cannot be opened, they fail.
  if (!target.leased() && !options.writes() &&
      (options.offset | options.size) % target.access->layout().alignment().offset != 0) {
    int ignored = 0;
    target.access->Buffered(&ignored);
  }
  if (options.gathered != nullptr && !options.gathered->parts.empty()) {
    target.ranges = std::make_unique<GatheredLayout>(target.access->layout(), options.gathered->parts);
  }
  return target;
}

}  // namespace weightfs::client
