// SPDX-License-Identifier: Apache-2.0
#include "remote/push.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "client/publication.h"
#include "common/hex.h"
#include "common/printable.h"
#include "common/utc_time.h"
#include "remote/download.h"
#include "remote/local_tree.h"
#include "remote/upload.h"

namespace weightfs::remote {
namespace {

constexpr int kAttempts = 3;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string("unknown");
}

// One push of one version.
class Pusher {
 public:
  Pusher(const Series& series, const std::string& path, const PushOptions& options)
      : series_(series), path_(path), options_(options) {}

  Result<PushReport> Run();

 private:
  Result<void> ChooseVersion();
  Result<bool> IsComplete();
  Result<void> TakeClaim();
  Result<void> TakeOver(const Claim& other);
  Result<Leftovers> FindLeftovers();
  Result<void> SendAndVerify();
  Result<void> CheckSource() const;
  Result<void> CheckClaim() const;
  Result<void> WriteManifest();
  Claim OurClaim() const { return {.push = manifest().push, .source = source(), .created_ns = Now()}; }
  std::string source() const { return HostName() + ":" + tree_.root; }
  Manifest& manifest() { return tree_.manifest; }
  const Manifest& manifest() const { return tree_.manifest; }
  std::string url() const { return series_.url(manifest().version); }

