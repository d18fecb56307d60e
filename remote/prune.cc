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

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& object : objects) sum += object.size;
    return sum;
  }
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
    ASSIGN_OR_RETURN(const auto versions, series_.Numbers(options_.interrupted));
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
    } else if (!contents.claim) {
      report_.foreign.push_back(version);
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

  Result<void> Remove(uint64_t version, const Contents& contents) {
    const s3::Bucket& bucket = series_.bucket();
    const std::string manifest = series_.ManifestKey(version), claim = series_.ClaimKey(version);
    report_.removed.push_back(
        {version, !contents.has_manifest, contents.objects.size(), contents.bytes(), contents.uploads.size()});
    if (options_.dry_run) return {};
    RETURN_IF_ERROR(bucket.DeleteObject(manifest, options_.interrupted));
    for (const s3::UploadInfo& upload : contents.uploads) {
      const auto aborted = bucket.AbortMultipartUpload(upload, options_.interrupted);
      if (!aborted && aborted.error().code != ErrorCode::kNotFound) return aborted.error();
    }
    std::vector<std::string> keys;
    for (const s3::ObjectInfo& object : contents.objects) {
      if (object.key != manifest && object.key != claim) keys.push_back(object.key);
    }
    RETURN_IF_ERROR(bucket.DeleteObjects(keys, options_.interrupted));
    return bucket.DeleteObject(claim, options_.interrupted);
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
