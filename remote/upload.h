// SPDX-License-Identifier: Apache-2.0
// Sends the files of one version, and their checksums. Private to remote/.
#pragma once

#include <set>

#include "remote/local_tree.h"
#include "remote/series.h"

namespace weightfs::remote {

struct SentObject {
  uint64_t size = 0;
  std::string etag = {};  // as the service writes it; may be empty
  // `of`: the ETag that it should have; empty: unknown. Not every response quotes it.
  bool Is(uint64_t wanted, std::string_view of) const;
};

// What an earlier attempt of the same push has left in the bucket.
struct Leftovers {
  std::map<std::string, SentObject> objects;                // by key
  std::map<std::string, std::vector<std::string>> uploads;  // key → ids of unfinished uploads
};

struct UploadOptions {
  std::function<void(uint64_t done)> progress = {};
  std::function<Result<void>()> check = {};  // called now and then; its error ends the upload
  s3::GuardPtr guard = {};                   // of the requests that write an object
  std::string storage_class = {};            // of the files; empty: the bucket's
};

// What was sent, also after an error.
struct Uploaded {
  std::vector<Sha256> slices;  // of each slice of checksums
  uint64_t sent_bytes = 0;
  // The ETags of the objects that are there, by their keys, as far as the service has named them.
  std::map<std::string, std::string> etags;
  // Ids of uploads that the service does not complete. The error is kAgain then: without them it may succeed.
  std::set<std::string> abandoned;
};

// Sends everything but the manifest, and returns when no request is in progress any more. The calling thread reads the
// files; others, one for each connection, send.
Result<void> Upload(const Series& series, uint64_t version, const LocalTree& tree, const Leftovers& leftovers,
                    const UploadOptions& options, Uploaded* uploaded);

}  // namespace weightfs::remote
