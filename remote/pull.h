// SPDX-License-Identifier: Apache-2.0
// Copies a version from a bucket into a directory.
#pragma once

#include "client/handle.h"
#include "client/publication.h"
#include "remote/pull_plan.h"

namespace weightfs::remote {

struct PullOptions {
  std::vector<std::string> files = {};    // see PlanPull
  std::vector<SliceRequest> slices = {};  // see PlanPull
  // Publishes the new directory at the end, with the version's number, even if it has lost its name to another one
  // meanwhile. Needs a weightfs mount, which is checked first.
  bool publish = false;
  client::Progress progress = {};                          // bytes downloaded; on the calling thread
  std::function<void(const std::string& line)> warn = {};  // about lost attributes, and links that lead out
};

struct PullReport {
  uint64_t version = 0;
  uint64_t files = 0;
  uint64_t bytes = 0;          // of the files
  uint64_t downloaded = 0;     // bytes; with slices, another number
  uint64_t fetched_again = 0;  // parts that differed from their checksums
  std::optional<client::Publication> published = {};
};

// Returns the manifest of a version, or of the greatest one. kNotFound, with the next step, if there is none.
Result<Manifest> FindVersion(const Series& series, std::optional<uint64_t> version);

// Copies the version of the manifest into `directory`, which must not exist, or be empty; its parent must exist. The
// directory appears in one step, complete, verified and durable, or not at all: then everything is as before. A process
// that is killed leaves a temporary directory `.NAME.weightfs-pull-XXXXXXXX` beside it, which the next pull to the same
// directory removes. Several pulls may run at once, also to the same directory: one succeeds. Errors are one full line:
// those of PullDirectory, PlanPull and Download; kNoSpace before anything is downloaded, if there is too little; and
// those of client::Publish, after which the directory is complete but not published.
Result<PullReport> Pull(const Series& series, const Manifest& manifest, const std::string& directory,
                        const PullOptions& options = {});

}  // namespace weightfs::remote
