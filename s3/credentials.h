// SPDX-License-Identifier: Apache-2.0
// The keys that sign requests, from the places where AWS's programs look for them.
#pragma once

#include <chrono>
#include <memory>

#include "common/mutex.h"
#include "s3/settings.h"

namespace weightfs::s3 {

// Called every 100 ms by a waiting thread. Return true to end the wait.
using Interrupted = std::function<bool()>;

// Never logged, and in no message; `access_key` is not secret and may be in messages.
struct Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token = {};  // of temporary credentials
  std::optional<std::chrono::system_clock::time_point> expires = {};
};

// Finds credentials, keeps them, and loads them again five minutes before they expire. The first of these places that
// has some is used; a place that has them but fails (a file with a wrong line, a process that exits with an error, an
// unreachable container endpoint) is an error, not a reason to look further:
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN (not if a profile was named in an option)
//   2. the profile in the shared files: its keys, or its credential_process
//   3. AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, through STS
//   4. AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI, with AWS_CONTAINER_AUTHORIZATION_TOKEN[_FILE]
//   5. the metadata service of an EC2 instance, version 2 (unless AWS_EC2_METADATA_DISABLED=true)
//
// Thread-safe.
class CredentialProvider {
 public:
  explicit CredentialProvider(const Settings& settings, Environment environment = ProcessEnvironment());
  CredentialProvider(const CredentialProvider&) = delete;
  CredentialProvider& operator=(const CredentialProvider&) = delete;

  // Returns credentials that do not expire within five minutes, or, while they cannot be renewed, some that are still
  // valid. Those that have expired when they are loaded count as valid: this machine's clock may be wrong, and the
  // service says whether they have. May read files, run credential_process or ask a metadata service: up to a few
  // seconds, and up to a minute for a process. One thread loads at a time; others wait for it if there are no valid
  // credentials. Fails with kAccess and one full line that names every place where it looked, and with kCancelled soon
  // after `interrupted` returns true.
  Result<Credentials> Get(const Interrupted& interrupted = {}) EXCLUDES(mutex_);

  // Drops `rejected` if these are the current credentials, so that the next Get loads others. For a service that
  // reports expired credentials.
  void Invalidate(const Credentials& rejected) EXCLUDES(mutex_);

 private:
  // True if there are credentials that do not expire within this time.
  bool IsValidLocked(std::chrono::seconds within) const REQUIRES(mutex_);

  const Settings settings_;
  const Environment environment_;
  Mutex mutex_;
  std::condition_variable loaded_;
  bool loading_ GUARDED_BY(mutex_) = false;
  std::optional<Credentials> current_ GUARDED_BY(mutex_);
  std::optional<Error> failure_ GUARDED_BY(mutex_);  // of the last load
  std::chrono::steady_clock::time_point next_renewal_ GUARDED_BY(mutex_) = {};
};

// Runs `command` with /bin/sh and returns its standard output, at most 1 MiB. Its standard error is that of this
// process. Fails with kIo if it exits with an error or is not done after `timeout`, and with kCancelled soon after
// `interrupted` returns true; in both cases the command is killed. The error does not contain the output.
Result<std::string> ProcessOutput(const std::string& command, std::chrono::seconds timeout,
                                  const Interrupted& interrupted = {});

}  // namespace weightfs::s3
