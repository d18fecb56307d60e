// SPDX-License-Identifier: Apache-2.0
#include "remote/series.h"

#include <algorithm>

#include "common/checksum.h"
#include "common/parse_number.h"

namespace weightfs::remote {
namespace {

constexpr size_t kMaximumClaim = 64 << 10;

}  // namespace

uint64_t ParseVersion(std::string_view text) {
  const uint64_t version = ParseNumber<uint64_t>(text).value_or(0);
  return !text.starts_with('0') && version <= INT64_MAX ? version : 0;
}

std::string Series::url() const { return s3::ToString({bucket_.name(), prefix_}); }

Result<std::vector<uint64_t>> Series::Numbers() const {
  ASSIGN_OR_RETURN(const auto listing, bucket_.ListObjects({.prefix = prefix_ + "/", .delimiter = "/"}));
  return NumbersIn(listing.prefixes);
}

Result<std::vector<uint64_t>> Series::NumbersWithDeleted() const {
  ASSIGN_OR_RETURN(const auto listing, bucket_.ListVersions({.prefix = prefix_ + "/", .delimiter = "/"}));
  return NumbersIn(listing.prefixes);
}

std::vector<uint64_t> Series::NumbersIn(const std::vector<std::string>& prefixes) const {
  const size_t above = prefix_.size() + 1;
  std::vector<uint64_t> numbers;
  for (const std::string& prefix : prefixes) {
    const uint64_t version = ParseVersion(std::string_view(prefix).substr(above, prefix.size() - above - 1));
    if (version != 0) numbers.push_back(version);
  }
  std::ranges::sort(numbers, std::greater<>());
  return numbers;
}

Result<Manifest> Series::Load(uint64_t version) const {
  ASSIGN_OR_RETURN(auto manifest, LoadManifest(version));
  const auto claim = LoadClaim(version);
  if (claim ? claim->Covers(manifest) : claim.error().code == ErrorCode::kCorrupt) return manifest;
  if (!claim && claim.error().code != ErrorCode::kNotFound) return claim.error();
  return Error{ErrorCode::kNotFound, url(version) + ": the push that wrote its manifest has lost its claim"};
}

Result<Manifest> Series::LoadManifest(uint64_t version) const {
  // A manifest that differs from its hash was damaged on its way, or in the bucket.
  for (ReadAttempts attempts;;) {
    ASSIGN_OR_RETURN(const auto content, bucket_.GetObject(ManifestKey(version), kMaximumManifest));
    auto manifest = Manifest::Decode(content.body);
    if (manifest && manifest->version == version) return manifest;
    if (manifest) return Error{ErrorCode::kCorrupt, url(version) + ": its manifest is that of another version"};
    if (manifest.error().code != ErrorCode::kCorrupt || !attempts.ReadAgain()) {
      return Error{manifest.error().code, url(version) + ": " + manifest.error().what};
    }
  }
}

Result<Manifest> Series::LoadLatest() const {
  ASSIGN_OR_RETURN(const auto numbers, Numbers());
  for (const uint64_t version : numbers) {
    auto manifest = Load(version);
    if (manifest || manifest.error().code != ErrorCode::kNotFound) return manifest;
  }
  return Error{ErrorCode::kNotFound, url() + ": no version was pushed here"};
}

Result<bool> Series::IsSuperseded(uint64_t version, int64_t time_ns, size_t count) const {
  ASSIGN_OR_RETURN(const auto numbers, Numbers());
  size_t found = 0;
  for (const uint64_t greater : numbers) {
    if (greater <= version || found >= count) break;
    const auto manifest = Load(greater);
    if (manifest) {
      found += manifest->time_ns() > time_ns;
      continue;
    }
    constexpr std::array kIncomplete = {ErrorCode::kNotFound, ErrorCode::kCorrupt, ErrorCode::kVersion};
    if (std::ranges::find(kIncomplete, manifest.error().code) == kIncomplete.end()) return manifest.error();
  }
  return found >= count;
}

Result<std::optional<StoredClaim>> Series::FindClaim(uint64_t version) const {
  for (ReadAttempts attempts;;) {
    auto content = bucket_.GetObject(ClaimKey(version), kMaximumClaim, /*urgent=*/true);
    if (!content && content.error().code == ErrorCode::kNotFound) return std::optional<StoredClaim>();
    // No program writes such a claim.
    if (!content && content.error().code == ErrorCode::kTooLarge) return StoredClaim{.text = content.error().what};
    if (!content) return content.error();
    auto claim = Claim::Decode(content->body);
    if (!claim && claim.error().code != ErrorCode::kCorrupt) {
      return Error{claim.error().code, url(version) + ": " + claim.error().what};
    }
    if (!claim && attempts.ReadAgain()) continue;
    return StoredClaim{.claim = claim ? std::move(*claim) : Claim(),
                       .text = std::move(content->body),
                       .etag = std::move(content->etag)};
  }
}

Result<Claim> Series::LoadClaim(uint64_t version) const {
  ASSIGN_OR_RETURN(auto found, FindClaim(version));
  if (!found) return Error{ErrorCode::kNotFound, url(version) + ": has no claim"};
  if (found->damaged()) return Error{ErrorCode::kCorrupt, url(version) + ": the claim is damaged"};
  return std::move(found->claim);
}

}  // namespace weightfs::remote
