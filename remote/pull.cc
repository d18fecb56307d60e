// SPDX-License-Identifier: Apache-2.0
#include "remote/pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "client/file_limit.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "remote/download.h"
#include "remote/pull_directory.h"
#include "remote/pull_writer.h"

namespace weightfs::remote {
namespace {

// A write beyond the limit would kill the process.
Result<void> CheckFileLimit(const PullPlan& plan) {
  const uint64_t limit = client::FileSizeLimit();
  for (const PlannedFile& file : plan.files) {
    if (file.size() <= limit) continue;
    return Error{ErrorCode::kFileTooBig, fmt::format("{}: it has {}, and the limit of this process is {} (ulimit -f)",
                                                     Printable(file.entry->path), FormatSize(ByteCount{file.size()}),
                                                     FormatSize(ByteCount{limit}))};
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
    return Error{ErrorCode::kTooLarge,
                 fmt::format("{}: it cannot be published: it would have {} files and directories, "
                             "and a publication has at most {}",
                             Printable(directory.target()), inodes, client::kMaximumPublication)};
  }
  const auto publication = client::PublicationOf(directory.root(), directory.temporary());
  if (publication || publication.error().code == ErrorCode::kNoAttribute) return {};
  return Error{publication.error().code,
               Printable(directory.target()) + ": it cannot be published: it is not on a weightfs mount"};
}

}  // namespace

Result<Manifest> FindVersion(const Series& series, std::optional<uint64_t> version,
                             const s3::Interrupted& interrupted) {
  if (!version) return series.LoadLatest(interrupted);
  auto manifest = series.Load(*version, interrupted);
  if (manifest || manifest.error().code != ErrorCode::kNotFound) return manifest;
  return Error{ErrorCode::kNotFound, fmt::format("{}: there is no such version, or it was not pushed completely; "
                                                 "'weightfs versions {}' lists them",
                                                 series.url(*version), series.url())};
}

Result<PullReport> Pull(const Series& series, const Manifest& manifest, const std::string& directory,
                        const PullOptions& options) {
  ASSIGN_OR_RETURN(const auto target, PullDirectory::Create(directory));
  const DownloadOptions download = {
      .connections = options.connections, .progress = options.progress, .interrupted = options.interrupted};
  ASSIGN_OR_RETURN(const PullPlan plan, PlanPull(series, manifest, options.files, options.slices, download));
  if (options.publish) RETURN_IF_ERROR(CheckMayPublish(*target, plan));
  RETURN_IF_ERROR(CheckFileLimit(plan));
  RETURN_IF_ERROR(CheckSpace(plan, *target));

  for (const DirectoryEntry* entry : plan.directories) RETURN_IF_ERROR(target->MakeDirectory(entry->path));
  for (const LinkEntry* link : plan.links) RETURN_IF_ERROR(target->MakeLink(*link));
  ASSIGN_OR_RETURN(const auto writer, PullWriter::Create(*target, plan));
  RETURN_IF_ERROR(writer->WriteSmallest());
  const auto write = [&](const DownloadedPart& part) { return writer->Write(part); };
  ASSIGN_OR_RETURN(const DownloadReport downloaded, Download(series, manifest, plan.Jobs(), write, download));
  // A directory may become read-only, and its time changes with its entries.
  for (auto entry = plan.directories.rbegin(); entry != plan.directories.rend(); ++entry) {
    RETURN_IF_ERROR(target->Finish(**entry));
  }
  if (options.interrupted && options.interrupted()) {
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
