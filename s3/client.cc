// SPDX-License-Identifier: Apache-2.0
#include "s3/client.h"

#include <unistd.h>

#include <thread>

#include "common/bytes.h"
#include "common/make_error.h"
#include "common/printable.h"
#include "common/result.h"
#include "s3/failure.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{200}, kMaxBackoff{20'000};
constexpr unsigned kBriefAttempts = 4;
constexpr unsigned kMaxRegionChanges = 2;
constexpr size_t kSignedBody = size_t{64} << 10;

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

Error Cancelled(const Request& request) {
  return MakeError(ErrorCode::kCancelled, "{} {}: cancelled", request.method, ToString(request.object));
}

bool IsTrue(const Interrupted& interrupted) { return interrupted && interrupted(); }

}  // namespace

// A request that is sent.
struct Client::Job {
  Transfer& transfer;
  const Request& request;
  const Interrupted& interrupted;
  Credentials credentials = {};  // of the current attempt
  std::string region = {};       // the same
  unsigned attempts = 0;
  bool clock_corrected = false, credentials_renewed = false;  // each is tried once
  unsigned region_changes = 0;
  Clock::time_point started = Clock::now(), begun = {};  // the request, its last attempt
  Clock::duration failed = {};                           // Settings::give_up_after_s
};

Result<std::unique_ptr<Client>> Client::Create(const Settings& settings,
                                               std::unique_ptr<CredentialProvider> credentials) {
  RETURN_IF_ERROR(CheckSettings(settings));
  if (credentials == nullptr) credentials = std::make_unique<CredentialProvider>(settings);
  return std::unique_ptr<Client>(new Client(settings, std::move(credentials)));
}

Client::Client(const Settings& settings, std::unique_ptr<CredentialProvider> credentials)
    : settings_(settings), credentials_(std::move(credentials)), rate_(settings.upload_rate) {}

Client::~Client() = default;

ClientStatistics Client::statistics() const {
  return {requests_.load(), retries_.load(), bytes_sent_.load(), bytes_received_.load()};
}

std::chrono::system_clock::time_point Client::ServiceTime() const {
  return std::chrono::system_clock::now() + date_error_.load();
}

Result<Response> Client::Send(const Request& request, const Interrupted& interrupted) {
  ASSIGN_OR_RETURN(auto transfer, TakeTransfer(request, interrupted));
  auto response = SendOn(*transfer, request, interrupted);
  MutexLock lock(mutex_);
  idle_.push_back(std::move(transfer));
  --taken_;
  free_.notify_one();
  return response;
}

Result<std::unique_ptr<Transfer>> Client::TakeTransfer(const Request& request, const Interrupted& interrupted) {
  MutexLock lock(mutex_);
  while (taken_ >= settings_.connections + (request.urgent ? 1 : 0)) {
    free_.wait_for(lock.native(), kInterruptionPoll);
    lock.Unlock();
    if (IsTrue(interrupted)) return Cancelled(request);
    lock.Lock();
  }
  std::unique_ptr<Transfer> transfer;
  if (idle_.empty()) {
    transfer = std::make_unique<Transfer>(settings_, rate_);
    if (!*transfer) return ErrorCode::kNoMemory;
  } else {
    transfer = std::move(idle_.back());
    idle_.pop_back();
  }
  ++taken_;
  return transfer;
}

