// SPDX-License-Identifier: Apache-2.0
#include "s3/credentials.h"

#include "common/start_thread.h"
#include "s3/credential_sources.h"

namespace weightfs::s3 {
namespace {

constexpr std::chrono::minutes kRenewBefore{5};
constexpr std::chrono::seconds kMargin{10};  // a request signed just before the end must still arrive in time

}  // namespace

CredentialProvider::CredentialProvider(const Settings& settings, Environment environment)
    : settings_(settings), environment_(std::move(environment)) {}

CredentialProvider::CredentialProvider(Credentials credentials) : current_(std::move(credentials)) {}

bool CredentialProvider::IsFreshLocked(Time now) const {
  return current_ && (!settings_ || !current_->expires || now + kRenewBefore < *current_->expires);
}

bool CredentialProvider::IsValidLocked(Time now) const {
  return current_ && (!settings_ || !current_->expires || now + kMargin < *current_->expires);
}

Result<Credentials> CredentialProvider::Get() {
  MutexLock lock(mutex_);
  if (IsFreshLocked(std::chrono::system_clock::now())) return *current_;
  if (!settings_) return Error{ErrorCode::kAccess, "the service rejected the S3 credentials; give others"};
  lock.Unlock();
  auto loaded = LoadCredentials(*settings_, environment_, cancelled_);
  lock.Lock();
  const auto now = std::chrono::system_clock::now();
  if (loaded) {
    current_ = *loaded;
    if (IsValidLocked(now)) return loaded;
    return Error{ErrorCode::kAccess, "the S3 credentials have expired; renew them"};
  }
  if (IsValidLocked(now)) return *current_;
  return loaded;
}

std::optional<Credentials> CredentialProvider::Cached() const {
  MutexLock lock(mutex_);
  if (!IsValidLocked(std::chrono::system_clock::now())) return std::nullopt;
  return current_;
}

bool CredentialProvider::NeedsLoad() const {
  MutexLock lock(mutex_);
  return !IsFreshLocked(std::chrono::system_clock::now());
}

void CredentialProvider::Invalidate(const Credentials& rejected) {
  MutexLock lock(mutex_);
  const bool is_current = current_ && current_->access_key == rejected.access_key &&
                          current_->secret_key == rejected.secret_key &&
                          current_->session_token == rejected.session_token;
  if (is_current) current_.reset();
}

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
