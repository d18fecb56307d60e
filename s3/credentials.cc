// SPDX-License-Identifier: Apache-2.0
#include "s3/credentials.h"

#include <utility>

#include "common/result.h"
#include "s3/credential_sources.h"

namespace weightfs::s3 {
namespace {

constexpr std::chrono::minutes kRenewBefore{5};
constexpr std::chrono::seconds kMargin{10};  // a request signed just before the end must still arrive in time

}  // namespace

CredentialProvider::CredentialProvider(const Settings& settings, Environment environment)
    : sources_(std::make_unique<CredentialSources>(settings, std::move(environment))) {}

CredentialProvider::CredentialProvider(Credentials credentials) : current_(std::move(credentials)) {}

CredentialProvider::~CredentialProvider() = default;

bool CredentialProvider::IsFreshLocked(Time now) const {
  return current_ && (sources_ == nullptr || !current_->expires || now + kRenewBefore < *current_->expires);
}

bool CredentialProvider::IsValidLocked(Time now) const {
  return current_ && (sources_ == nullptr || !current_->expires || now + kMargin < *current_->expires);
}

Result<Credentials> CredentialProvider::Get() {
  MutexLock lock(mutex_);
  while (loading_) loaded_.wait(lock.native());
  if (IsFreshLocked(std::chrono::system_clock::now())) return *current_;
  if (sources_ == nullptr) return Error{ErrorCode::kAccess, "the service rejected the S3 credentials; give others"};
  loading_ = true;
  lock.Unlock();
  auto loaded = sources_->Load();
  lock.Lock();
  loading_ = false;
  loaded_.notify_all();
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

void CredentialProvider::Cancel() {
  if (sources_ != nullptr) sources_->Cancel();
}

}  // namespace weightfs::s3
