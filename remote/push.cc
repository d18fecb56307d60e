// SPDX-License-Identifier: Apache-2.0
#include "remote/push.h"

#include <unistd.h>

#include <algorithm>

#include "client/parent_identity.h"
#include "client/publication.h"
#include "common/hex.h"
#include "common/make_error.h"
#include "common/printable.h"
#include "common/utc_time.h"
#include "remote/download.h"
#include "remote/push_claim.h"
#include "remote/upload.h"
#include "s3/location.h"

namespace weightfs::remote {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPushAttempts = 3;

std::string HostName() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? std::string(name.data()) : std::string("unknown");
}

// One push of one version.
class Pusher {
 public:
  Pusher(const Series& series, int source, const std::string& path, const PushOptions& options)
      : series_(series), opened_(source), path_(path), options_(options) {}

  Result<PushReport> Run() {
    RETURN_IF_ERROR(ReadPublication());
    ASSIGN_OR_RETURN(tree_, ScanTree(opened_));
    RETURN_IF_ERROR(ChooseVersion());
    RETURN_IF_ERROR(CheckManifestSize());
    RETURN_IF_ERROR(CheckKeys());
    claim_.emplace(series_, manifest(), options_, Origin());
    ASSIGN_OR_RETURN(const bool complete, WasCompleted());
    if (complete) return report_;
    RETURN_IF_ERROR(CheckMagnitude());
    RETURN_IF_ERROR(claim_->Take());
    RETURN_IF_ERROR(SendAndVerify());
    RETURN_IF_ERROR(CheckSource());
    RETURN_IF_ERROR(WriteManifest());
    // If this fails, `weightfs prune` removes them with the version.
    static_cast<void>(series_.bucket().AbortMultipartUploads(leftovers_).has_value());
    return report_;
  }

