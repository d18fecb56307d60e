// SPDX-License-Identifier: Apache-2.0
#include "remote/push_claim.h"

#include <algorithm>

#include "common/make_error.h"
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
  return {.push = manifest_.push,
          .source = manifest_.source,
          .created_ns = UtcNowNs(),
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

// A claim that exists may be our own: of an interrupted push, or of an attempt whose answer was lost. One that was
// taken over is replaced again, because the program that did so may still be deleting.
Result<void> PushClaim::Take() {
  ASSIGN_OR_RETURN(auto found, held_.Find());
  if (!found) {
    ASSIGN_OR_RETURN(const bool made, Make());
    if (made) return CheckConditions();
    ASSIGN_OR_RETURN(found, held_.Find());
    if (!found) return Error{ErrorCode::kBusy, url() + ": another push or prune is ending there; repeat this one"};
  }
  const Claim& claim = found->claim;
  const bool ours = claim.push == manifest_.push;
  const Result<void> stored_alike = ours ? CheckStorage(claim) : Result<void>();
  if (ours && stored_alike) {
    if (claim.taken_over) return TakeOver(*found);
    held_.Hold(std::move(*found));
    return CheckConditions();
  }
  if (options_.take_over || IsEarlier(claim)) return TakeOver(*found);
  if (!stored_alike) return stored_alike;
  if (claim.removing) {
    return MakeError(
        ErrorCode::kBusy,
        "{}: a prune removes this version since {}; let it finish, or run weightfs prune again if it was killed", url(),
        FormatUtc(claim.created_ns));
  }
  return MakeError(
      ErrorCode::kBusy,
      "{}: another push began this version, {}; let it finish, or replace it with --take-over if it has ended", url(),
      found->damaged() ? "with a damaged claim" : Origin(claim));
}

// Returns true if the claim is made. What is there without a claim is not from a push of ours.
Result<bool> PushClaim::Make() {
  const std::string prefix = series_.Prefix(manifest_.version);
  ASSIGN_OR_RETURN(const auto listing, series_.bucket().ListObjects({.prefix = prefix, .limit = kMaximumObjects}));
  ASSIGN_OR_RETURN(const auto uploads, series_.bucket().ListMultipartUploads(prefix));
  const bool found = !listing.entries.empty() || !uploads.empty();
  const bool is_stale = std::ranges::any_of(listing.entries, [&](const s3::ObjectInfo& object) {
    return object.key == series_.ManifestKey(manifest_.version);
  });
  const Claim ours = Ours(/*taken_over=*/found);
  Claim first = ours;
  // With our claim, a manifest of the same source would be that of a complete version. So it is removed as by a prune.
  if (is_stale) {
    first.push = RandomId();
    first.removing = true;
  }
  const auto made = held_.Replace(first);
  if (!made && made.error().code == ErrorCode::kBusy) return false;
  RETURN_IF_ERROR(made);
  trusts_objects_ = is_new_ = !found;
  if (is_stale) {
    RETURN_IF_ERROR(held_.DeleteManifest());
    RETURN_IF_ERROR(held_.Replace(ours));
  }
  return true;
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
  return MakeError(
      ErrorCode::kInvalid,
      "{}: this push was interrupted, and was begun with{}: repeat that, or send everything again with --take-over",
      url(), begun);
}

// The claim alone keeps two pushes apart, so the service must refuse another one. Once it may be gone, by a prune.
Result<void> PushClaim::CheckConditions() const {
  const s3::PutOptions options{.if_none_match = true, .guard = held_.guard()};
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const auto again = series_.bucket().PutObject(key(), held_.held()->text, options);
    if (!again && again.error().code == ErrorCode::kBusy) RETURN_IF_ERROR(held_.Check());
    if (!again) return again.error().code == ErrorCode::kExists ? Result<void>() : again.error();
  }
  return MakeError(ErrorCode::kNotSupported,
                   "{}: the service ignores If-None-Match, so two pushes of one version would mix their files; use a "
                   "newer release of it, or another one",
                   url());
}

Result<void> PushClaim::TakeOver(const StoredClaim& former) {
  const bool own = former.claim.push == manifest_.push;
  Claim ours = Ours(/*taken_over=*/true);
  ours.take = RandomId();
  ours.replaces = former.claim.replaces;
  if (ours.replaces.empty() && !own && !IsEarlier(former.claim)) ours.replaces = former.claim.push;
  if (ours.replaces == manifest_.push) ours.replaces.clear();
  trusts_objects_ = is_new_ = false;
  held_.Hold(former);
  RETURN_IF_ERROR(held_.Replace(ours));
  RETURN_IF_ERROR(CheckConditions());
  const auto existing = series_.LoadManifest(manifest_.version);
  if (!existing && existing.error().code != ErrorCode::kNotFound && existing.error().code != ErrorCode::kCorrupt) {
    return existing.error();
  }
  if (existing && existing->push == ours.replaces) {
    // Without this the version is complete, too, and only says who has tried to replace it.
    if (former.claim.push == ours.replaces) RETURN_IF_ERROR(held_.Replace(former.claim));
    return MakeError(ErrorCode::kExists, "{}: was completed meanwhile, {}", url(), Origin(former.claim));
  }
  const bool has_others = !own || !ours.replaces.empty();
  if (!std::exchange(ours.replaces, {}).empty()) RETURN_IF_ERROR(held_.Replace(ours));
  RETURN_IF_ERROR(held_.DeleteManifest());
  if (!has_others) return {};
  // A push that goes on compares its claim within this time.
  RETURN_IF_ERROR(held_.Wait(options_.claim_check + options_.claim_check / 2));
  return RemoveObjects();
}

Result<void> PushClaim::RemoveObjects() const {
  const std::string prefix = series_.Prefix(manifest_.version);
  ASSIGN_OR_RETURN(const auto uploads, series_.bucket().ListMultipartUploads(prefix));
  RETURN_IF_ERROR(held_.AbortUploads(uploads));
  ASSIGN_OR_RETURN(const auto listing, series_.bucket().ListObjects({.prefix = prefix, .limit = kMaximumObjects}));
  std::vector<s3::ObjectVersion> others;
  for (const s3::ObjectInfo& object : listing.entries) {
    if (object.key != key()) others.push_back({.key = object.key});
  }
  return held_.DeleteObjects(others);
}

}  // namespace weightfs::remote
