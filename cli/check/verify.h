// SPDX-License-Identifier: Apache-2.0
// The parts of `weightfs verify`: stores that are not mounted, and what is on mounts.
#pragma once

#include "cli/bucket/s3_options.h"

namespace weightfs::cli {

struct VerifyArguments {
  std::vector<std::string> targets;
  bool catalog = false, repair = false, json = false;
  std::string rate, state;  // of reads through a mount
  S3Arguments s3;
};

// Each prints its report, and returns the exit code: those of fsck(8), added together.
int VerifyStore(const VerifyArguments& arguments, const std::string& store);
int VerifyOnMounts(const VerifyArguments& arguments, const std::vector<std::string>& paths);

}  // namespace weightfs::cli