  const Series& series_;
  const std::string path_;
  const PushOptions& options_;
  LocalTree tree_;
  std::optional<client::Publication> publication_;
  bool trusts_objects_ = true;
  PushReport report_;
};

Result<void> Pusher::ChooseVersion() {
  const auto published = client::PublicationOf(path_);
  if (published) publication_ = *published;
  if (options_.version && (*options_.version == 0 || *options_.version > INT64_MAX)) {
    return Error{ErrorCode::kInvalid, "a version is a number from 1 to 2^63 - 1"};
  }
  if (publication_ && options_.version.value_or(publication_->version) != publication_->version) {
    return Error{ErrorCode::kInvalid, fmt::format("{}: published as version {}, so it cannot be pushed as version {}",
                                                  Printable(path_), publication_->version, *options_.version)};
  }
  manifest().version = publication_       ? publication_->version
                       : options_.version ? *options_.version
                                          : UtcVersion(tree_.newest_ns());
  manifest().push = publication_ ? ToHex(publication_->id) : tree_.Fingerprint();
  manifest().source = source();
  report_.version = manifest().version;
  report_.files = manifest().files.size();
  report_.bytes = manifest().bytes();
  return {};
}

// True if an earlier push of the same source has made the version. A manifest of our own that arrived damaged, so that
// no reader accepts it, is removed.
Result<bool> Pusher::IsComplete() {
  const auto existing = series_.Load(manifest().version, options_.interrupted);
  if (!existing && existing.error().code == ErrorCode::kNotFound) return false;
  if (!existing && existing.error().code == ErrorCode::kCorrupt) {
    const auto claim = series_.LoadClaim(manifest().version, options_.interrupted);
    if (!claim || claim->push != manifest().push) return existing.error();
    RETURN_IF_ERROR(series_.bucket().DeleteObject(series_.ManifestKey(manifest().version), options_.interrupted));
    return false;
  }
  if (!existing) return existing.error();
  if (existing->push != manifest().push) {
    return Error{ErrorCode::kExists, fmt::format("{}: exists already, from {}, {}; push another version", url(),
                                                 existing->source, FormatUtc(existing->created_ns))};
  }
  report_.existed = true;
  manifest() = *existing;
  return true;
}

// A claim that exists may be our own: of an interrupted push, or of an attempt whose answer was lost.
Result<void> Pusher::TakeClaim() {
  const std::string key = series_.ClaimKey(manifest().version);
  const std::string ours = OurClaim().Encode();
  const auto put = series_.bucket().PutObject(key, ours, {.if_none_match = true}, options_.interrupted);
  if (!put && put.error().code != ErrorCode::kExists) return put.error();
  ASSIGN_OR_RETURN(const Claim found, series_.LoadClaim(manifest().version, options_.interrupted));
  if (found.push == manifest().push) {
    trusts_objects_ = !found.taken_over;
    return {};
  }
  if (options_.take_over) return TakeOver(found);
  return Error{ErrorCode::kBusy,
               fmt::format("{}: another push began this version, from {}, {}; let it finish, or replace it with "
                           "--take-over if it has ended",
                           url(), found.source, FormatUtc(found.created_ns))};
}

// Removes what the other push has sent before the claim is replaced, so that a later push of ours does not find it.
Result<void> Pusher::TakeOver(const Claim& other) {
  const std::string prefix = series_.Prefix(manifest().version), claim = series_.ClaimKey(manifest().version);
  ASSIGN_OR_RETURN(const auto uploads, series_.bucket().ListMultipartUploads(prefix, options_.interrupted));
  for (const s3::UploadInfo& upload : uploads) {
    const auto aborted = series_.bucket().AbortMultipartUpload(upload, options_.interrupted);
    if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted.error();
  }
  ASSIGN_OR_RETURN(const auto listing, series_.bucket().ListObjects({.prefix = prefix}, options_.interrupted));
  std::vector<std::string> keys;
  for (const s3::ObjectInfo& object : listing.objects) {
    if (object.key != claim) keys.push_back(object.key);
  }
  if (std::find(keys.begin(), keys.end(), series_.ManifestKey(manifest().version)) != keys.end()) {
    return Error{ErrorCode::kExists, fmt::format("{}: was completed meanwhile, from {}", url(), other.source)};
  }
  RETURN_IF_ERROR(series_.bucket().DeleteObjects(keys, options_.interrupted));
  Claim ours = OurClaim();
  ours.taken_over = true;
  trusts_objects_ = false;
  RETURN_IF_ERROR(series_.bucket().PutObject(claim, ours.Encode(), {}, options_.interrupted));
  return CheckClaim();
}

Result<Leftovers> Pusher::FindLeftovers() {
  Leftovers leftovers;
  const std::string prefix = series_.Prefix(manifest().version);
  if (trusts_objects_) {
    ASSIGN_OR_RETURN(const auto listing, series_.bucket().ListObjects({.prefix = prefix}, options_.interrupted));
    for (const s3::ObjectInfo& object : listing.objects) leftovers.objects[object.key] = object.size;
  }
  ASSIGN_OR_RETURN(const auto uploads, series_.bucket().ListMultipartUploads(prefix, options_.interrupted));
  for (const s3::UploadInfo& upload : uploads) leftovers.uploads[upload.key].push_back(upload.upload_id);
  return leftovers;
}

// What arrived damaged is removed, and sent again.
Result<void> Pusher::SendAndVerify() {
  for (int attempt = 1;; ++attempt) {
    ASSIGN_OR_RETURN(Leftovers leftovers, FindLeftovers());
    Uploader::Options options;
    if (options_.progress) options.progress = [&](uint64_t done) { options_.progress(done, report_.bytes); };
    options.interrupted = options_.interrupted;
    {
      Uploader uploader(series_, manifest().version, tree_, std::move(leftovers), options);
      auto slices = uploader.Run();
      report_.sent_bytes += uploader.sent_bytes();
      // A second push of the same source may have completed an upload of both.
      if (!slices && slices.error().code == ErrorCode::kNotFound && attempt < kAttempts) continue;
      if (!slices) return slices.error();
      manifest().slices = std::move(*slices);
    }
    if (!options_.verify) return {};
    const auto verified = VerifyVersion(series_, manifest(), options_);
    if (verified || verified.error().code != ErrorCode::kCorrupt || attempt == kAttempts) return verified;
    RETURN_IF_ERROR(series_.bucket().DeleteObject(verified.error().path, options_.interrupted));
  }
}

// True only of a source whose files are still those that were sent.
Result<void> Pusher::CheckSource() const {
  if (publication_) {
    const auto now = client::PublicationOf(path_);
    if (now && now->id == publication_->id) return {};
    return Error{ErrorCode::kStale, Printable(path_) + ": was unpublished during the push, so no version was made"};
  }
  ASSIGN_OR_RETURN(const LocalTree now, ScanTree(path_));
  for (size_t at = 0; at < std::max(now.states.size(), tree_.states.size()); ++at) {
    if (at < now.states.size() && at < tree_.states.size() && now.states[at] == tree_.states[at]) continue;
    const std::string& path = at < tree_.states.size() ? tree_.states[at].path : now.states[at].path;
    return Error{ErrorCode::kStale,
                 fmt::format("{}: changed during the push, so no version was made; publish the directory first",
                             Printable(path.empty() ? tree_.root : tree_.root + "/" + path))};
  }
  return {};
}

Result<void> Pusher::CheckClaim() const {
  ASSIGN_OR_RETURN(const Claim found, series_.LoadClaim(manifest().version, options_.interrupted));
  if (found.push == manifest().push) return {};
  return Error{ErrorCode::kBusy,
               fmt::format("{}: was taken over from {}, so this push has ended", url(), found.source)};
}

Result<void> Pusher::WriteManifest() {
  manifest().created_ns = Now();
  const std::string text = manifest().Encode();
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    const auto put = series_.bucket().PutObject(series_.ManifestKey(manifest().version), text, {.if_none_match = true},
                                                options_.interrupted);
    if (!put && put.error().code != ErrorCode::kExists) return put.error();
    // An attempt whose answer was lost may have written it, and so may a second push of the same source.
    ASSIGN_OR_RETURN(const bool complete, IsComplete());
    report_.existed = false;
    if (complete) return {};
  }
  return Error{ErrorCode::kCorrupt, fmt::format("{}: its manifest arrived damaged {} times", url(), kAttempts)};
}

