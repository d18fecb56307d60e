// SPDX-License-Identifier: Apache-2.0
// The claim that a push or a prune holds while it changes a version. Private to remote/.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "common/result.h"
#include "remote/manifest.h"
#include "remote/series.h"

namespace weightfs::remote {

// Every change that would harm another push is made through it: immediately before, the claim in the bucket is read
// again and compared, byte for byte, with the one that is held. A change whose answer was lost is not repeated before
// that either. If the service compares ETags (If-Match), nothing can replace the claim in between.
//
// Externally synchronised. Errors are one full line: those of s3::Client, and
//   kBusy  another push or prune has replaced or removed the claim: whatever is in the bucket is not ours any more
class HeldClaim {
 public:
  // `series` must outlive it.
  HeldClaim(const Series& series, uint64_t version, s3::Interrupted interrupted)
      : series_(series), version_(version), interrupted_(std::move(interrupted)) {}

  Result<std::optional<StoredClaim>> Find() const { return series_.FindClaim(version_, interrupted_); }
  // Holds this one, which is in the bucket and ours.
  void Hold(StoredClaim found) { held_ = std::move(found); }
  const StoredClaim& held() const { return held_; }
  // Replaces the claim, which was read before, and holds the new one.
  Result<void> Replace(const StoredClaim& former, const Claim& claim);
  Result<void> Check() const;
  // Carries out a change after a comparison, again after each lost answer. The change must not repeat itself
  // (s3::Request::once).
  Result<void> Change(const std::function<Result<void>()>& change) const;

  Result<void> AbortUploads(std::span<const s3::UploadInfo> uploads) const;
  Result<void> DeleteObjects(std::span<const std::string> keys) const;
  Result<void> DeleteVersions(std::span<const s3::ObjectVersion> versions) const;
  // Sets `kept`, if it is not null, to true if the bucket keeps it as an old version.
  Result<void> DeleteManifest(bool* kept = nullptr) const;
  // Deletes the claim itself, and holds none afterwards.
  Result<void> Release();
  // Waits, unless it is interrupted (kCancelled).
  Result<void> Wait(std::chrono::milliseconds time) const;

 private:
  Error Lost(const std::optional<StoredClaim>& found) const;

  const Series& series_;
  const uint64_t version_;
  const s3::Interrupted interrupted_;
  StoredClaim held_;
};

}  // namespace weightfs::remote
