// SPDX-License-Identifier: Apache-2.0
// Copies a directory into a bucket, as a version that exists completely or not at all.
#pragma once

#include "client/handle.h"
#include "remote/series.h"

namespace weightfs::remote {

struct PushOptions {
  std::optional<uint64_t> version = std::nullopt;  // default: that of the publication, or the time of the latest change
  // Replace an unfinished push that is not of this source, a damaged manifest, and one whose push has lost its claim.
  bool take_over = false;
  // Of a publication: replace what an earlier one at the same place (Claim::origin) has pushed, or begun to push.
  bool replace_earlier = false;
  bool verify = false;  // read everything back before the version exists; if it exists and is damaged, send it again
  std::string storage_class = {};                  // of the files; empty: the bucket's
  // How often a push that sends compares its claim. One that takes over waits longer before it deletes.
  std::chrono::milliseconds claim_check{2000};
  // Called with bytes sent (or found in the bucket) and the total, on the calling thread.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

struct PushReport {
  uint64_t version = 0;
  uint64_t files = 0, bytes = 0;  // of the version
  uint64_t sent_bytes = 0;        // of data, in this call
  bool existed = false;           // this push had been completed before
  std::string damage = {};        // ... but `verify` has found this, and everything was sent again
};

// Pushes an open directory of any filesystem, or a single file (OpenSource). A directory of a weightfs mount is read
// through leases, which are snapshots whose blocks are verified. The version appears when its manifest is written,
// last; before, everything is there, and the source has been compared with its state at the beginning. Other users may
// rename and replace files meanwhile: only files that were listed are read. `path` is the source's name in messages.
//
// A push that was interrupted is continued by calling Push again with the same unchanged source: what is in the bucket
// is not sent again, unless something was there before the first call. The id of a push is that of the publication, or
// derived from the state of the files; nobody else has it. Uses at most 256 MiB of memory for data, or one part if that
// is larger (files above 2 TiB). Blocks. Errors, each one full line; the version then does not exist, unless it did
// before:
//   kExists     the version exists, and comes from another push
//   kBusy       another push has begun this version (the next step: --take-over), or has taken it over
//   kNotSupported  the service has no conditional writes (If-None-Match)
//   kTooLarge   the manifest would have more than kMaximumManifest bytes
//   kStale      a file changed during the push
//   kInvalid    a file cannot be in a bucket (ScanTree, and keys over 1,024 bytes); a version that is a time by
//               default, in a series with others; another version than that of the publication; version 0; another
//               storage class or encryption than that of the interrupted push
//   kCorrupt    what was sent arrived damaged three times (`verify`), or a file is damaged here
//   kCancelled  the bucket is interrupted
//   others      of s3::Client, and of reading the files
Result<PushReport> Push(const Series& series, int source, const std::string& path, const PushOptions& options);

// Compares all objects of an existing version with its checksums. kCorrupt: with key and offset of the first
// difference.
Result<void> VerifyVersion(const Series& series, const Manifest& manifest, const client::Progress& progress);

}  // namespace weightfs::remote