Result<PushReport> Pusher::Run() {
  ASSIGN_OR_RETURN(tree_, ScanTree(path_));
  RETURN_IF_ERROR(ChooseVersion());
  ASSIGN_OR_RETURN(const bool complete, IsComplete());
  if (complete) {
    if (options_.verify) RETURN_IF_ERROR(VerifyVersion(series_, manifest(), options_));
    return report_;
  }
  RETURN_IF_ERROR(TakeClaim());
  RETURN_IF_ERROR(SendAndVerify());
  RETURN_IF_ERROR(CheckSource());
  RETURN_IF_ERROR(CheckClaim());
  RETURN_IF_ERROR(WriteManifest());
  return report_;
}

}  // namespace

Result<PushReport> Push(const Series& series, const std::string& path, const PushOptions& options) {
  auto pushed = Pusher(series, path, options).Run();
  if (pushed || pushed.error().code != ErrorCode::kCancelled) return pushed;
  return Error{ErrorCode::kCancelled, Printable(path) + ": interrupted; the same command continues the push"};
}

Result<void> VerifyVersion(const Series& series, const Manifest& manifest, const PushOptions& options) {
  std::vector<DownloadJob> jobs;
  for (const FileEntry& file : manifest.files) {
    if (file.size > 0) {
      jobs.push_back({.file = &file, .ranges = {{0, file.size}}});
      continue;
    }
    const auto object = series.bucket().HeadObject(series.Key(manifest.version, file.path), options.interrupted);
    if (!object) return object.error();
    if (object->size != 0) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}/{}: has {} bytes instead of none", series.url(manifest.version),
                               Printable(file.path), object->size),
                   object->key};
    }
  }
  const auto ignore = [](const DownloadedPart&) -> Result<void> { return {}; };
  DownloadOptions wanted{.interrupted = options.interrupted};
  if (options.progress) wanted.progress = options.progress;
  RETURN_IF_ERROR(Download(series, manifest, jobs, ignore, wanted));
  return {};
}

}  // namespace weightfs::remote