Result<Response> Client::SendOn(Transfer& transfer, const Request& request, const Interrupted& interrupted) {
  using Remedy = Failure::Remedy;
  Job job{.transfer = transfer, .request = request, .interrupted = interrupted};
  for (;;) {
    ASSIGN_OR_RETURN(Attempt attempt, MakeAttempt(job));
    const auto failure = FindFailure(request, attempt, settings_);
    if (!failure) return Response{attempt.status, std::move(attempt.headers), std::move(attempt.body), job.attempts};
    const bool waits = failure->remedy == Remedy::kRetry || failure->remedy == Remedy::kRetryBriefly;
    const auto limit =
        failure->remedy == Remedy::kRetryBriefly ? std::min(kBriefAttempts, settings_.attempts) : settings_.attempts;
    job.failed += std::min<Clock::duration>(Clock::now() - job.begun, StallLimit(settings_, request));
    const auto pause = waits ? PauseBefore(job, *failure) : Clock::duration::zero();
    // An attempt of a request whose answer is slow may stall for longer than all attempts of another one.
    const bool in_time = job.failed + pause < GiveUpAfter(settings_, request);
    const bool repeats = waits ? job.attempts < limit && in_time : Repair(job, attempt, *failure);
    if (!repeats) return FinalError(job, *failure);
    if (waits) {
      job.failed += pause;
      // With the pause, during which nothing else would report it.
      Report(job, job.failed,
             fmt::format("{}; attempt {} of {} follows in {} s", failure->reason, job.attempts + 1, limit,
                         std::chrono::ceil<std::chrono::seconds>(pause).count()));
      RETURN_IF_ERROR(Pause(job, pause));
    }
    if (request.guard != nullptr) RETURN_IF_ERROR(CompareGuard(job));
  }
}

Result<Attempt> Client::MakeAttempt(Job& job) {
  const auto& request = job.request;
  if (settings_.sign) {
    auto credentials = credentials_->Get(job.interrupted);
    if (!credentials) return IsTrue(job.interrupted) ? Cancelled(request) : credentials.error();
    job.credentials = *std::move(credentials);
  }
  {
    MutexLock lock(mutex_);
    const auto found = regions_.find(request.object.bucket);
    job.region = found == regions_.end() ? settings_.region : found->second;
  }
  const auto url = MakeRequestUrl(settings_, job.region, request.object);
  ASSIGN_OR_RETURN(const auto headers, SignedHeaders(job, url));
  const auto query = CanonicalQuery(request.query);
  ++job.attempts;
  ++requests_;
  if (job.attempts > 1) ++retries_;
  job.begun = Clock::now();
  const auto look = [&] {
    if (!job.transfer.is_connected()) {
      Report(job, Clock::now() - job.begun,
             fmt::format("attempt {} of {} is not connected to the service yet", job.attempts, settings_.attempts));
    }
    return IsTrue(job.interrupted);
  };
  auto attempt = job.transfer.Run(request, url.origin + url.path + (query.empty() ? "" : "?" + query), headers, look);
  if (!attempt) return attempt.error().code == ErrorCode::kCancelled ? Cancelled(request) : attempt.error();
  bytes_sent_ += attempt->bytes_sent;
  bytes_received_ += attempt->bytes_received;
  if (const auto date = ParseHttpTime(std::string(attempt->header("date")))) {
    date_error_ = *date - std::chrono::system_clock::now();
  }
  return attempt;
}

// Returns all headers of the next attempt. They also contain the credentials, the region and the host, so that none of
// these can add a header of its own.
Result<Fields> Client::SignedHeaders(const Job& job, const RequestUrl& url) const {
  const auto& request = job.request;
  const auto fail = [&](ErrorCode code, std::string_view why) {
    return MakeError(code, "{} {}: {}", request.method, ToString(request.object), why);
  };
  auto headers = request.headers;
  if (settings_.requester_pays) headers.emplace_back("x-amz-request-payer", "requester");
  if (settings_.sign) {
    const bool covers_body = request.body.size() <= kSignedBody || request.method == "POST";
    const auto hash = covers_body ? Sha256Hex(TextOf(request.body)) : std::string(kUnsignedPayload);
    if (!hash) return fail(hash.error().code, hash.error().what);
    const SignedRequest input{request.method, url.host, url.path, request.query, headers, *hash, job.region};
    const auto added = Sign(input, job.credentials, std::chrono::system_clock::now() + clock_error_.load());
    if (!added) return fail(added.error().code, added.error().what);
    headers.insert(headers.end(), added->begin(), added->end());
  }
  headers.emplace_back("host", url.host);
  for (const auto& [name, value] : headers) {
    if (!HasLineBreak(name) && !HasLineBreak(value)) continue;
    return fail(ErrorCode::kInvalid, fmt::format("the header {} has a line break", Printable(name)));
  }
  return headers;
}

