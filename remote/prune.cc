// SPDX-License-Identifier: Apache-2.0
#include "remote/prune.h"

#include <algorithm>
#include <iterator>

#include "common/make_error.h"
#include "common/utc_time.h"
#include "remote/held_claim.h"

namespace weightfs::remote {
namespace {

using std::chrono::system_clock;

constexpr int kRounds = 3;  // of a removal, while an ended push has not noticed it

// Everything that a version has in the bucket.
struct Contents {
  std::vector<s3::ObjectInfo> objects;
  std::vector<s3::UploadInfo> uploads;
  bool has_manifest = false;
  std::optional<StoredClaim> claim = {};
  std::vector<s3::ObjectVersion> versions = {};  // with PruneOptions::all_versions
  // True if neither other objects and uploads nor old versions of other objects are left.
  bool HasOnly(const std::string& claim_key) const {
    const auto is_other = [&](const auto& object) { return object.key != claim_key; };
    return uploads.empty() && std::ranges::none_of(objects, is_other) && std::ranges::none_of(versions, is_other);
  }
  // When the version changed last, by the clock of the service. The claim has the time of the machine that pushed.
  system_clock::time_point Changed(system_clock::time_point now) const {
    system_clock::time_point last;
    if (claim) last = system_clock::time_point(std::chrono::nanoseconds(claim->claim.created_ns));
    if (last > now) last = {};
    for (const auto& object : objects) last = std::max(last, object.modified);
    for (const auto& upload : uploads) last = std::max(last, upload.started);
    return last;
  }
};

// The youngest version of an object is the first of its key, and is the object unless it is a delete marker.
std::vector<s3::ObjectInfo> CurrentObjects(const std::vector<s3::ObjectVersion>& versions) {
  std::vector<s3::ObjectInfo> objects;
  std::string_view key;
  for (const s3::ObjectVersion& object : versions) {
    if (object.key == std::exchange(key, object.key) || object.is_marker) continue;
    objects.push_back({.key = object.key, .size = object.size, .modified = object.modified});
  }
  return objects;
}

// Its id is that of no other push or prune.
Claim MakeRemovingClaim() {
  return {.push = RandomId(), .source = "weightfs prune", .created_ns = UtcNowNs(), .removing = true};
}

class Pruner {
 public:
  Pruner(const Series& series, const PruneOptions& options) : series_(series), options_(options) {}

  Result<PruneReport> Run() {
    ASSIGN_OR_RETURN(const auto versions, options_.all_versions ? series_.NumbersWithDeleted() : series_.Numbers());
    for (const uint64_t version : versions) {
      if (version > options_.up_to) continue;
      const auto visited = Visit(version);
      if (visited) continue;
      // The service does not answer, or the user does not want to wait.
      const Error& error = visited.error();
      if (error.path.empty() && (error.code == ErrorCode::kIo || error.code == ErrorCode::kCancelled)) return error;
      report_.errors.push_back(error);
    }
    return std::move(report_);
  }

 private:
  Result<void> Visit(uint64_t version) {
    ASSIGN_OR_RETURN(const Contents contents, Examine(version));
    const bool is_removed = contents.claim && contents.claim->claim.removing;
    // What a killed prune has not decided yet may be complete.
    if (is_removed && contents.claim->claim.replaces.empty()) {
      return Remove(version, contents, /*complete=*/true);
    }
    if (contents.has_manifest) {
      const auto manifest = series_.LoadManifest(version);
      const bool readable = manifest || !IsUnreadable(manifest.error().code);
      if (!manifest && readable && manifest.error().code != ErrorCode::kNotFound) return manifest.error();
      if (!contents.claim || !readable || (manifest && Covers(contents.claim->claim, *manifest))) {
        const int64_t claimed = contents.claim ? contents.claim->claim.time_ns() : 0;
        if ((manifest ? manifest->time_ns() : claimed) > options_.until_ns) return {};
        // Nobody knows how a manifest without a claim came there.
        if (contents.claim && report_.kept.size() >= options_.keep) return Remove(version, contents, /*complete=*/true);
        (contents.claim && readable ? report_.kept : report_.damaged).push_back(version);
        return {};
      }
    }
    if (!contents.claim && contents.objects.empty() && WasOurs(version, contents)) {
      return Remove(version, contents, /*complete=*/true);  // an earlier call removed it
    }
    if (!contents.claim) {
      if (!contents.objects.empty()) report_.foreign.push_back(version);
      return {};
    }
    ASSIGN_OR_RETURN(const bool abandoned, is_removed ? Result<bool>(true) : IsAbandoned(contents));
    if (abandoned) return Remove(version, contents, /*complete=*/false);
    report_.unfinished.push_back(version);
    return {};
  }

