// SPDX-License-Identifier: Apache-2.0
#include "remote/held_claim.h"

#include <algorithm>
#include <thread>

#include "common/make_error.h"

namespace weightfs::remote {
namespace {

using std::chrono::milliseconds;

constexpr int kClaimAttempts = 3;  // after a comparison that differs from the one after it
constexpr size_t kAbortedAtOnce = 100;

template <typename T, typename F>
Result<void> InBatches(std::span<const T> all, size_t size, F change) {
  for (; !all.empty(); all = all.subspan(std::min(size, all.size()))) {
    RETURN_IF_ERROR(change(all.first(std::min(size, all.size()))));
  }
  return {};
}

}  // namespace

Error HeldClaim::Lost(const std::optional<StoredClaim>& found) const {
  const bool removed = !found || found->claim.removing;
  const std::string by = found && found->damaged() ? "a push with a damaged claim" : found ? found->claim.source : "";
  return MakeError(ErrorCode::kBusy, "{}: was {} during this push, so this push has ended", series_.url(version_),
                   removed ? std::string("removed by weightfs prune") : "taken over from " + by);
}

Result<void> HeldClaim::Replace(const Claim& claim) {
  return Become(StoredClaim{.claim = claim, .text = claim.Encode()});
}

// A change whose answer was lost may have taken effect. A service may refuse conditions, or compare ETags in another
// manner: if the claim turns out to be unchanged, the change is made without one.
Result<void> HeldClaim::Become(std::optional<StoredClaim> next) {
  const std::string key = series_.ClaimKey(version_);
  std::string if_match = held_ ? held_->etag : "";
  for (int attempt = 1;; ++attempt) {
    if (held_ || attempt > 1) {
      ASSIGN_OR_RETURN(auto found, Find());
      if (attempt > 1 && found == next) {
        held_ = std::move(found);
        return {};
      }
      if (found != held_) return Lost(found);
    }
    const auto change = [&]() -> Result<std::string> {
      const s3::PutOptions options{.if_none_match = !held_, .if_match = if_match, .guard = guard()};
      if (next) return series_.bucket().PutObject(key, next->text, options);
      RETURN_IF_ERROR(series_.bucket().DeleteObject(key, {.if_match = if_match, .guard = guard()}));
      return std::string();
    };
    auto etag = change();
    if (etag) {
      if (next) next->etag = std::move(*etag);
      held_ = std::move(next);
      return {};
    }
    const ErrorCode code = etag.error().code;
    const bool refused = (code == ErrorCode::kExists || code == ErrorCode::kNotSupported) && !if_match.empty();
    const bool differs = code == ErrorCode::kBusy || (code == ErrorCode::kExists && !held_);
    if (!refused && (!differs || attempt == kClaimAttempts)) return etag.error();
    if (refused) if_match.clear();
  }
}

Result<void> HeldClaim::Check() const {
  ASSIGN_OR_RETURN(const auto found, Find());
  return found == held_ ? Result<void>() : Lost(found);
}

s3::GuardPtr HeldClaim::guard() const {
  s3::Guard guard{.key = series_.ClaimKey(version_)};
  if (held_) guard.body = held_->text;
  return std::make_shared<const s3::Guard>(std::move(guard));
}

// A guard may differ because the claim changed on its way.
Result<void> HeldClaim::Change(const std::function<Result<void>(const s3::GuardPtr& guard)>& change) const {
  for (int attempt = 1;; ++attempt) {
    RETURN_IF_ERROR(Check());
    auto done = change(guard());
    if (done || done.error().code != ErrorCode::kBusy || attempt == kClaimAttempts) return done;
  }
}

Result<void> HeldClaim::AbortUploads(std::span<const s3::UploadInfo> uploads) const {
  return InBatches(uploads, kAbortedAtOnce, [&](std::span<const s3::UploadInfo> batch) {
    return Change([&](const s3::GuardPtr& guard) { return series_.bucket().AbortMultipartUploads(batch, guard); });
  });
}

Result<void> HeldClaim::DeleteObjects(std::span<const s3::ObjectVersion> objects) const {
  Result<void> refused;
  RETURN_IF_ERROR(InBatches(objects, s3::kMaxDeletedKeys, [&](std::span<const s3::ObjectVersion> batch) {
    auto done = Change([&](const s3::GuardPtr& guard) { return series_.bucket().DeleteObjects(batch, guard); });
    if (done || done.error().path.empty()) return done;
    if (refused) refused = std::move(done);
    return Result<void>();
  }));
  return refused;
}

Result<void> HeldClaim::DeleteManifest(bool* kept) const {
  return Change([&](const s3::GuardPtr& guard) -> Result<void> {
    ASSIGN_OR_RETURN(const bool marks, series_.bucket().DeleteObject(series_.ManifestKey(version_), {.guard = guard}));
    if (kept != nullptr && marks) *kept = true;
    return {};
  });
}

Result<void> HeldClaim::Wait(milliseconds time) const {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
    if (series_.bucket().is_interrupted()) return ErrorCode::kCancelled;
    std::this_thread::sleep_for(std::min(milliseconds(100), time));
  }
  return {};
}

}  // namespace weightfs::remote
