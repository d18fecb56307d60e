// SPDX-License-Identifier: Apache-2.0
#include "remote/push.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
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
  Pusher(const Series& series, int source, const std::string& path, const PushOptions& options)
      : series_(series), opened_(source), path_(path), options_(options) {}

  Result<PushReport> Run();

 private:
  Result<void> ReadPublication();
  Result<void> ChooseVersion();
  Result<bool> IsVoid(const Manifest& existing) const;
  Result<bool> WasCompleted();
  Result<bool> IsWhole();
  Result<bool> IsComplete(Result<Manifest> existing);
  Result<void> TakeClaim();
  Result<void> MakeClaim();
  Result<void> RemoveVoidManifest(const std::string& other) const;
  Result<void> TakeOver(const std::string& other);
  Result<void> Abort(const std::vector<s3::UploadInfo>& uploads) const;
  Result<Leftovers> FindLeftovers();
  Result<void> SendAndVerify();
  Result<void> CheckKeys() const;
  Result<void> CheckMagnitude() const;
  Result<void> CheckConditions();
  Result<void> CheckSource() const;
  Result<void> CheckClaim() const;
  Result<void> CheckManifestSize() const;
  Result<void> WriteManifest();
  Result<void> ConfirmClaim() const;
  Claim OurClaim(bool taken_over) const;
  Result<void> CheckStorage(const Claim& claim) const;
  bool IsEarlier(const std::string& source, int64_t published_ns, int64_t created_ns) const;
  std::string source() const { return HostName() + ":" + tree_.root; }
  Manifest& manifest() { return tree_.manifest; }
  const Manifest& manifest() const { return tree_.manifest; }
  std::string url() const { return series_.url(manifest().version); }

  const Series& series_;
  const int opened_;
  const std::string path_;
  const PushOptions& options_;
  LocalTree tree_;
  std::optional<client::Publication> publication_;
  std::optional<Manifest> existing_;  // of an earlier push of the same source
  bool trusts_objects_ = true;
  std::set<std::string> abandoned_;  // ids of uploads that the service does not complete
  PushReport report_;
};

Claim Pusher::OurClaim(bool taken_over) const {
  const s3::Settings& settings = series_.bucket().client().settings();
  return {.push = manifest().push,
          .source = source(),
          .created_ns = Now(),
          .published_ns = manifest().published_ns,
          .storage_class = options_.storage_class,
          .encryption = settings.encryption,
          .encryption_key = settings.encryption_key,
          .taken_over = taken_over};
}

// True of what PushOptions::replace_earlier replaces. Both times are of this host's clock.
bool Pusher::IsEarlier(const std::string& source, int64_t published_ns, int64_t created_ns) const {
  return options_.replace_earlier && publication_ && source == Printable(this->source()) &&
         (published_ns != 0 ? published_ns : created_ns) < publication_->time_ns;
}

// A publication that was read before the files tells that they cannot have changed since.
Result<void> Pusher::ReadPublication() {
  auto published = client::PublicationOf(opened_, path_);
  if (published) {
    publication_ = *published;
    return {};
  }
  switch (published.error().code) {
    case ErrorCode::kNoAttribute:
    case ErrorCode::kNotDirectory:
    case ErrorCode::kNotSupported: return {};
    default: return published.error();
  }
}

Result<void> Pusher::ChooseVersion() {
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
  manifest().published_ns = publication_ ? publication_->time_ns : 0;
  manifest().source = source();
  report_.version = manifest().version;
  report_.files = manifest().files.size();
  report_.bytes = manifest().bytes();
  return {};
}

// True if the manifest does not count: the push which wrote it has lost its claim before, or a prune removes the
// version.
Result<bool> Pusher::IsVoid(const Manifest& existing) const {
  const auto claim = series_.LoadClaim(existing.version, options_.interrupted);
  if (claim) return claim->removing || claim->push != existing.push;
  const ErrorCode code = claim.error().code;
  if (code != ErrorCode::kNotFound && code != ErrorCode::kCorrupt) return claim.error();
  return false;
}

// True if an earlier push of the same source has made the version.
Result<bool> Pusher::WasCompleted() {
  auto existing = series_.Load(manifest().version, options_.interrupted);
  if (existing) {
    ASSIGN_OR_RETURN(const bool is_void, IsVoid(*existing));
    if (is_void) return false;  // the claim decides
  }
  ASSIGN_OR_RETURN(const bool complete, IsComplete(std::move(existing)));
  return complete && options_.verify ? IsWhole() : Result<bool>(complete);
}

