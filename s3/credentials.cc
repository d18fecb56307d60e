// SPDX-License-Identifier: Apache-2.0
#include "s3/credentials.h"

#include "s3/credential_sources.h"

namespace weightfs::s3 {
namespace {

constexpr std::chrono::minutes kRenewBefore{5};
constexpr std::chrono::seconds kMargin{10};  // a request signed just before the end must still arrive in time
constexpr std::chrono::seconds kRenewalInterval{30};

}  // namespace

CredentialProvider::CredentialProvider(const Settings& settings, Environment environment)
    : settings_(settings), environment_(std::move(environment)) {}

bool CredentialProvider::IsValidLocked(std::chrono::seconds within) const {
  return current_ && (!current_->expires || std::chrono::system_clock::now() + within < *current_->expires);
}

Result<Credentials> CredentialProvider::Get(const Interrupted& interrupted) {
  MutexLock lock(mutex_);
  for (bool waited = false;; waited = true) {
    if (IsValidLocked(kRenewBefore)) return *current_;
    // Credentials that are still valid are renewed now and then: their source may have no others yet.
    const bool renews = !loading_ && std::chrono::steady_clock::now() >= next_renewal_;
    if (IsValidLocked(kMargin) && !renews) return *current_;
    if (waited && !loading_ && failure_ && failure_->code != ErrorCode::kCancelled) return *failure_;
    if (!loading_) break;
    loaded_.wait_for(lock.native(), kInterruptionPoll);
    lock.Unlock();
    if (interrupted && interrupted()) return ErrorCode::kCancelled;
    lock.Lock();
  }
  loading_ = true;
  next_renewal_ = std::chrono::steady_clock::now() + kRenewalInterval;
  lock.Unlock();
  auto loaded = LoadCredentials(settings_, environment_, interrupted);
  lock.Lock();
  loading_ = false;
  loaded_.notify_all();
  failure_ = loaded ? std::nullopt : std::optional(loaded.error());
  if (loaded) {
    current_ = *std::move(loaded);
    if (!IsValidLocked(kMargin)) current_->expires.reset();  // the service decides: this machine's clock may be wrong
  }
  return IsValidLocked(kMargin) ? Result<Credentials>(*current_) : *failure_;
}

void CredentialProvider::Invalidate(const Credentials& rejected) {
  MutexLock lock(mutex_);
  const bool is_current = current_ && current_->access_key == rejected.access_key &&
                          current_->secret_key == rejected.secret_key &&
                          current_->session_token == rejected.session_token;
  if (is_current) current_.reset();
}

}  // namespace weightfs::s3
