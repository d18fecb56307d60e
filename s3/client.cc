// SPDX-License-Identifier: Apache-2.0
#include "s3/client.h"

#include <unistd.h>

#include "common/result.h"
#include "s3/client_loop.h"

namespace weightfs::s3 {
namespace {

constexpr std::chrono::milliseconds kInterruptPoll{100};

Result<void> CheckSettings(const Settings& settings) {
  if (!settings.endpoint.empty()) RETURN_IF_ERROR(CheckEndpoint(settings.endpoint));
  if (settings.connections == 0 || settings.attempts == 0 || settings.stall_timeout_s == 0 ||
      settings.connect_timeout_s == 0) {
    return Error{ErrorCode::kInvalid, "the number of S3 connections or attempts, or a timeout, is 0"};
  }
  if (!settings.ca_bundle.empty() && access(settings.ca_bundle.c_str(), R_OK) != 0) {
    return SystemError(settings.ca_bundle, "cannot read the certificates");
  }
  return {};
}

// The result of a request whose thread waits. That thread and the callback share it, because either may be the last.
struct Waiting {
  Mutex mutex;
  std::condition_variable done;
  std::optional<Result<Response>> result GUARDED_BY(mutex);
};

}  // namespace

Result<std::unique_ptr<Client>> Client::Create(const Settings& settings,
                                               std::unique_ptr<CredentialProvider> credentials) {
  RETURN_IF_ERROR(CheckSettings(settings));
  if (credentials == nullptr) credentials = std::make_unique<CredentialProvider>(settings);
  ASSIGN_OR_RETURN(auto loop, ClientLoop::Create(settings, std::move(credentials)));
  return loop;
}

Result<Response> Client::Send(Request request, const Interrupted& interrupted) {
  const auto waiting = std::make_shared<Waiting>();
  const auto id = Start(std::move(request), [waiting](Result<Response> result) {
    MutexLock lock(waiting->mutex);
    waiting->result = std::move(result);
    waiting->done.notify_all();
  });
  bool cancelled = false;
  MutexLock lock(waiting->mutex);
  while (!waiting->result) {
    if (!interrupted || cancelled) {
      waiting->done.wait(lock.native());
      continue;
    }
    waiting->done.wait_for(lock.native(), kInterruptPoll);
    if (waiting->result) break;
    lock.Unlock();
    cancelled = interrupted();
    if (cancelled) Cancel(id);
    lock.Lock();
  }
  return std::move(*waiting->result);
}

}  // namespace weightfs::s3
