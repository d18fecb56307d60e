// SPDX-License-Identifier: Apache-2.0
#include "remote/push_claim.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "common/printable.h"
#include "common/utc_time.h"

namespace weightfs::remote {
namespace {

std::string Origin(const Claim& claim) {
  return fmt::format("from {}, {}", claim.source, FormatUtc(claim.created_ns));
}

}  // namespace

Claim PushClaim::Ours(bool taken_over) const {
  const s3::Settings& settings = series_.bucket().client().settings();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.push = manifest_.push,
          .source = manifest_.source,
          .created_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
          .published_ns = manifest_.published_ns,
          .origin = origin_,
          .storage_class = options_.storage_class,
          .encryption = settings.encryption,
          .encryption_key = settings.encryption_key,
          .taken_over = taken_over};
}

// Both times are those of the store.
bool PushClaim::IsEarlier(const Claim& claim) const {
  return options_.replace_earlier && !origin_.empty() && claim.origin == Printable(origin_) &&
         claim.published_ns != 0 && claim.published_ns < manifest_.published_ns;
}

// A claim that exists may be our own: of an interrupted push, or of an attempt whose answer was lost.
Result<void> PushClaim::Take() {
  auto found = series_.LoadClaim(manifest_.version, options_.interrupted);
  if (!found && found.error().code == ErrorCode::kNotFound) {
    RETURN_IF_ERROR(Make());
    if (is_new_) return CheckConditions();
    found = series_.LoadClaim(manifest_.version, options_.interrupted);
  }
  if (!found && found.error().code != ErrorCode::kCorrupt) return found.error();
  const bool ours = found && found->push == manifest_.push;
  const Result<void> stored_alike = ours ? CheckStorage(*found) : Result<void>();
  if (ours && stored_alike) {
    trusts_objects_ = !found->taken_over;
    return CheckConditions();
  }
  if (options_.take_over || (found && IsEarlier(*found))) {
    RETURN_IF_ERROR(TakeOver(found ? std::optional(*found) : std::nullopt));
    return CheckConditions();
  }
  if (!stored_alike) return stored_alike;
  if (found && found->removing) {
    return Error{ErrorCode::kBusy,
                 fmt::format("{}: a prune removes this version since {}; let it finish, or run weightfs prune again if "
                             "it was killed",
                             url(), FormatUtc(found->created_ns))};
  }
  return Error{ErrorCode::kBusy,
               fmt::format("{}: another push began this version, {}; let it finish, or replace it with --take-over if "
                           "it has ended",
                           url(), found ? Origin(*found) : "with a damaged claim")};
}

// What is there without a claim is not from a push of ours.
Result<void> PushClaim::Make() {
  const std::string prefix = series_.Prefix(manifest_.version);
  ASSIGN_OR_RETURN(const auto listing,
                   series_.bucket().ListObjects({.prefix = prefix, .limit = kMaximumObjects}, options_.interrupted));
  ASSIGN_OR_RETURN(const auto uploads, series_.bucket().ListMultipartUploads(prefix, options_.interrupted));
  const bool found = !listing.objects.empty() || !uploads.empty();
  const auto put = series_.bucket().PutObject(key(), Ours(/*taken_over=*/found).Encode(), {.if_none_match = true},
                                              options_.interrupted);
  is_new_ = put && !found;
  return put || put.error().code == ErrorCode::kExists ? Result<void>() : put.error();
}

// The objects of one version are all sent with the same options.
Result<void> PushClaim::CheckStorage(const Claim& claim) const {
  const auto text = [](const Claim& of) {
    std::string options;
    if (!of.storage_class.empty()) options += " --storage-class " + Printable(of.storage_class);
    if (!of.encryption.empty()) options += " --sse " + Printable(of.encryption);
    if (!of.encryption_key.empty()) options += " --sse-kms-key-id " + Printable(of.encryption_key);
    return options.empty() ? std::string(" neither --storage-class nor --sse") : options;
  };
  const std::string begun = text(claim), now = text(Ours(/*taken_over=*/false));
  if (begun == now) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: this push was interrupted, and was begun with{}: repeat that, or send everything again "
                           "with --take-over",
                           url(), begun)};
}

// The claim alone keeps two pushes apart, so the service must refuse another one. Once it may be gone, by a prune.
Result<void> PushClaim::CheckConditions() const {
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const auto again = series_.bucket().PutObject(key(), Ours(/*taken_over=*/!trusts_objects_).Encode(),
                                                  {.if_none_match = true}, options_.interrupted);
    if (!again) return again.error().code == ErrorCode::kExists ? Result<void>() : again.error();
  }
  return Error{ErrorCode::kNotSupported,
               fmt::format("{}: the service ignores If-None-Match, so two pushes of one version would mix their files; "
                           "use a newer release of it, or another one",
                           url())};
}

Result<void> PushClaim::TakeOver(const std::optional<Claim>& former) {
  const s3::Bucket& bucket = series_.bucket();
  const std::string prefix = series_.Prefix(manifest_.version), manifest = series_.ManifestKey(manifest_.version);
  RETURN_IF_ERROR(bucket.PutObject(key(), Ours(/*taken_over=*/true).Encode(), {}, options_.interrupted));
  trusts_objects_ = is_new_ = false;
  RETURN_IF_ERROR(Check());
  const auto existing = series_.LoadManifest(manifest_.version, options_.interrupted);
  if (!existing && existing.error().code != ErrorCode::kNotFound && existing.error().code != ErrorCode::kCorrupt) {
    return existing.error();
  }
  const bool of_other = former && former->push != manifest_.push && !IsEarlier(*former);
  if (existing && of_other && former->Covers(*existing)) {
    RETURN_IF_ERROR(bucket.PutObject(key(), former->Encode(), {}, options_.interrupted));
    return Error{ErrorCode::kExists, fmt::format("{}: was completed meanwhile, {}", url(), Origin(*former))};
  }
  RETURN_IF_ERROR(bucket.DeleteObject(manifest, options_.interrupted));
  ASSIGN_OR_RETURN(const auto uploads, bucket.ListMultipartUploads(prefix, options_.interrupted));
  RETURN_IF_ERROR(bucket.AbortMultipartUploads(uploads, options_.interrupted));
  ASSIGN_OR_RETURN(const auto listing,
                   bucket.ListObjects({.prefix = prefix, .limit = kMaximumObjects}, options_.interrupted));
  std::vector<std::string> keys;
  for (const s3::ObjectInfo& object : listing.objects) {
    if (object.key != key()) keys.push_back(object.key);
  }
  return bucket.DeleteObjects(keys, options_.interrupted);
}

Result<void> PushClaim::Check() const {
  const auto found = series_.LoadClaim(manifest_.version, options_.interrupted);
  if (found && found->push == manifest_.push) return {};
  if (!found && found.error().code != ErrorCode::kNotFound) return found.error();
  const bool replaced = found && !found->removing;
  return Error{ErrorCode::kBusy,
               fmt::format("{}: was {} during this push, so this push has ended", url(),
                           replaced ? "taken over from " + found->source : std::string("removed by weightfs prune"))};
}

}  // namespace weightfs::remote
