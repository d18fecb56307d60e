// SPDX-License-Identifier: Apache-2.0
// The claim of a push, which keeps the pushes and prunes of one version apart. Private to remote/.
#pragma once

#include "remote/held_claim.h"
#include "remote/push.h"

namespace weightfs::remote {

// Externally synchronised. Errors are one full line: those of s3::Client, and the ones that the functions name.
class PushClaim {
 public:
  // All must outlive it. Of the manifest it takes what the claim has, too. `origin`: see Claim.
  PushClaim(const Series& series, const Manifest& manifest, const PushOptions& options, std::string origin)
      : series_(series),
        manifest_(manifest),
        options_(options),
        origin_(std::move(origin)),
        held_(series, manifest.version) {}

  // Makes the claim, continues the push that has made it before, or takes over that of another one if the options say
  // so. Errors: kBusy, kInvalid and kNotSupported as of Push, kExists as of TakeOver.
  Result<void> Take();
  // Ends the push or prune that has the claim `former`, and removes what another push has sent. The claim is replaced
  // first, and before the first deletion it says that the version is not complete, whatever is there: no interruption
  // leaves a complete version that lacks objects. kExists: the other push has completed the version meanwhile, and
  // keeps it. kBusy: `former` is not the claim any more.
  Result<void> TakeOver(const StoredClaim& former);
  // The holder changes through it what others may have written.
  const HeldClaim& held() const { return held_; }
  // True if PushOptions::replace_earlier replaces the version with this claim.
  bool IsEarlier(const Claim& claim) const;
  // False if objects and parts in the bucket may be those of others.
  bool trusts_objects() const { return trusts_objects_; }
  // True if Take has made the claim, and there was nothing before.
  bool is_new() const { return is_new_; }

 private:
  Claim Ours(bool taken_over) const;
  std::string key() const { return series_.ClaimKey(manifest_.version); }
  std::string url() const { return series_.url(manifest_.version); }
  Result<bool> Make();
  Result<void> RemoveObjects() const;
  Result<void> CheckConditions() const;
  Result<void> CheckStorage(const Claim& claim) const;

  const Series& series_;
  const Manifest& manifest_;
  const PushOptions& options_;
  const std::string origin_;
  HeldClaim held_;
  bool trusts_objects_ = true, is_new_ = false;
};

}  // namespace weightfs::remote