  static bool IsUnreadable(ErrorCode code) { return code == ErrorCode::kCorrupt || code == ErrorCode::kVersion; }

  // Examine leaves the fields of a damaged claim empty. It is that of its manifest.
  static bool Covers(const Claim& claim, const Manifest& manifest) {
    return claim.push.empty() || claim.Covers(manifest);
  }

  // Parts of an upload are the only sign of life of a push that sends one large file.
  Result<bool> IsAbandoned(const Contents& contents) const {
    const auto now = series_.bucket().client().ServiceTime();
    const auto is_young = [&](system_clock::time_point changed) { return now - changed < options_.unfinished_after; };
    if (is_young(contents.Changed(now))) return false;
    for (const s3::UploadInfo& upload : contents.uploads) {
      const auto found = series_.bucket().ListParts(upload);
      if (!found && found.error().code == ErrorCode::kNotFound) continue;  // it was aborted, or is an object now
      if (!found) return found.error();
      if (std::ranges::any_of(found->parts, [&](const s3::PartInfo& part) { return is_young(part.modified); })) {
        return false;
      }
    }
    return true;
  }

  Result<Contents> Examine(uint64_t version) const {
    const s3::Bucket& bucket = series_.bucket();
    const std::string prefix = series_.Prefix(version);
    Contents contents;
    // A push has a claim before its first upload, so the claim of each of these uploads is listed.
    ASSIGN_OR_RETURN(contents.uploads, bucket.ListMultipartUploads(prefix));
    if (options_.all_versions) {
      ASSIGN_OR_RETURN(auto listing, bucket.ListVersions({.prefix = prefix, .limit = kMaximumObjects}));
      contents.versions = std::move(listing.entries);
      contents.objects = CurrentObjects(contents.versions);
    } else {
      ASSIGN_OR_RETURN(auto listing, bucket.ListObjects({.prefix = prefix, .limit = kMaximumObjects}));
      contents.objects = std::move(listing.entries);
    }
    const auto has = [&](const std::string& key) {
      return std::ranges::any_of(contents.objects, [&](const s3::ObjectInfo& object) { return object.key == key; });
    };
    contents.has_manifest = has(series_.ManifestKey(version));
    if (!has(series_.ClaimKey(version))) return contents;
    // A damaged claim is a claim; the objects have the time. So is one that another program removes now.
    ASSIGN_OR_RETURN(auto claim, series_.FindClaim(version));
    contents.claim = claim ? std::move(*claim) : StoredClaim{};
    return contents;
  }

  // True if a push made this number. Nobody else has such objects.
  bool WasOurs(uint64_t version, const Contents& contents) const {
    const std::string manifest = series_.ManifestKey(version), claim = series_.ClaimKey(version);
    return std::ranges::any_of(contents.versions, [&](const s3::ObjectVersion& object) {
      return object.key == manifest || object.key == claim;
    });
  }

  // `complete`: no push can complete it meanwhile, because it has been complete.
  Result<void> Remove(uint64_t version, const Contents& contents, bool complete) {
    PrunedVersion removed{.version = version, .unfinished = !complete, .uploads = contents.uploads.size()};
    const auto count = [&](uint64_t size) { ++removed.objects, removed.bytes += size; };
    for (const s3::ObjectVersion& object : contents.versions) {
      if (!object.is_marker) count(object.size);
    }
    if (!options_.all_versions) {
      for (const s3::ObjectInfo& object : contents.objects) count(object.size);
    }
    if (!options_.dry_run) {
      const auto done = contents.objects.empty() ? RemoveDeleted(version, contents)
                                                : RemoveClaimed(version, contents, complete);
      // Another prune, or a push that has taken over, goes on here.
      if (!done && done.error().code == ErrorCode::kBusy) return {};
      if (!done && done.error().code == ErrorCode::kAgain) return Visit(version);
      RETURN_IF_ERROR(done);
    }
    report_.removed.push_back(removed);
    return {};
  }

