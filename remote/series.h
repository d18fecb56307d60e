// SPDX-License-Identifier: Apache-2.0
// All versions below s3://BUCKET/PREFIX/NAME.
#pragma once

#include "remote/manifest.h"
#include "s3/bucket.h"

namespace weightfs::remote {

// Names and finds the objects of versions. Errors are those of s3::Client, and kCorrupt or kVersion for a manifest,
// each one full line. Thread-safe.
class Series {
 public:
  // `prefix`: PREFIX/NAME, without a slash at its end.
  Series(const s3::Bucket& bucket, std::string prefix) : bucket_(bucket), prefix_(std::move(prefix)) {}

  const s3::Bucket& bucket() const { return bucket_; }
  // "s3://BUCKET/PREFIX/NAME", and of one version.
  std::string url() const;
  std::string url(uint64_t version) const { return url() + "/" + std::to_string(version); }

  // Keys. The prefix of a version ends with a slash.
  std::string Prefix(uint64_t version) const { return prefix_ + "/" + std::to_string(version) + "/"; }
  std::string Key(uint64_t version, std::string_view path) const { return Prefix(version) + std::string(path); }
  std::string ClaimKey(uint64_t version) const { return Key(version, ".weightfs/claim"); }
  std::string ManifestKey(uint64_t version) const { return Key(version, ".weightfs/manifest"); }
  std::string SliceKey(uint64_t version, size_t index) const {
    return Key(version, ".weightfs/sums/" + std::to_string(index));
  }

  // The numbers of all versions that have objects, the greatest first. Some may have no manifest.
  Result<std::vector<uint64_t>> Numbers() const;
  // The same, with those whose objects were deleted, but are kept by the bucket as old versions of objects.
  Result<std::vector<uint64_t>> NumbersWithDeleted() const;
  // Returns the manifest of a complete version (Claim::Covers; a damaged claim is none). kNotFound: it was not pushed
  // completely, or is being removed.
  Result<Manifest> Load(uint64_t version) const;
  // The same without regard to the claim.
  Result<Manifest> LoadManifest(uint64_t version) const;
  // Returns the manifest of the greatest complete version. kNotFound: there is none.
  Result<Manifest> LoadLatest() const;
  // True if at least `count` complete versions are greater, and later: of publications after `time_ns`, or, without a
  // publication, pushed after it.
  Result<bool> IsSuperseded(uint64_t version, int64_t time_ns, size_t count) const;
  // Returns the claim of a version; kNotFound if it has none, kCorrupt if it is damaged.
  Result<Claim> LoadClaim(uint64_t version) const;
  // The same as it is in the bucket, also a damaged one; none: the version has no claim.
  Result<std::optional<StoredClaim>> FindClaim(uint64_t version) const;

 private:
  std::vector<uint64_t> NumbersIn(const std::vector<std::string>& prefixes) const;
  const s3::Bucket& bucket_;
  const std::string prefix_;
};

// Parses a version number without leading zeros. Returns 0 for anything else.
uint64_t ParseVersion(std::string_view text);

}  // namespace weightfs::remote