 private:
  // A publication that was read before the files tells that they cannot have changed since.
  Result<void> ReadPublication() {
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

  Result<void> ChooseVersion() {
    if (options_.version && (*options_.version == 0 || *options_.version > INT64_MAX)) {
      return Error{ErrorCode::kInvalid, "a version is a number from 1 to 2^63 - 1"};
    }
    if (publication_ && options_.version.value_or(publication_->version) != publication_->version) {
      return MakeError(ErrorCode::kInvalid, "{}: published as version {}, so it cannot be pushed as version {}",
                       Printable(path_), publication_->version, *options_.version);
    }
    manifest().version = publication_       ? publication_->version
                         : options_.version ? *options_.version
                                            : UtcVersion(tree_.newest_ns());
    manifest().push = publication_ ? ToHex(publication_->id) : tree_.Fingerprint();
    manifest().published_ns = publication_ ? publication_->time_ns : 0;
    manifest().source = HostName() + ":" + tree_.root;
    report_.version = manifest().version;
    report_.files = manifest().files.size();
    report_.bytes = manifest().bytes();
    return {};
  }

  // Where the publication is. The directory itself is another one after a run that went back has saved it again.
  std::string Origin() const {
    const std::string parent = publication_ ? client::ParentIdentity(opened_) : std::string();
    return parent.empty() ? parent : parent + ":" + tree_.root.substr(tree_.root.rfind('/') + 1);
  }

  // True if an earlier push of the same source has made the version. If its manifest does not count, the claim decides.
  Result<bool> WasCompleted() {
    const auto existing = series_.LoadManifest(manifest().version);
    if (!existing && existing.error().code == ErrorCode::kNotFound) return false;
    if (!existing && existing.error().code != ErrorCode::kCorrupt) return existing.error();
    ASSIGN_OR_RETURN(const auto claim, claim_->held().Find());
    const bool is_sound = claim && !claim->damaged();
    if (is_sound && (claim_->IsEarlier(claim->claim) || (existing && !claim->claim.Covers(*existing)))) return false;
    const bool replaces = options_.take_over || (is_sound && claim->claim.push == manifest().push);
    if (!existing) return replaces ? Result<bool>(false) : existing.error();
    const bool ours = existing->push == manifest().push;
    if (!claim && (ours || replaces)) return false;
    if (!claim) {
      return MakeError(ErrorCode::kExists,
                       "{}: has a manifest without a claim, from {}, {}, so it is no version; replace it with "
                       "--take-over, or use another number with --version",
                       url(), existing->source, FormatUtc(existing->created_ns));
    }
    if (!ours) {
      return MakeError(ErrorCode::kExists, "{}: exists already, from {}, {}; push it as another version with --version",
                       url(), existing->source, FormatUtc(existing->created_ns));
    }
    const auto verified = options_.verify ? VerifyVersion(series_, *existing, options_.progress) : Result<void>();
    if (!verified) RETURN_IF_ERROR(Repair(verified.error(), *claim));
    report_.existed = verified.has_value();
    return report_.existed;
  }

  // Makes a complete version of ours an unfinished push again, whose objects are not trusted.
  Result<void> Repair(const Error& damage, const StoredClaim& claim) {
    if (damage.code != ErrorCode::kCorrupt && damage.code != ErrorCode::kNotFound) return damage;
    if (claim.damaged() && !options_.take_over) {
      return Error{ErrorCode::kCorrupt, damage.what + "; its claim is damaged, too: repeat this with --take-over"};
    }
    report_.damage = damage.what;
    return claim_->TakeOver(claim);
  }

  Result<std::map<std::string, SentObject>> ListObjects() const {
    const std::string prefix = series_.Prefix(manifest().version);
    ASSIGN_OR_RETURN(const auto listing, series_.bucket().ListObjects({.prefix = prefix, .limit = kMaximumObjects}));
    std::map<std::string, SentObject> objects;
    for (const s3::ObjectInfo& object : listing.entries) objects[object.key] = {object.size, object.etag};
    return objects;
  }

  // Another push of the same source may be sending parts of the uploads, so none is aborted before the version exists.
  Result<Leftovers> FindLeftovers(bool first) {
    Leftovers leftovers;
    if (first && claim_->is_new()) return leftovers;
    const std::string prefix = series_.Prefix(manifest().version);
    ASSIGN_OR_RETURN(leftovers_, series_.bucket().ListMultipartUploads(prefix));
    if (!claim_->trusts_objects()) return leftovers;
    for (const s3::UploadInfo& upload : leftovers_) {
      if (!abandoned_.contains(upload.upload_id)) leftovers.uploads[upload.key].push_back(upload.upload_id);
    }
    ASSIGN_OR_RETURN(leftovers.objects, ListObjects());
    for (const std::string& key : foreign_) leftovers.objects.erase(key);
    return leftovers;
  }

  Result<void> Send(bool first) {
    ASSIGN_OR_RETURN(const Leftovers leftovers, FindLeftovers(first));
    // It may have been taken over meanwhile, and no guard is compared before the first attempt of a request.
    if (!first || !claim_->is_new()) RETURN_IF_ERROR(claim_->held().Check());
    UploadOptions options;
    if (options_.progress) options.progress = [&](uint64_t done) { options_.progress(done, report_.bytes); };
    // A push that was taken over must not write into the version of the other one.
    options.check = [this, next = Clock::now() + options_.claim_check]() mutable -> Result<void> {
      if (Clock::now() < next) return {};
      RETURN_IF_ERROR(claim_->held().Check());
      next = Clock::now() + options_.claim_check;
      return {};
    };
    options.guard = claim_->held().guard();
    options.storage_class = options_.storage_class;
    Uploaded uploaded;
    auto done = Upload(series_, manifest().version, tree_, leftovers, options, &uploaded);
    report_.sent_bytes += uploaded.sent_bytes;
    abandoned_.merge(uploaded.abandoned);
    etags_ = std::move(uploaded.etags);
    manifest().slices = std::move(uploaded.slices);
    if (done) return done;
    const ErrorCode code = done.error().code;
    const bool may_be_lost = code == ErrorCode::kBusy || code == ErrorCode::kNotFound || code == ErrorCode::kAgain;
    if (may_be_lost) RETURN_IF_ERROR(claim_->held().Check());
    if (code != ErrorCode::kBusy) return done;
    return Error{ErrorCode::kAgain, done.error().what};  // the claim changed on its way
  }

  // Another attempt sends again what arrived damaged or was removed meanwhile, and what could not be sent, because a
  // second push of the same source has completed an upload of both, or the service does not complete one.
  Result<void> SendAndVerify() {
    for (int attempt = 1;; ++attempt) {
      auto done = Send(attempt == 1);
      bool passes = !done && (done.error().code == ErrorCode::kNotFound || done.error().code == ErrorCode::kAgain);
      std::string damaged;
      if (done && options_.verify) {
        done = VerifyVersion(series_, manifest(), options_.progress);
        if (!done) damaged = done.error().path;
        passes = !damaged.empty() &&
                 (done.error().code == ErrorCode::kCorrupt || done.error().code == ErrorCode::kNotFound);
      }
      if (done) {
        done = CheckObjects();
        passes = !done && done.error().code == ErrorCode::kNotFound;
      }
      if (done) return {};
      if (!passes || attempt == kPushAttempts) {
        const ErrorCode code = done.error().code == ErrorCode::kAgain ? ErrorCode::kIo : done.error().code;
        return Error{code, done.error().what, done.error().path};
      }
      const s3::ObjectVersion object{.key = damaged};
      if (!damaged.empty()) RETURN_IF_ERROR(claim_->held().DeleteObjects({&object, 1}));
    }
  }

  // A prune or a push that the claim has ended may have removed or written objects late. kNotFound: some are missing,
  // or are those of others. These are sent again and not deleted: a second push of the same source, whose objects may
  // have other ETags, may complete the version at this moment.
  Result<void> CheckObjects() {
    ASSIGN_OR_RETURN(const auto objects, ListObjects());
    foreign_.clear();
    std::string first;
    const auto check = [&](const std::string& key, uint64_t size) {
      const auto found = objects.find(key);
      const auto etag = etags_.find(key);
      if (found != objects.end() && found->second.Is(size, etag == etags_.end() ? std::string() : etag->second)) return;
      if (first.empty()) first = key;
      if (found != objects.end()) foreign_.insert(key);
    };
    for (const FileEntry& file : manifest().files) check(series_.Key(manifest().version, file.path), file.size);
    uint64_t left = manifest().blocks() * kSumBytes;
    for (size_t slice = 0; slice < manifest().slices.size(); ++slice) {
      const uint64_t size = std::min(left, kSliceBytes);
      check(series_.SliceKey(manifest().version, slice), size);
      left -= size;
    }
    if (first.empty()) return {};
    RETURN_IF_ERROR(claim_->held().Check());
    return MakeError(ErrorCode::kNotFound,
                     "{}: another program has removed or replaced it in the bucket during this push",
                     s3::ToString({series_.bucket().name(), first}));
  }

  // S3's limit, before anything is sent.
  Result<void> CheckKeys() const {
    for (const FileEntry& file : manifest().files) {
      const size_t size = series_.Key(manifest().version, file.path).size();
      if (size <= s3::kMaxKey) continue;
      return MakeError(
          ErrorCode::kInvalid,
          "{}/{}: its key in the bucket would have {} bytes, and S3 allows {}: use shorter names, or a shorter URL",
          tree_.root, Printable(file.path), size, s3::kMaxKey);
    }
    return {};
  }

  // A time among the numbers of steps would be the greatest version, and later steps would be older than it. A version
  // that is there already is continued.
  Result<void> CheckMagnitude() const {
    const auto digits = [](uint64_t number) { return std::to_string(number).size(); };
    const size_t of_times = digits(UtcVersion(0));
    if (options_.version || digits(manifest().version) != of_times) return {};
    ASSIGN_OR_RETURN(const auto numbers, series_.Numbers());
    const auto other = std::ranges::find_if(numbers, [&](uint64_t number) { return digits(number) != of_times; });
    if (other == numbers.end() || std::ranges::find(numbers, manifest().version) != numbers.end()) return {};
    return MakeError(
        ErrorCode::kInvalid,
        "{}: the version of {} is a time, {}, but {} has others, such as {}: give it one of them {}, or use another "
        "URL",
        Printable(path_), publication_ ? "the publication" : "this push", manifest().version, series_.url(), *other,
        publication_ ? "with 'weightfs publish --undo' and 'weightfs publish --version N'" : "with --version N");
  }

  // True only of a source whose files are still those that were sent.
  Result<void> CheckSource() const {
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

  // The slices' hashes are not known yet.
  Result<void> CheckManifestSize() const {
    constexpr uint64_t kSliceLine = 80;
    const uint64_t size = manifest().Encode().size() + (manifest().blocks() / kSliceBlocks + 1) * kSliceLine;
    if (size <= kMaximumManifest) return {};
    return MakeError(ErrorCode::kTooLarge,
                     "{}: the names and attributes of {} files need a manifest of {} MiB, and the limit is {}: push "
                     "its subdirectories instead",
                     Printable(path_), manifest().files.size(), size >> 20, kMaximumManifest >> 20);
  }

  // The claim decides whose version it is. A push that lost it may have written its manifest at the last moment; and we
  // may lose it before ours is written, so it is examined again afterwards.
  Result<void> WriteManifest() {
    manifest().created_ns = UtcNowNs();
    const std::string key = series_.ManifestKey(manifest().version), text = manifest().Encode();
    for (int attempt = 1; attempt <= kPushAttempts; ++attempt) {
      const auto put = claim_->held().Change([&](const s3::GuardPtr& guard) -> Result<void> {
        const s3::PutOptions options{.if_none_match = true, .guard = guard};
        RETURN_IF_ERROR(series_.bucket().PutObject(key, text, options));
        return {};
      });
      if (!put && put.error().code == ErrorCode::kBusy) RETURN_IF_ERROR(ConfirmClaim());
      const bool is_open = !put && put.error().code == ErrorCode::kIo;
      if (!put && !is_open && put.error().code != ErrorCode::kExists) return put.error();
      // An attempt whose answer was lost may have written it, and so may a second push of the same source.
      const auto found = series_.LoadManifest(manifest().version);
      if (found && found->push == manifest().push) return ConfirmClaim();
      const bool is_gone = !found && found.error().code == ErrorCode::kNotFound;
      if (!found && !is_gone && found.error().code != ErrorCode::kCorrupt) return found.error();
      if (is_gone && is_open) return put.error();
      if (!is_gone) RETURN_IF_ERROR(claim_->held().DeleteManifest());
    }
    return MakeError(ErrorCode::kCorrupt, "{}: its manifest arrived damaged {} times", url(), kPushAttempts);
  }

  // A push that has replaced our claim deletes our manifest, or finds that we were faster. A prune may not look again.
  // The manifest that is there may also be that of a second push of the same source, which has a claim by then.
  Result<void> ConfirmClaim() const {
    auto ours = claim_->held().Check();
    if (ours || ours.error().code != ErrorCode::kBusy) return ours;
    HeldClaim prune(series_, manifest().version);
    ASSIGN_OR_RETURN(auto claim, prune.Find());
    const bool is_removed = !claim || (claim->claim.removing && claim->claim.replaces.empty());
    if (!is_removed) return ours;
    prune.Hold(std::move(claim));
    const auto found = series_.LoadManifest(manifest().version);
    if (!found || found->push != manifest().push) return ours;
    const auto deleted = prune.DeleteManifest();
    return deleted || deleted.error().code == ErrorCode::kBusy ? ours : deleted;
  }

  Manifest& manifest() { return tree_.manifest; }
  const Manifest& manifest() const { return tree_.manifest; }
  std::string url() const { return series_.url(manifest().version); }

  const Series& series_;
  const int opened_;
  const std::string path_;
  const PushOptions& options_;
  LocalTree tree_;
  std::optional<client::Publication> publication_;
  std::optional<PushClaim> claim_;         // after ChooseVersion
  std::vector<s3::UploadInfo> leftovers_;  // unfinished uploads that were found
  std::set<std::string> abandoned_;        // ids of uploads that the service does not complete
  std::map<std::string, std::string> etags_;  // of the objects that are there, by their keys
  std::set<std::string> foreign_;             // objects that another program has replaced
  PushReport report_;
};

}  // namespace

Result<PushReport> Push(const Series& series, int source, const std::string& path, const PushOptions& options) {
  auto pushed = Pusher(series, source, path, options).Run();
  if (pushed || pushed.error().code != ErrorCode::kCancelled) return pushed;
  return Error{ErrorCode::kCancelled, Printable(path) + ": interrupted; the same command continues the push"};
}

Result<void> VerifyVersion(const Series& series, const Manifest& manifest, const client::Progress& progress) {
  std::vector<DownloadJob> jobs;
  for (const FileEntry& file : manifest.files) {
    if (file.size > 0) {
      jobs.push_back({.file = &file, .ranges = {{0, file.size}}});
      continue;
    }
    const std::string key = series.Key(manifest.version, file.path);
    const auto object = series.bucket().HeadObject(key);
    if (!object) return Error{object.error().code, object.error().what, key};
    if (object->size != 0) {
      return Error{ErrorCode::kCorrupt,
                   fmt::format("{}/{}: has {} bytes instead of none", series.url(manifest.version),
                               Printable(file.path), object->size),
                   key};
    }
  }
  const auto ignore = [](const DownloadedPart&) -> Result<void> { return {}; };
  RETURN_IF_ERROR(Download(series, manifest, jobs, ignore, progress));
  return {};
}

}  // namespace weightfs::remote
