// SPDX-License-Identifier: Apache-2.0
#include "remote/held_claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace weightfs::remote {
namespace {

using std::chrono::milliseconds;

constexpr int kAttempts = 6;
constexpr milliseconds kFirstPause{100};
constexpr size_t kAbortedAtOnce = 100;

// The service may have carried the request out. An error of a single object has a path.
bool IsOpen(const Error& error) { return error.code == ErrorCode::kIo && error.path.empty(); }

// The service refuses conditions, or compares ETags in another manner, if the claim turns out to be unchanged.
bool RefusesCondition(const Error& error) {
  return error.code == ErrorCode::kExists || error.code == ErrorCode::kNotSupported;
}

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
  return {ErrorCode::kBusy, fmt::format("{}: was {} during this push, so this push has ended", series_.url(version_),
                                        removed ? std::string("removed by weightfs prune") : "taken over from " + by)};
}

Result<void> HeldClaim::Replace(const StoredClaim& former, const Claim& claim) {
  const std::string text = claim.Encode();
  s3::PutOptions options{.if_match = former.etag, .once = true};
  Result<void> done;
  for (int attempt = 0;; ++attempt) {
    ASSIGN_OR_RETURN(auto found, Find());
    if (found && found->text == text) {
      held_ = std::move(*found);
      return {};
    }
    if (!found || *found != former) return Lost(found);
    if (attempt == kAttempts) {
      return done ? Error{ErrorCode::kIo, series_.url(version_) + ": the service does not replace the claim"}
                  : done.error();
    }
    if (attempt > 0) RETURN_IF_ERROR(Wait(kFirstPause * (1 << attempt)));
    const auto put = series_.bucket().PutObject(series_.ClaimKey(version_), text, options, interrupted_);
    done = put ? Result<void>() : put.error();
    if (!put && RefusesCondition(put.error()) && !options.if_match.empty()) {
      options.if_match.clear();
    } else if (!put && !IsOpen(put.error())) {
      return put.error();
    }
  }
}

Result<void> HeldClaim::Check() const {
  ASSIGN_OR_RETURN(const auto found, Find());
  return found && *found == held_ ? Result<void>() : Lost(found);
}

Result<void> HeldClaim::Change(const std::function<Result<void>()>& change) const {
  for (int attempt = 1;; ++attempt) {
    RETURN_IF_ERROR(Check());
    const auto done = change();
    if (done || !IsOpen(done.error()) || attempt == kAttempts) return done;
    RETURN_IF_ERROR(Wait(kFirstPause * (1 << attempt)));
  }
}

Result<void> HeldClaim::AbortUploads(std::span<const s3::UploadInfo> uploads) const {
  return InBatches(uploads, kAbortedAtOnce, [&](std::span<const s3::UploadInfo> batch) {
    return Change([&] { return series_.bucket().AbortMultipartUploads(batch, interrupted_); });
  });
}

// An object that the service refuses to delete delays no other one.
Result<void> HeldClaim::DeleteVersions(std::span<const s3::ObjectVersion> versions) const {
  Result<void> refused;
  RETURN_IF_ERROR(InBatches(versions, s3::kMaxDeletedKeys, [&](std::span<const s3::ObjectVersion> batch) {
    auto done = Change([&] { return series_.bucket().DeleteVersions(batch, interrupted_, {.once = true}); });
    if (done || done.error().path.empty()) return done;
    if (refused) refused = std::move(done);
    return Result<void>();
  }));
  return refused;
}

Result<void> HeldClaim::DeleteObjects(std::span<const std::string> keys) const {
  std::vector<s3::ObjectVersion> objects;
  for (const std::string& key : keys) objects.push_back({.key = key});
  return DeleteVersions(objects);
}

Result<void> HeldClaim::DeleteManifest(bool* kept) const {
  return Change([&]() -> Result<void> {
    ASSIGN_OR_RETURN(const bool marks,
                     series_.bucket().DeleteObject(series_.ManifestKey(version_), interrupted_, {.once = true}));
    if (kept != nullptr && marks) *kept = true;
    return {};
  });
}

Result<void> HeldClaim::Release() {
  const std::string key = series_.ClaimKey(version_);
  s3::DeleteOptions options{.if_match = held_.etag, .once = true};
  for (int attempt = 1;; ++attempt) {
    ASSIGN_OR_RETURN(const auto found, Find());
    if (!found && attempt > 1) return {};
    if (!found || *found != held_) return Lost(found);
    const auto done = series_.bucket().DeleteObject(key, interrupted_, options);
    if (done) return {};
    if (RefusesCondition(done.error()) && !options.if_match.empty()) {
      options.if_match.clear();
    } else if (!IsOpen(done.error()) || attempt == kAttempts) {
      return done.error();
    }
    RETURN_IF_ERROR(Wait(kFirstPause * (1 << attempt)));
  }
}

Result<void> HeldClaim::Wait(milliseconds time) const {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
    if (interrupted_ && interrupted_()) return ErrorCode::kCancelled;
    std::this_thread::sleep_for(std::min(milliseconds(100), time));
  }
  return {};
}

}  // namespace weightfs::remote
