// SPDX-License-Identifier: Apache-2.0
// The claim that a push or a prune holds while it changes a version. Private to remote/.
#pragma once

#include "remote/series.h"

namespace weightfs::remote {

// Every change that would harm another push is made through it: immediately before each attempt of the request, the
// claim in the bucket is read again and compared, byte for byte, with the one that is held. A program that holds none
// may change only a version without a claim. If the service compares ETags (If-Match), nothing can replace the claim
// between a comparison and a change of the claim itself.
//
// Externally synchronised. Errors are one full line: those of s3::Client, and
//   kBusy  another push or prune has made, replaced or removed the claim: what is in the bucket is not ours any more
class HeldClaim {
 public:
  // Holds none. `series` must outlive it.
  HeldClaim(const Series& series, uint64_t version) : series_(series), version_(version) {}

  Result<std::optional<StoredClaim>> Find() const { return series_.FindClaim(version_); }
  // Holds this one, which was read.
  void Hold(std::optional<StoredClaim> found) { held_ = std::move(found); }
  const std::optional<StoredClaim>& held() const { return held_; }
  // Replaces the claim that is held, or makes one if none is held, and holds the new one.
  Result<void> Replace(const Claim& claim);
  // Deletes the claim, and holds none afterwards.
  Result<void> Release() { return Become(std::nullopt); }
  Result<void> Check() const;
  // For the requests that change what others may have written; a Check precedes them.
  s3::GuardPtr guard() const;
  // Carries out a change whose requests have the guard.
  Result<void> Change(const std::function<Result<void>(const s3::GuardPtr& guard)>& change) const;

  Result<void> AbortUploads(std::span<const s3::UploadInfo> uploads) const;
  // An object that the service refuses to delete delays no other one.
  Result<void> DeleteObjects(std::span<const s3::ObjectVersion> objects) const;
  // Sets `kept`, if it is not null, to true if the bucket keeps it as an old version.
  Result<void> DeleteManifest(bool* kept = nullptr) const;
  // Waits, unless it is interrupted (kCancelled).
  Result<void> Wait(std::chrono::milliseconds time) const;

 private:
  Result<void> Become(std::optional<StoredClaim> next);
  Error Lost(const std::optional<StoredClaim>& found) const;

  const Series& series_;
  const uint64_t version_;
  std::optional<StoredClaim> held_;
};

}  // namespace weightfs::remote