// Compares the objects of a complete version with its checksums. Damage makes it an unfinished push of ours again,
// whose objects are not trusted; a later push must know that, too.
Result<bool> Pusher::IsWhole() {
  const auto verified = VerifyVersion(series_, *existing_, options_);
  if (verified) return true;
  const ErrorCode code = verified.error().code;
  if (code != ErrorCode::kCorrupt && code != ErrorCode::kNotFound) return verified.error();
  const auto claim = series_.LoadClaim(manifest().version, options_.interrupted);
  if (claim && claim->push != manifest().push) RETURN_IF_ERROR(CheckClaim());
  RETURN_IF_ERROR(series_.bucket().PutObject(series_.ClaimKey(manifest().version),
                                             OurClaim(/*taken_over=*/true).Encode(), {}, options_.interrupted));
  RETURN_IF_ERROR(series_.bucket().DeleteObject(series_.ManifestKey(manifest().version), options_.interrupted));
  report_.existed = false;
  report_.damage = verified.error().what;
  return false;
}

// True if the manifest is that of a push of the same source. A manifest of our own that arrived damaged, so that no
// reader accepts it, is removed, and so is one that we replace.
Result<bool> Pusher::IsComplete(Result<Manifest> existing) {
  if (!existing && existing.error().code == ErrorCode::kNotFound) return false;
  if (!existing && existing.error().code == ErrorCode::kCorrupt) {
    const auto claim = series_.LoadClaim(manifest().version, options_.interrupted);
    const bool ours = claim && (claim->push == manifest().push ||
                                IsEarlier(claim->source, claim->published_ns, claim->created_ns));
    if (!ours && !options_.take_over) return existing.error();
    if (ours) {
      RETURN_IF_ERROR(series_.bucket().DeleteObject(series_.ManifestKey(manifest().version), options_.interrupted));
    }
    return false;
  }
  if (!existing) return existing.error();
  if (existing->push != manifest().push) {
    if (IsEarlier(existing->source, existing->published_ns, existing->created_ns)) {
      RETURN_IF_ERROR(series_.bucket().DeleteObject(series_.ManifestKey(manifest().version), options_.interrupted));
      return false;
    }
    return Error{ErrorCode::kExists,
                 fmt::format("{}: exists already, from {}, {}; push it as another version with --version", url(),
                             existing->source, FormatUtc(existing->created_ns))};
  }
  report_.existed = true;
  existing_ = std::move(*existing);
  return true;
}

// A claim that exists may be our own: of an interrupted push, or of an attempt whose answer was lost.
Result<void> Pusher::TakeClaim() {
  auto found = series_.LoadClaim(manifest().version, options_.interrupted);
  if (!found && found.error().code == ErrorCode::kNotFound) {
    RETURN_IF_ERROR(MakeClaim());
    found = series_.LoadClaim(manifest().version, options_.interrupted);
  }
  const bool ours = found && found->push == manifest().push;
  const Result<void> stored_alike = ours ? CheckStorage(*found) : Result<void>();
  if (ours && stored_alike) {
    trusts_objects_ = !found->taken_over;
    return {};
  }
  if (!found && found.error().code != ErrorCode::kCorrupt) return found.error();
  const std::string other =
      found ? fmt::format("from {}, {}", found->source, FormatUtc(found->created_ns)) : "with a damaged claim";
  const bool earlier = found && IsEarlier(found->source, found->published_ns, found->created_ns);
  if (options_.take_over || earlier) return TakeOver(other);
  if (!stored_alike) return stored_alike;
  if (found && found->removing) {
    return Error{ErrorCode::kBusy,
                 fmt::format("{}: a prune removes this version since {}; let it finish, or run weightfs prune again if "
                             "it was killed",
                             url(), FormatUtc(found->created_ns))};
  }
  return Error{ErrorCode::kBusy,
               fmt::format("{}: another push began this version, {}; let it finish, or replace it with --take-over if "
                           "it has ended",
                           url(), other)};
}

// The objects of one version are all sent with the same options.
Result<void> Pusher::CheckStorage(const Claim& claim) const {
  const auto text = [](const Claim& of) {
    std::string options;
    if (!of.storage_class.empty()) options += " --storage-class " + Printable(of.storage_class);
    if (!of.encryption.empty()) options += " --sse " + Printable(of.encryption);
    if (!of.encryption_key.empty()) options += " --sse-kms-key-id " + Printable(of.encryption_key);
    return options.empty() ? std::string(" neither --storage-class nor --sse") : options;
  };
  const std::string begun = text(claim), now = text(OurClaim(/*taken_over=*/false));
  if (begun == now) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: this push was interrupted, and was begun with{}: repeat that, or send everything again "
                           "with --take-over",
                           url(), begun)};
}