  // Removes a version that a push may be making. Our claim ends that push; what it writes until it notices is removed,
  // too. kBusy: the claim is not ours any more. kAgain: a push has completed the version before it could see our claim,
  // and has its own again.
  Result<void> RemoveClaimed(uint64_t version, Contents contents, bool complete) {
    HeldClaim held(series_, version);
    const StoredClaim former = *contents.claim;
    Claim ours = MakeRemovingClaim();
    if (!complete) ours.replaces = former.claim.replaces.empty() ? former.claim.push : former.claim.replaces;
    held.Hold(former);
    RETURN_IF_ERROR(held.Replace(ours));
    if (!complete) RETURN_IF_ERROR(Decide(version, former, &held, ours));
    for (int round = 1; round <= kRounds; ++round) {
      RETURN_IF_ERROR(RemoveFiles(version, contents, held));
      ASSIGN_OR_RETURN(contents, Examine(version));
      if (!contents.HasOnly(series_.ClaimKey(version))) continue;
      // A manifest that arrived after the list was made.
      RETURN_IF_ERROR(RemoveFiles(version, contents, held));
      RETURN_IF_ERROR(held.Release());
      if (!options_.all_versions) return {};
      ASSIGN_OR_RETURN(contents, Examine(version));
      return RemoveDeleted(version, contents);
    }
    return MakeError(ErrorCode::kNotEmpty,
                     "{}: another program writes there while it is removed; the next prune continues",
                     series_.url(version));
  }

  // Looks whether the push with the claim `former` was faster. The manifest of a push that had lost its claim before
  // does not count.
  Result<void> Decide(uint64_t version, const StoredClaim& former, HeldClaim* held, Claim ours) {
    const auto manifest = series_.LoadManifest(version);
    if (!manifest && !IsUnreadable(manifest.error().code) && manifest.error().code != ErrorCode::kNotFound) {
      return manifest.error();
    }
    if (manifest && Covers(former.claim, *manifest)) {
      Claim back = former.claim;
      if (former.damaged() || back.removing) back = {.push = manifest->push, .source = manifest->source};
      RETURN_IF_ERROR(held->Replace(back));
      return ErrorCode::kAgain;
    }
    ours.replaces.clear();
    return held->Replace(ours);
  }

  // Removes the old versions of objects of a version that has no objects any more, those of the claim last. Ends when a
  // push makes a claim: without versioning, all content of an object has the id "null", also what that push has made.
  Result<void> RemoveDeleted(uint64_t version, const Contents& contents) {
    const HeldClaim none(series_, version);
    RETURN_IF_ERROR(RemoveFiles(version, contents, none));
    return RemoveOneByOne(VersionsOf(series_.ClaimKey(version), contents), none);
  }

  // Removes all but the claim. Of old versions those that were listed, and none that a push has made since: a delete
  // marker goes after the content that it hides, which would be the current version otherwise.
  Result<void> RemoveFiles(uint64_t version, const Contents& contents, const HeldClaim& held) {
    const std::string manifest = series_.ManifestKey(version), claim = series_.ClaimKey(version);
    if (options_.all_versions) {
      RETURN_IF_ERROR(RemoveOneByOne(VersionsOf(manifest, contents), held));
    } else {
      RETURN_IF_ERROR(held.DeleteManifest(&report_.leaves_old_versions));
    }
    RETURN_IF_ERROR(held.AbortUploads(contents.uploads));
    std::vector<s3::ObjectVersion> files = contents.versions;
    if (!options_.all_versions) {
      for (const s3::ObjectInfo& object : contents.objects) files.push_back({.key = object.key});
    }
    std::erase_if(files, [&](const s3::ObjectVersion& one) { return one.key == manifest || one.key == claim; });
    const auto markers = MoveMarkersBack(files);
    RETURN_IF_ERROR(held.DeleteObjects({files.begin(), markers}));
    return held.DeleteObjects({markers, files.end()});
  }

  static std::vector<s3::ObjectVersion> VersionsOf(const std::string& key, const Contents& contents) {
    std::vector<s3::ObjectVersion> versions;
    std::ranges::copy_if(contents.versions, std::back_inserter(versions),
                         [&](const s3::ObjectVersion& object) { return object.key == key; });
    return versions;
  }

  // Begins with the oldest version, so that none becomes the current one. A request for several has no order.
  static Result<void> RemoveOneByOne(std::vector<s3::ObjectVersion> versions, const HeldClaim& held) {
    std::ranges::reverse(versions);
    MoveMarkersBack(versions);
    for (const s3::ObjectVersion& object : versions) {
      RETURN_IF_ERROR(held.DeleteObjects({&object, 1}));
    }
    return {};
  }

  static std::vector<s3::ObjectVersion>::iterator MoveMarkersBack(std::vector<s3::ObjectVersion>& versions) {
    return std::stable_partition(versions.begin(), versions.end(),
                                 [](const s3::ObjectVersion& object) { return !object.is_marker; });
  }

  const Series& series_;
  const PruneOptions& options_;
  PruneReport report_;
};

}  // namespace

Result<PruneReport> Prune(const Series& series, const PruneOptions& options) {
  if (options.keep == 0) return Error{ErrorCode::kInvalid, "at least one version must be kept"};
  return Pruner(series, options).Run();
}

}  // namespace weightfs::remote
