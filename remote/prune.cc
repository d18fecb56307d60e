// SPDX-License-Identifier: Apache-2.0
#include "remote/prune.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "common/result.h"

namespace weightfs::remote {
namespace {

using std::chrono::system_clock;

// Everything that a version has in the bucket.
struct Contents {
  std::vector<s3::ObjectInfo> objects;
  std::vector<s3::UploadInfo> uploads;
  bool has_manifest = false;
  std::optional<Claim> claim = {};
  std::vector<s3::ObjectVersion> versions = {};  // with PruneOptions::all_versions
  // When the version changed last.
  system_clock::time_point Changed() const {
    system_clock::time_point last;
    if (claim) last = system_clock::time_point(std::chrono::nanoseconds(claim->created_ns));
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
    } else if (system_clock::now() - contents.Changed() < options_.unfinished_after) {
      report_.unfinished.push_back(version);
    } else {
      return Remove(version, contents);
    }
    return {};
  }

  Result<Contents> Examine(uint64_t version) const {
    const s3::Bucket& bucket = series_.bucket();
    const std::string prefix = series_.Prefix(version);
    Contents contents;
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
    ASSIGN_OR_RETURN(contents.uploads, bucket.ListMultipartUploads(prefix, options_.interrupted));
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
    const s3::Bucket& bucket = series_.bucket();
    const std::string manifest = series_.ManifestKey(version), claim = series_.ClaimKey(version);
    PrunedVersion removed{.version = version,
                          .unfinished = contents.claim && !contents.has_manifest,
                          .uploads = contents.uploads.size()};
    const auto count = [&](uint64_t size) { ++removed.objects, removed.bytes += size; };
    for (const s3::ObjectVersion& object : contents.versions) {
      if (!object.is_marker) count(object.size);
    }
    if (!options_.all_versions) {
      for (const s3::ObjectInfo& object : contents.objects) count(object.size);
    }
    report_.removed.push_back(removed);
    if (options_.dry_run) return {};
    if (options_.all_versions) return RemoveVersions(version, contents);
    ASSIGN_OR_RETURN(const bool kept, bucket.DeleteObject(manifest, options_.interrupted));
    report_.leaves_old_versions = report_.leaves_old_versions || kept;
    RETURN_IF_ERROR(Abort(contents.uploads));
    std::vector<std::string> keys;
    for (const s3::ObjectInfo& object : contents.objects) {
      if (object.key != manifest && object.key != claim) keys.push_back(object.key);
    }
    RETURN_IF_ERROR(bucket.DeleteObjects(keys, options_.interrupted));
    RETURN_IF_ERROR(bucket.DeleteObject(claim, options_.interrupted));
    return {};
  }

  // Deletes the versions of objects that were listed, and none that a push has made since. A delete marker goes after the
  // content that it hides, which would be the current version otherwise.
  Result<void> RemoveVersions(uint64_t version, const Contents& contents) const {
    const s3::Bucket& bucket = series_.bucket();
    const std::string manifest = series_.ManifestKey(version), claim = series_.ClaimKey(version);
    std::vector<s3::ObjectVersion> of_manifest, of_claim, others;
    for (const s3::ObjectVersion& object : contents.versions) {
      (object.key == manifest ? of_manifest : object.key == claim ? of_claim : others).push_back(object);
    }
    RETURN_IF_ERROR(RemoveOneByOne(std::move(of_manifest)));
    RETURN_IF_ERROR(Abort(contents.uploads));
    const auto markers = MoveMarkersBack(others);
    RETURN_IF_ERROR(bucket.DeleteVersions({others.begin(), markers}, options_.interrupted));
    RETURN_IF_ERROR(bucket.DeleteVersions({markers, others.end()}, options_.interrupted));
    return RemoveOneByOne(std::move(of_claim));
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

  Result<void> Abort(const std::vector<s3::UploadInfo>& uploads) const {
    for (const s3::UploadInfo& upload : uploads) {
      const auto aborted = series_.bucket().AbortMultipartUpload(upload, options_.interrupted);
      if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted.error();
    }
    return {};
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