// The claim alone keeps two pushes apart, so the service must refuse another one. Once it may be gone, by a prune.
Result<void> Pusher::CheckConditions() {
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const auto again = series_.bucket().PutObject(series_.ClaimKey(manifest().version),
                                                  OurClaim(/*taken_over=*/!trusts_objects_).Encode(),
                                                  {.if_none_match = true}, options_.interrupted);
    if (!again) return again.error().code == ErrorCode::kExists ? Result<void>() : again.error();
  }
  return Error{ErrorCode::kNotSupported,
               fmt::format("{}: the service ignores If-None-Match, so two pushes of one version would mix their files; "
                           "use a newer release of it, or another one",
                           url())};
}

// What is there without a claim is not from a push of ours.
Result<void> Pusher::MakeClaim() {
  const std::string prefix = series_.Prefix(manifest().version);
  ASSIGN_OR_RETURN(const auto listing,
                   series_.bucket().ListObjects({.prefix = prefix, .limit = kMaximumObjects}, options_.interrupted));
  ASSIGN_OR_RETURN(const auto uploads, series_.bucket().ListMultipartUploads(prefix, options_.interrupted));
  const Claim ours = OurClaim(/*taken_over=*/!listing.objects.empty() || !uploads.empty());
  const auto put = series_.bucket().PutObject(series_.ClaimKey(manifest().version), ours.Encode(),
                                              {.if_none_match = true}, options_.interrupted);
  return put || put.error().code == ErrorCode::kExists ? Result<void>() : put.error();
}

Result<void> Pusher::Abort(const std::vector<s3::UploadInfo>& uploads) const {
  for (const s3::UploadInfo& upload : uploads) {
    const auto aborted = series_.bucket().AbortMultipartUpload(upload, options_.interrupted);
    if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted.error();
  }
  return {};
}

// A damaged manifest is none either.
Result<void> Pusher::RemoveVoidManifest(const std::string& other) const {
  const auto existing = series_.Load(manifest().version, options_.interrupted);
  if (!existing && existing.error().code == ErrorCode::kNotFound) return {};
  if (!existing && existing.error().code != ErrorCode::kCorrupt) return existing.error();
  if (existing) {
    ASSIGN_OR_RETURN(const bool is_void, IsVoid(*existing));
    if (!is_void) return Error{ErrorCode::kExists, fmt::format("{}: was completed meanwhile, {}", url(), other)};
  }
  RETURN_IF_ERROR(series_.bucket().DeleteObject(series_.ManifestKey(manifest().version), options_.interrupted));
  return {};
}

// Removes what the other push has sent before the claim is replaced, so that a later push of ours does not find it. The
// other one may write its manifest meanwhile, over objects that are gone.
Result<void> Pusher::TakeOver(const std::string& other) {
  const std::string prefix = series_.Prefix(manifest().version), claim = series_.ClaimKey(manifest().version);
  const std::string manifest_key = series_.ManifestKey(manifest().version);
  RETURN_IF_ERROR(RemoveVoidManifest(other));
  ASSIGN_OR_RETURN(const auto uploads, series_.bucket().ListMultipartUploads(prefix, options_.interrupted));
  RETURN_IF_ERROR(Abort(uploads));
  ASSIGN_OR_RETURN(const auto listing,
                   series_.bucket().ListObjects({.prefix = prefix, .limit = kMaximumObjects}, options_.interrupted));
  std::vector<std::string> keys;
  for (const s3::ObjectInfo& object : listing.objects) {
    if (object.key == manifest_key) {
      return Error{ErrorCode::kExists, fmt::format("{}: was completed meanwhile, {}", url(), other)};
    }
    if (object.key != claim) keys.push_back(object.key);
  }
  RETURN_IF_ERROR(series_.bucket().DeleteObjects(keys, options_.interrupted));
  RETURN_IF_ERROR(series_.bucket().PutObject(claim, OurClaim(/*taken_over=*/true).Encode(), {}, options_.interrupted));
  trusts_objects_ = false;
  RETURN_IF_ERROR(CheckClaim());
  RETURN_IF_ERROR(series_.bucket().DeleteObject(manifest_key, options_.interrupted));
  return {};
}

