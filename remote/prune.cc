// SPDX-License-Identifier: Apache-2.0
#include "remote/prune.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "common/hex.h"
#include "common/result.h"

namespace weightfs::remote {
namespace {

using std::chrono::system_clock;

constexpr int kRounds = 3;  // of a removal, while an ended push has not noticed it

// Everything that a version has in the bucket.
struct Contents {
  std::vector<s3::ObjectInfo> objects;
  std::vector<s3::UploadInfo> uploads;
  bool has_manifest = false;
  std::optional<Claim> claim = {};
  std::vector<s3::ObjectVersion> versions = {};  // with PruneOptions::all_versions
  // True if neither other objects and uploads nor old versions of other objects are left.
  bool HasOnly(const std::string& claim_key) const {
    const auto is_other = [&](const auto& object) { return object.key != claim_key; };
    return uploads.empty() && std::none_of(objects.begin(), objects.end(), is_other) &&
           std::none_of(versions.begin(), versions.end(), is_other);
  }
  // When the version changed last, by the clock of the service. The claim has the time of the machine that pushed.
  system_clock::time_point Changed(system_clock::time_point now) const {
    system_clock::time_point last;
    if (claim) last = system_clock::time_point(std::chrono::nanoseconds(claim->created_ns));
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
  std::array<uint8_t, 16> id{};
  static_cast<void>(getrandom(id.data(), id.size(), 0));  // it returns so few bytes at once, always
  const auto now = system_clock::now().time_since_epoch();
  return {.push = ToHex(id),
          .source = "weightfs prune",
          .created_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
          .removing = true};
}

class Pruner {
 public:
  Pruner(const Series& series, const PruneOptions& options) : series_(series), options_(options) {}

  Result<PruneReport> Run() {
    ASSIGN_OR_RETURN(const auto versions, options_.all_versions ? series_.NumbersWithDeleted(options_.interrupted)
                                                                : series_.Numbers(options_.interrupted));
    for (const uint64_t version : versions) {
      if (version <= options_.up_to) RETURN_IF_ERROR(Visit(version));
    }
    return std::move(report_);
  }

 private:
  Result<void> Visit(uint64_t version) {
    ASSIGN_OR_RETURN(const Contents contents, Examine(version));
    if (contents.has_manifest) {
      if (report_.kept.size() >= options_.keep) return Remove(version, contents);
      const auto manifest = series_.Load(version, options_.interrupted);
      if (!manifest && manifest.error().code != ErrorCode::kCorrupt && manifest.error().code != ErrorCode::kVersion) {
        return manifest.error();
      }
      (manifest ? report_.kept : report_.damaged).push_back(version);
    } else if (!contents.claim && contents.objects.empty() && WasOurs(version, contents)) {
      return Remove(version, contents);  // an earlier call removed it
    } else if (!contents.claim) {
      if (!contents.objects.empty()) report_.foreign.push_back(version);
    } else {
      ASSIGN_OR_RETURN(const bool abandoned, IsAbandoned(contents));
      if (abandoned) return Remove(version, contents);
      report_.unfinished.push_back(version);
    }
    return {};
  }

