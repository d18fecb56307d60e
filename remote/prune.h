// SPDX-License-Identifier: Apache-2.0
// Removes old versions from a bucket.
#pragma once

#include "remote/series.h"

namespace weightfs::remote {

struct PruneOptions {
  size_t keep = 1;              // complete versions, the greatest ones; at least 1
  uint64_t up_to = UINT64_MAX;  // greater versions are not looked at
  // Complete versions of later publications, since the epoch, are neither removed nor counted. Of a version that was
  // pushed without a publication, the time of the push counts.
  int64_t until_ns = INT64_MAX;
  // A version without a manifest is removed if nothing has changed in it for so long: its push is not running any more.
  std::chrono::seconds unfinished_after = std::chrono::hours(7 * 24);
  // Also delete the old versions of objects that a bucket with versioning keeps, of what this call and earlier ones
  // removed. Without it, such a bucket frees no space.
  bool all_versions = false;
  bool dry_run = false;  // report what would be removed
};

struct PrunedVersion {
  uint64_t version = 0;
  bool unfinished = false;
  uint64_t objects = 0;  // those of weightfs included; with `all_versions` their old versions, too
  uint64_t bytes = 0;    // of these objects
  uint64_t uploads = 0;  // unfinished multipart uploads
};

struct PruneReport {
  std::vector<PrunedVersion> removed;  // the greatest first
  std::vector<uint64_t> kept;          // complete, the greatest first
  // They have a manifest that no reader accepts, because it is damaged or has no claim. They are kept, and not counted.
  std::vector<uint64_t> damaged;
  std::vector<uint64_t> unfinished;    // without a manifest, and too young to be removed
  bool leaves_old_versions = false;    // the bucket has kept what was deleted, and has freed no space
  std::vector<uint64_t> foreign;       // with objects, but neither a manifest nor a claim: not made by weightfs, kept
  std::vector<Error> errors;           // one for each version that could not be examined or removed; each one full line
};

// Removes abandoned versions, and all complete ones except the greatest `keep` that can be read. First it replaces the
// claim of a version by one with `removing`: from then on the version does not exist, and a push of it ends with kBusy.
// It deletes the manifest next, and the claim last, so that a later call continues an interrupted one, whatever that
// call keeps. It deletes only objects below PREFIX/NAME/<version>/, each request after a comparison of the claim. A
// version that cannot be removed, or that another program takes meanwhile, delays no other one. Fails, with one full
// line, only with the errors of s3::Client for a service that does not answer, and with kCancelled; the versions before
// may have been removed by then.
Result<PruneReport> Prune(const Series& series, const PruneOptions& options);

}  // namespace weightfs::remote