Result<Leftovers> Pusher::FindLeftovers() {
  Leftovers leftovers;
  const std::string prefix = series_.Prefix(manifest().version);
  ASSIGN_OR_RETURN(const auto uploads, series_.bucket().ListMultipartUploads(prefix, options_.interrupted));
  if (!trusts_objects_) {
    RETURN_IF_ERROR(Abort(uploads));
    return leftovers;
  }
  for (const s3::UploadInfo& upload : uploads) {
    if (!abandoned_.contains(upload.upload_id)) leftovers.uploads[upload.key].push_back(upload.upload_id);
  }
  ASSIGN_OR_RETURN(const auto listing,
                   series_.bucket().ListObjects({.prefix = prefix, .limit = kMaximumObjects}, options_.interrupted));
  for (const s3::ObjectInfo& object : listing.objects) leftovers.objects[object.key] = object.size;
  return leftovers;
}

// What arrived damaged is removed, and sent again.
Result<void> Pusher::SendAndVerify() {
  for (int attempt = 1;; ++attempt) {
    ASSIGN_OR_RETURN(Leftovers leftovers, FindLeftovers());
    Uploader::Options options;
    if (options_.progress) options.progress = [&](uint64_t done) { options_.progress(done, report_.bytes); };
    options.interrupted = options_.interrupted;
    options.storage_class = options_.storage_class;
    {
      Uploader uploader(series_, manifest().version, tree_, std::move(leftovers), options);
      auto slices = uploader.Run();
      report_.sent_bytes += uploader.sent_bytes();
      abandoned_.merge(uploader.abandoned());
      if (!slices) {
        // A second push of the same source may have completed an upload of both, or the service completes none.
        const bool passes = slices.error().code == ErrorCode::kNotFound || slices.error().code == ErrorCode::kAgain;
        if (passes && attempt < kAttempts) continue;
        return Error{slices.error().code == ErrorCode::kAgain ? ErrorCode::kIo : slices.error().code,
                     slices.error().what, slices.error().path};
      }
      manifest().slices = std::move(*slices);
    }
    if (!options_.verify) return {};
    const auto verified = VerifyVersion(series_, manifest(), options_);
    if (verified || attempt == kAttempts) return verified;
    const ErrorCode code = verified.error().code;
    const bool names_object = !verified.error().path.empty();
    if (!names_object || (code != ErrorCode::kCorrupt && code != ErrorCode::kNotFound)) return verified;
    RETURN_IF_ERROR(series_.bucket().DeleteObject(verified.error().path, options_.interrupted));
  }
}

// True only of a source whose files are still those that were sent.
Result<void> Pusher::CheckSource() const {
  if (publication_) {
    const auto now = client::PublicationOf(opened_, path_);
    if (now && now->id == publication_->id) return {};
    return Error{ErrorCode::kStale, Printable(path_) + ": was unpublished during the push, so no version was made"};
  }
  ASSIGN_OR_RETURN(const LocalTree now, ScanTree(opened_));
  for (size_t at = 0; at < std::max(now.states.size(), tree_.states.size()); ++at) {
    if (at < now.states.size() && at < tree_.states.size() && now.states[at] == tree_.states[at]) continue;
    const std::string& path = at < tree_.states.size() ? tree_.states[at].path : now.states[at].path;
    return ChangedDuringPush(path.empty() ? tree_.root : tree_.root + "/" + path);
  }
  return {};
}

Result<void> Pusher::CheckClaim() const {
  const auto found = series_.LoadClaim(manifest().version, options_.interrupted);
  if (found && found->push == manifest().push) return {};
  if (!found && found.error().code != ErrorCode::kNotFound) return found.error();
  const bool replaced = found && !found->removing;
  return Error{ErrorCode::kBusy,
               fmt::format("{}: was {} during this push, so this push has ended", url(),
                           replaced ? "taken over from " + found->source : std::string("removed by weightfs prune"))};
}

// S3's limit, before anything is sent.
Result<void> Pusher::CheckKeys() const {
  for (const FileEntry& file : manifest().files) {
    const size_t size = series_.Key(manifest().version, file.path).size();
    if (size <= s3::kMaxKey) continue;
    return Error{ErrorCode::kInvalid,
                 fmt::format("{}/{}: its key in the bucket would have {} bytes, and S3 allows {}: use shorter names, "
                             "or a shorter URL",
                             tree_.root, Printable(file.path), size, s3::kMaxKey)};
  }
  return {};
}

// A time among the numbers of steps would be the greatest version, and later steps would be older than it. A version
// that is there already is continued.
Result<void> Pusher::CheckMagnitude() const {
  const auto digits = [](uint64_t number) { return std::to_string(number).size(); };
  const size_t of_times = digits(UtcVersion(0));
  if (options_.version || digits(manifest().version) != of_times) return {};
  ASSIGN_OR_RETURN(const auto numbers, series_.Numbers(options_.interrupted));
  const auto other = std::ranges::find_if(numbers, [&](uint64_t number) { return digits(number) != of_times; });
  if (other == numbers.end() || std::ranges::find(numbers, manifest().version) != numbers.end()) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: the version of {} is a time, {}, but {} has others, such as {}: give it one of them "
                           "{}, or use another URL",
                           Printable(path_), publication_ ? "the publication" : "this push", manifest().version,
                           series_.url(), *other,
                           publication_ ? "with 'weightfs unpublish' and 'weightfs publish --version N'"
                                        : "with --version N")};
}

