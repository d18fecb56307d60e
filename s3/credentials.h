// SPDX-License-Identifier: Apache-2.0
// The keys that sign requests, from the places where AWS's programs look for them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "common/mutex.h"
#include "s3/settings.h"

namespace weightfs::s3 {

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
// Thread-safe, except that one thread at a time may call Get. No lock is held meanwhile; Cached() does not wait for it.
class CredentialProvider {
 public:
  explicit CredentialProvider(const Settings& settings, Environment environment = ProcessEnvironment());
  // Always the same credentials.
  explicit CredentialProvider(Credentials credentials);
  CredentialProvider(const CredentialProvider&) = delete;
  CredentialProvider& operator=(const CredentialProvider&) = delete;

  // Returns credentials that do not expire within five minutes, or, if they cannot be renewed yet, some that are still
  // valid. May read files, run credential_process or ask a metadata service: up to a few seconds, and up to a minute
  // for a process. Fails with kAccess and one full line that names every place where it looked.
  Result<Credentials> Get();

  // Returns the credentials of the last Get while they are valid. Never blocks.
  std::optional<Credentials> Cached() const;

  // True if Get would load credentials: there are none, or they expire within five minutes. Never blocks.
  bool NeedsLoad() const;

  // Drops `rejected` if these are the current credentials, so that the next Get loads others. For a service that
  // reports expired credentials.
  void Invalidate(const Credentials& rejected);

  // Makes a Get that is loading, and all later ones that must load, fail soon with kCancelled.
  void Cancel() { cancelled_.store(true); }

 private:
  using Time = std::chrono::system_clock::time_point;
  bool IsFreshLocked(Time now) const REQUIRES(mutex_);
  bool IsValidLocked(Time now) const REQUIRES(mutex_);

  const std::optional<Settings> settings_;  // none: fixed credentials
  const Environment environment_;
  std::atomic<bool> cancelled_ = false;
  mutable Mutex mutex_;
  std::optional<Credentials> current_ GUARDED_BY(mutex_);
};

// A thread that loads credentials, so that the transfers of the client's thread go on meanwhile. Thread-safe.
class CredentialLoader {
 public:
  // Calls `loaded` on its thread after each load. Fails with kAgain if no thread can be started.
  static Result<std::unique_ptr<CredentialLoader>> Create(std::unique_ptr<CredentialProvider> provider,
                                                          std::function<void()> loaded);
  // Cancels a load.
  ~CredentialLoader();
  CredentialLoader(const CredentialLoader&) = delete;
  CredentialLoader& operator=(const CredentialLoader&) = delete;

  CredentialProvider& provider() { return *provider_; }
  // Starts a load, unless one is under way or waits.
  void Start();
  // Returns the error of the last load, once; none if it succeeded or has not ended.
  std::optional<Error> TakeFailure();

 private:
  CredentialLoader(std::unique_ptr<CredentialProvider> provider, std::function<void()> loaded)
      : provider_(std::move(provider)), loaded_(std::move(loaded)) {}
  void Run();

  const std::unique_ptr<CredentialProvider> provider_;
  const std::function<void()> loaded_;
  Mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::optional<Error> failure_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace weightfs::s3
