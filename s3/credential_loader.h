// SPDX-License-Identifier: Apache-2.0
// A thread that loads credentials, so that the transfers of the client's thread go on meanwhile.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "common/error.h"
#include "common/mutex.h"
#include "s3/credentials.h"

namespace weightfs::s3 {

// Thread-safe.
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