// The slices' hashes are not known yet.
Result<void> Pusher::CheckManifestSize() const {
  constexpr uint64_t kSliceLine = 80;
  const uint64_t size = manifest().Encode().size() + (manifest().blocks() / kSliceBlocks + 1) * kSliceLine;
  if (size <= kMaximumManifest) return {};
  return Error{ErrorCode::kTooLarge,
               fmt::format("{}: the names and attributes of {} files need a manifest of {} MiB, and the limit is {}: "
                           "push its subdirectories instead",
                           Printable(path_), manifest().files.size(), size >> 20, kMaximumManifest >> 20)};
}

// The claim decides whose version it is. A push that lost it may have written its manifest at the last moment, over our
// objects; and we may lose it before ours is written, so it is examined again afterwards.
Result<void> Pusher::WriteManifest() {
  manifest().created_ns = Now();
  const std::string key = series_.ManifestKey(manifest().version), text = manifest().Encode();
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    const auto put = series_.bucket().PutObject(key, text, {.if_none_match = true}, options_.interrupted);
    if (!put && put.error().code != ErrorCode::kExists) return put.error();
    // An attempt whose answer was lost may have written it, and so may a second push of the same source.
    const auto complete = IsComplete(series_.Load(manifest().version, options_.interrupted));
    report_.existed = false;
    if (!complete && complete.error().code != ErrorCode::kExists) return complete.error();
    if (!complete) {
      RETURN_IF_ERROR(CheckClaim());
      RETURN_IF_ERROR(series_.bucket().DeleteObject(key, options_.interrupted));
    } else if (*complete) {
      return ConfirmClaim();
    }
  }
  return Error{ErrorCode::kCorrupt, fmt::format("{}: its manifest arrived damaged {} times", url(), kAttempts)};
}

// A push that has taken over the version removes our manifest. A prune may have looked for it before it was there.
Result<void> Pusher::ConfirmClaim() const {
  auto ours = CheckClaim();
  if (ours || ours.error().code != ErrorCode::kBusy) return ours;
  const auto claim = series_.LoadClaim(manifest().version, options_.interrupted);
  if (claim ? claim->removing : claim.error().code == ErrorCode::kNotFound) {
    RETURN_IF_ERROR(series_.bucket().DeleteObject(series_.ManifestKey(manifest().version), options_.interrupted));
  }
  return ours;
}

Result<PushReport> Pusher::Run() {
  RETURN_IF_ERROR(ReadPublication());
  ASSIGN_OR_RETURN(tree_, ScanTree(opened_));
  RETURN_IF_ERROR(ChooseVersion());
  RETURN_IF_ERROR(CheckManifestSize());
  RETURN_IF_ERROR(CheckKeys());
  ASSIGN_OR_RETURN(const bool complete, WasCompleted());
  if (complete) return report_;
  RETURN_IF_ERROR(CheckMagnitude());
  RETURN_IF_ERROR(TakeClaim());
  RETURN_IF_ERROR(CheckConditions());
  RETURN_IF_ERROR(SendAndVerify());
  RETURN_IF_ERROR(CheckSource());
  RETURN_IF_ERROR(CheckClaim());
  RETURN_IF_ERROR(WriteManifest());
  return report_;
}

}  // namespace

Result<PushReport> Push(const Series& series, int source, const std::string& path, const PushOptions& options) {
  auto pushed = Pusher(series, source, path, options).Run();
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
    const std::string key = series.Key(manifest.version, file.path);
    const auto object = series.bucket().HeadObject(key, options.interrupted);
    if (!object) return Error{object.error().code, object.error().what, key};
    if (object->size != 0) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}/{}: has {} bytes instead of none", series.url(manifest.version),
                               Printable(file.path), object->size),
                   key};
    }
  }
  const auto ignore = [](const DownloadedPart&) -> Result<void> { return {}; };
  DownloadOptions wanted{.interrupted = options.interrupted};
  if (options.progress) wanted.progress = options.progress;
  RETURN_IF_ERROR(Download(series, manifest, jobs, ignore, wanted));
  return {};
}

}  // namespace weightfs::remote