bool Client::Repair(Job& job, const Attempt& attempt, const Failure& failure) {
  switch (failure.remedy) {
    case Failure::Remedy::kCorrectClock: {
      const auto time = ParseHttpTime(std::string(attempt.header("date")));
      if (!time || std::exchange(job.clock_corrected, true)) return false;
      clock_error_ = *time - std::chrono::system_clock::now();
      return true;
    }
    case Failure::Remedy::kRenewCredentials:
      if (!settings_.sign || job.credentials.session_token.empty()) return false;
      if (std::exchange(job.credentials_renewed, true)) return false;
      credentials_->Invalidate(job.credentials);
      return true;
    case Failure::Remedy::kChangeRegion: {
      // Compared with the region of this attempt: another request may have changed that of the bucket meanwhile.
      if (failure.region == job.region || job.region_changes >= kMaxRegionChanges) return false;
      ++job.region_changes;
      MutexLock lock(mutex_);
      regions_[job.request.object.bucket] = failure.region;
      return true;
    }
    default: return false;
  }
}

Client::Clock::duration Client::PauseBefore(const Job& job, const Failure& failure) {
  const unsigned doublings = std::min(job.attempts - 1, 16U);
  const auto longest = std::min(kMaxBackoff, kFirstBackoff * (1U << doublings));
  MutexLock lock(mutex_);
  const auto jitter = milliseconds(std::uniform_int_distribution<milliseconds::rep>(0, longest.count())(random_));
  return failure.retry_after.value_or(milliseconds(0)) + jitter;
}

Result<void> Client::Pause(const Job& job, Clock::duration pause) const {
  const auto end = Clock::now() + pause;
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::min<Clock::duration>(end - Clock::now(), kInterruptionPoll));
    if (IsTrue(job.interrupted)) return Cancelled(job.request);
  }
  return {};
}

Result<void> Client::CompareGuard(Job& job) {
  const Request& request = job.request;
  const Guard& guard = *request.guard;
  const auto begun = Clock::now();
  const auto found = SendOn(job.transfer, {.object = {request.object.bucket, guard.key}}, job.interrupted);
  job.failed += Clock::now() - begun;
  const bool is_gone = !found && found.error().code == ErrorCode::kNotFound;
  if (found ? guard.body == found->body : is_gone && !guard.body) return {};
  if (!found && !is_gone && found.error().code != ErrorCode::kTooLarge) return found.error();
  return MakeError(ErrorCode::kBusy, "{} {}: not repeated, because {} has changed", request.method,
                   ToString(request.object), ToString({request.object.bucket, guard.key}));
}

void Client::Report(const Job& job, Clock::duration troubled, const std::string& what) {
  const std::chrono::seconds quiet(settings_.quiet_s);
  if (!settings_.on_retry || troubled < quiet) return;
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  if (now < next_report_) return;
  next_report_ = now + quiet;
  lock.Unlock();
  settings_.on_retry(fmt::format("{} {}: {}; it gives up after the last one or {} s", job.request.method,
                                 ToString(job.request.object), what, GiveUpAfter(settings_, job.request).count()));
}

Error Client::FinalError(const Job& job, const Failure& failure) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - job.started).count();
  auto text = fmt::format("{} {}: {}", job.request.method, ToString(job.request.object), failure.reason);
  if (job.attempts > 1) text += fmt::format(" ({} attempts in {} s)", job.attempts, seconds);
  if (!failure.advice.empty()) text += "; " + failure.advice;
  return {failure.code, std::move(text)};
}

}  // namespace weightfs::s3