  // Parts of an upload are the only sign of life of a push that sends one large file.
  Result<bool> IsAbandoned(const Contents& contents) const {
    if (contents.claim->removing) return true;
    const auto now = series_.bucket().client().ServiceTime();
    const auto is_young = [&](system_clock::time_point changed) { return now - changed < options_.unfinished_after; };
    if (is_young(contents.Changed(now))) return false;
    for (const s3::UploadInfo& upload : contents.uploads) {
      const auto found = series_.bucket().ListParts(upload, options_.interrupted);
      if (!found && found.error().code == ErrorCode::kNotFound) continue;  // it was aborted, or is an object now
      if (!found) return found.error();
      if (std::any_of(found->parts.begin(), found->parts.end(),
                      [&](const s3::PartInfo& part) { return is_young(part.modified); })) {
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
    ASSIGN_OR_RETURN(contents.uploads, bucket.ListMultipartUploads(prefix, options_.interrupted));
    if (options_.all_versions) {
      ASSIGN_OR_RETURN(auto listing,
                       bucket.ListVersions({.prefix = prefix, .limit = kMaximumObjects}, options_.interrupted));
      contents.versions = std::move(listing.versions);
      contents.objects = CurrentObjects(contents.versions);
    } else {
      ASSIGN_OR_RETURN(auto listing,
                       bucket.ListObjects({.prefix = prefix, .limit = kMaximumObjects}, options_.interrupted));
      contents.objects = std::move(listing.objects);
    }
    const auto has = [&](const std::string& key) {
      return std::any_of(contents.objects.begin(), contents.objects.end(),
                         [&](const s3::ObjectInfo& object) { return object.key == key; });
    };
    contents.has_manifest = has(series_.ManifestKey(version));
    if (!has(series_.ClaimKey(version))) return contents;
    auto claim = series_.LoadClaim(version, options_.interrupted);
    // A damaged claim is a claim; the objects have the time.
    if (!claim && claim.error().code != ErrorCode::kCorrupt && claim.error().code != ErrorCode::kNotFound) {
      return claim.error();
    }
    contents.claim = claim ? std::move(*claim) : Claim{};
    return contents;
  }

  // True if a push made this number. Nobody else has such objects.
  bool WasOurs(uint64_t version, const Contents& contents) const {
    const std::string manifest = series_.ManifestKey(version), claim = series_.ClaimKey(version);
    return std::any_of(contents.versions.begin(), contents.versions.end(), [&](const s3::ObjectVersion& object) {
      return object.key == manifest || object.key == claim;
    });
  }

  Result<void> Remove(uint64_t version, const Contents& contents) {
    PrunedVersion removed{.version = version,
                          .unfinished = contents.claim && !contents.claim->removing && !contents.has_manifest,
                          .uploads = contents.uploads.size()};
    const auto count = [&](uint64_t size) { ++removed.objects, removed.bytes += size; };
    for (const s3::ObjectVersion& object : contents.versions) {
      if (!object.is_marker) count(object.size);
    }
    if (!options_.all_versions) {
      for (const s3::ObjectInfo& object : contents.objects) count(object.size);
    }
    if (!options_.dry_run) {
      ASSIGN_OR_RETURN(const bool done, contents.objects.empty() ? RemoveListed(version, contents)
                                                                 : RemoveClaimed(version, contents));
      if (!done) return {};
    }
    report_.removed.push_back(removed);
    return {};
  }

  // Removes a version that a push may be making. The claim ends that push; what it writes until it notices is removed,
  // too. Returns false if the push has completed the version before.
  Result<bool> RemoveClaimed(uint64_t version, Contents contents) {
    const s3::Bucket& bucket = series_.bucket();
    const Claim ours = MakeRemovingClaim();
    RETURN_IF_ERROR(bucket.PutObject(series_.ClaimKey(version), ours.Encode(), {}, options_.interrupted));
    if (!contents.has_manifest) {
      const auto manifest = bucket.HeadObject(series_.ManifestKey(version), options_.interrupted);
      if (!manifest && manifest.error().code != ErrorCode::kNotFound) return manifest.error();
      if (manifest) return GiveBack(version, contents);
    }
    for (int round = 1; round <= kRounds; ++round) {
      RETURN_IF_ERROR(RemoveFiles(version, contents));
      ASSIGN_OR_RETURN(contents, Examine(version));
      // Another prune, or a push that has taken over, goes on here.
      if (!contents.claim || contents.claim->push != ours.push) return true;
      if (contents.HasOnly(series_.ClaimKey(version))) return RemoveListed(version, contents);
    }
    return Error{ErrorCode::kBusy, fmt::format("{}: another program writes there while it is removed; the next prune "
                                               "continues", series_.url(version))};
  }

  // A push that has not compared its claim yet makes the version again.
  Result<bool> GiveBack(uint64_t version, const Contents& contents) {
    if (contents.claim && !contents.claim->push.empty()) {
      RETURN_IF_ERROR(series_.bucket().PutObject(series_.ClaimKey(version), contents.claim->Encode(), {},
                                                 options_.interrupted));
    }
    report_.kept.push_back(version);
    return false;
  }

  // Removes what was listed: the manifest first, and the claim last.
  Result<bool> RemoveListed(uint64_t version, const Contents& contents) {
    RETURN_IF_ERROR(RemoveFiles(version, contents));
    const std::string claim = series_.ClaimKey(version);
    if (options_.all_versions) {
      RETURN_IF_ERROR(RemoveOneByOne(VersionsOf(claim, contents)));
    } else {
      RETURN_IF_ERROR(series_.bucket().DeleteObject(claim, options_.interrupted));
    }
    return true;
  }

  // Removes all but the claim. Of old versions those that were listed, and none that a push has made since: a delete
  // marker goes after the content that it hides, which would be the current version otherwise.
  Result<void> RemoveFiles(uint64_t version, const Contents& contents) {
    const s3::Bucket& bucket = series_.bucket();
    const std::string manifest = series_.ManifestKey(version), claim = series_.ClaimKey(version);
    if (options_.all_versions) {
      RETURN_IF_ERROR(RemoveOneByOne(VersionsOf(manifest, contents)));
    } else {
      ASSIGN_OR_RETURN(const bool kept, bucket.DeleteObject(manifest, options_.interrupted));
      report_.leaves_old_versions = report_.leaves_old_versions || kept;
    }
    for (const s3::UploadInfo& upload : contents.uploads) {
      const auto aborted = bucket.AbortMultipartUpload(upload, options_.interrupted);
      if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted.error();
    }
    const auto is_file = [&](const std::string& key) { return key != manifest && key != claim; };
    if (!options_.all_versions) {
      std::vector<std::string> keys;
      for (const s3::ObjectInfo& object : contents.objects) {
        if (is_file(object.key)) keys.push_back(object.key);
      }
      return bucket.DeleteObjects(keys, options_.interrupted);
    }
    std::vector<s3::ObjectVersion> files;
    std::copy_if(contents.versions.begin(), contents.versions.end(), std::back_inserter(files),
                 [&](const s3::ObjectVersion& object) { return is_file(object.key); });
    const auto markers = MoveMarkersBack(files);
    RETURN_IF_ERROR(bucket.DeleteVersions({files.begin(), markers}, options_.interrupted));
    return bucket.DeleteVersions({markers, files.end()}, options_.interrupted);
  }

  static std::vector<s3::ObjectVersion> VersionsOf(const std::string& key, const Contents& contents) {
    std::vector<s3::ObjectVersion> versions;
    std::copy_if(contents.versions.begin(), contents.versions.end(), std::back_inserter(versions),
                 [&](const s3::ObjectVersion& object) { return object.key == key; });
    return versions;
  }

  // Begins with the oldest version, so that none becomes the current one. A request for several has no order.
  Result<void> RemoveOneByOne(std::vector<s3::ObjectVersion> versions) const {
    std::reverse(versions.begin(), versions.end());
    MoveMarkersBack(versions);
    for (const s3::ObjectVersion& object : versions) {
      RETURN_IF_ERROR(series_.bucket().DeleteVersions({&object, 1}, options_.interrupted));
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
