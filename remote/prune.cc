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

class Pruner {
 public:
  Pruner(const Series& series, const PruneOptions& options) : series_(series), options_(options) {}

  Result<PruneReport> Run() {
    ASSIGN_OR_RETURN(const auto versions, options_.all_versions ? series_.NumbersWithDeleted(options_.interrupted)
                                                                : series_.Numbers(options_.interrupted));
    for (const uint64_t version : versions) RETURN_IF_ERROR(Visit(version));
    return std::move(report_);
  }

 private:
  Result<void> Visit(uint64_t version) {
    ASSIGN_OR_RETURN(const Contents contents, Examine(version));
    if (contents.has_manifest) {
      const bool counts = version <= options_.up_to;
      if (counts && counted_ >= options_.keep) return Remove(version, contents);
      const auto manifest = series_.Load(version, options_.interrupted);
      if (!manifest && manifest.error().code != ErrorCode::kCorrupt && manifest.error().code != ErrorCode::kVersion) {
        return manifest.error();
      }
      (manifest ? report_.kept : report_.damaged).push_back(version);
      if (manifest && counts) ++counted_;
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
    ASSIGN_OR_RETURN(auto listing,
                     bucket.ListObjects({.prefix = prefix, .limit = kMaximumObjects}, options_.interrupted));
    contents.objects = std::move(listing.objects);
    ASSIGN_OR_RETURN(contents.uploads, bucket.ListMultipartUploads(prefix, options_.interrupted));
    // A listing without the right prefix must not lead to deleting.
    const auto is_foreign = [&](const auto& object) { return !object.key.starts_with(prefix); };
    std::erase_if(contents.objects, is_foreign);
    std::erase_if(contents.uploads, is_foreign);
    const auto has = [&](const std::string& key) {
      return std::any_of(contents.objects.begin(), contents.objects.end(),
                         [&](const s3::ObjectInfo& object) { return object.key == key; });
    };
    if (options_.all_versions) {
      ASSIGN_OR_RETURN(contents.versions, ListVersions(version));
    }
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

  Result<std::vector<s3::ObjectVersion>> ListVersions(uint64_t version) const {
    const std::string prefix = series_.Prefix(version);
    ASSIGN_OR_RETURN(auto listing, series_.bucket().ListVersions({.prefix = prefix, .limit = kMaximumObjects},
                                                                 options_.interrupted));
    std::erase_if(listing.versions, [&](const auto& object) { return !object.key.starts_with(prefix); });
    return std::move(listing.versions);
  }

  // True if a push made this number and everything was deleted. The youngest version of each key is the first of it: a
  // push may have begun after the objects were listed.
  bool WasOurs(uint64_t version, const Contents& contents) const {
    const std::string manifest = series_.ManifestKey(version), claim = series_.ClaimKey(version);
    bool ours = false;
    std::string_view key;
    for (const s3::ObjectVersion& object : contents.versions) {
      if (object.key != std::exchange(key, object.key) && !object.is_marker) return false;
      ours = ours || object.key == manifest || object.key == claim;
    }
    return ours;
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
    ASSIGN_OR_RETURN(const bool kept, bucket.DeleteObject(manifest, options_.interrupted));
    report_.leaves_old_versions = report_.leaves_old_versions || (kept && !options_.all_versions);
    for (const s3::UploadInfo& upload : contents.uploads) {
      const auto aborted = bucket.AbortMultipartUpload(upload, options_.interrupted);
      if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted.error();
    }
    std::vector<std::string> keys;
    for (const s3::ObjectInfo& object : contents.objects) {
      if (object.key != manifest && object.key != claim) keys.push_back(object.key);
    }
    RETURN_IF_ERROR(bucket.DeleteObjects(keys, options_.interrupted));
    if (options_.all_versions) RETURN_IF_ERROR(RemoveVersions(version, /*of_claim=*/false));
    RETURN_IF_ERROR(bucket.DeleteObject(claim, options_.interrupted));
    return options_.all_versions ? RemoveVersions(version, /*of_claim=*/true) : Result<void>();
  }

  // Deletes the old versions of objects whose current version was deleted: of the claim, or of all others. A delete
  // marker goes after what it hides, which would be the current version otherwise.
  Result<void> RemoveVersions(uint64_t version, bool of_claim) const {
    const std::string claim = series_.ClaimKey(version);
    ASSIGN_OR_RETURN(auto versions, ListVersions(version));
    std::erase_if(versions, [&](const s3::ObjectVersion& object) { return (object.key == claim) != of_claim; });
    const auto markers = std::stable_partition(versions.begin(), versions.end(),
                                               [](const s3::ObjectVersion& object) { return !object.is_marker; });
    RETURN_IF_ERROR(series_.bucket().DeleteVersions({versions.begin(), markers}, options_.interrupted));
    return series_.bucket().DeleteVersions({markers, versions.end()}, options_.interrupted);
  }

  const Series& series_;
  const PruneOptions& options_;
  size_t counted_ = 0;  // of PruneOptions::keep
  PruneReport report_;
};

}  // namespace

Result<PruneReport> Prune(const Series& series, const PruneOptions& options) {
  if (options.keep == 0) return Error{ErrorCode::kInvalid, "at least one version must be kept"};
  return Pruner(series, options).Run();
}

}  // namespace weightfs::remote
