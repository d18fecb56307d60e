// SPDX-License-Identifier: Apache-2.0
// The places where credentials are looked for; credentials.h has their order.
#pragma once

#include <atomic>
#include <vector>

#include "s3/config_file.h"
#include "s3/credentials.h"

namespace weightfs::s3 {

// Not thread-safe, except Cancel.
class CredentialSources {
 public:
  CredentialSources(const Settings& settings, Environment environment)
      : settings_(settings), environment_(std::move(environment)) {}

  // Loads from the first place that has credentials. Blocks.
  Result<Credentials> Load();
  // Makes Load, now and later, fail with kCancelled.
  void Cancel() { cancelled_.store(true); }

 private:
  // Each returns no credentials if its place has none.
  using Found = Result<std::optional<Credentials>>;
  Found FromEnvironment();
  Found FromFiles();
  Found FromWebIdentity();
  Found FromContainer();
  Found FromInstance();

  Found FromSection(const ConfigSection* section, const std::string& file);
  Result<Credentials> FromProcess(const std::string& command);

  const Settings settings_;
  const Environment environment_;
  std::vector<std::string> looked_at_;  // by this Load, for the error
  std::atomic<bool> cancelled_ = false;
};

}  // namespace weightfs::s3
