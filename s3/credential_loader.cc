// SPDX-License-Identifier: Apache-2.0
#include "s3/credential_loader.h"

#include <utility>

#include "common/result.h"
#include "common/start_thread.h"

namespace weightfs::s3 {

Result<std::unique_ptr<CredentialLoader>> CredentialLoader::Create(std::unique_ptr<CredentialProvider> provider,
                                                                   std::function<void()> loaded) {
  std::unique_ptr<CredentialLoader> loader(new CredentialLoader(std::move(provider), std::move(loaded)));
  ASSIGN_OR_RETURN(loader->thread_, StartThread("s3-credentials", [self = loader.get()] { self->Run(); }));
  return loader;
}

CredentialLoader::~CredentialLoader() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  provider_->Cancel();
  if (thread_.joinable()) thread_.join();
}

void CredentialLoader::Start() {
  {
    MutexLock lock(mutex_);
    wanted_ = true;
  }
  changed_.notify_all();
}

std::optional<Error> CredentialLoader::TakeFailure() {
  MutexLock lock(mutex_);
  return std::exchange(failure_, std::nullopt);
}

void CredentialLoader::Run() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (!wanted_) {
      changed_.wait(lock.native());
      continue;
    }
    lock.Unlock();
    auto loaded = provider_->Get();
    lock.Lock();
    wanted_ = false;
    failure_ = loaded ? std::nullopt : std::optional<Error>(std::move(loaded).error());
    lock.Unlock();
    loaded_();
    lock.Lock();
  }
}

}  // namespace weightfs::s3
