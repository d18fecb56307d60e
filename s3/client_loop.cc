// SPDX-License-Identifier: Apache-2.0
#include "s3/client_loop.h"

#include <iterator>

#include "common/bytes.h"
#include "common/make_error.h"
#include "common/printable.h"
#include "common/start_thread.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{200}, kMaxBackoff{20'000};
constexpr unsigned kBriefAttempts = 4;
constexpr unsigned kMaxRegionChanges = 2;
constexpr size_t kSignedBody = size_t{64} << 10;
constexpr std::chrono::seconds kRenewalInterval{30};
constexpr int kIdlePollMs = 1000, kPausedPollMs = 10;

Error Cancelled(const Request& request) {
  return MakeError(ErrorCode::kCancelled, "{} {}: cancelled", request.method, ToString(request.object));
}

}  // namespace

Result<std::unique_ptr<ClientLoop>> ClientLoop::Create(const Settings& settings,
                                                       std::unique_ptr<CredentialProvider> credentials) {
  InitializeCurl();
  std::unique_ptr<ClientLoop> loop(new ClientLoop(settings));
  if (loop->multi_ == nullptr) return ErrorCode::kNoMemory;
  curl_multi_setopt(loop->multi_.get(), CURLMOPT_MAXCONNECTS, static_cast<long>(settings.connections));
  if (settings.sign) {
    auto wake_up = [multi = loop->multi_.get()] { curl_multi_wakeup(multi); };
    ASSIGN_OR_RETURN(loop->loader_, CredentialLoader::Create(std::move(credentials), std::move(wake_up)));
  }
  ASSIGN_OR_RETURN(loop->thread_, StartThread("s3-client", [self = loop.get()] { self->Run(); }));
  return loop;
}

ClientLoop::ClientLoop(const Settings& settings)
    : settings_(settings), multi_(curl_multi_init()), rate_(settings.upload_rate) {}

ClientLoop::~ClientLoop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    curl_multi_wakeup(multi_.get());
    thread_.join();
  }
  loader_.reset();  // before multi_, which it wakes up
}

RequestId ClientLoop::Start(Request request, ResponseCallback callback) {
  const RequestId id{next_id_.fetch_add(1)};
  Submit([this, id, request = std::move(request), callback = std::move(callback)]() mutable {
    Add(id, std::move(request), std::move(callback));
  });
  return id;
}

void ClientLoop::Cancel(RequestId id) {
  Submit([this, id] { CancelJob(id); });
}

void ClientLoop::Submit(std::function<void()> command) {
  {
    MutexLock lock(mutex_);
    commands_.push_back(std::move(command));
  }
  curl_multi_wakeup(multi_.get());
}

ClientStatistics ClientLoop::statistics() const {
  return {requests_.load(), retries_.load(), bytes_sent_.load(), bytes_received_.load()};
}

std::chrono::system_clock::time_point ClientLoop::ServiceTime() const {
  return std::chrono::system_clock::now() + date_error_.load();
}

void ClientLoop::Run() {
  while (TakeCommands()) {
    RequeueDueJobs();
    StartReadyJobs();
    int running = 0;
    curl_multi_perform(multi_.get(), &running);
    ReapTransfers();
    ReportUnconnected();
    StartReadyJobs();
    // If libcurl cannot wait, the loop must not spin.
    if (curl_multi_poll(multi_.get(), nullptr, 0, PollTimeoutMs(), nullptr) != CURLM_OK) {
      std::this_thread::sleep_for(milliseconds(kPausedPollMs));
    }
    ResumePaused();
  }
  CancelAll();
}

// Returns false if the client is being destroyed.
bool ClientLoop::TakeCommands() {
  std::vector<std::function<void()>> commands;
  bool stopping = false;
  {
    MutexLock lock(mutex_);
    commands.swap(commands_);
    stopping = stopping_;
  }
  for (const auto& command : commands) command();
  return !stopping;
}

void ClientLoop::Add(RequestId id, Request request, ResponseCallback callback) {
  auto job = std::make_unique<Job>(Job{.id = id, .request = std::move(request), .callback = std::move(callback)});
  auto& added = *(jobs_[static_cast<uint64_t>(id)] = std::move(job));
  ready_.push_back(&added);
}

void ClientLoop::CancelJob(RequestId id) {
  const auto found = jobs_.find(static_cast<uint64_t>(id));
  if (found != jobs_.end()) Finish(*found->second, Cancelled(found->second->request));
}

// Callbacks may start more requests, which are cancelled as well.
void ClientLoop::CancelAll() {
  do {
    while (!jobs_.empty()) {
      auto& job = *jobs_.begin()->second;
      Finish(job, Cancelled(job.request));
    }
    TakeCommands();
  } while (!jobs_.empty());
}

void ClientLoop::RequeueDueJobs() {
  const auto now = Clock::now();
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    auto& job = *delayed_.begin()->second;
    delayed_.erase(delayed_.begin());
    job.state = Job::State::kReady;
    ready_.push_front(&job);
  }
}

void ClientLoop::StartReadyJobs() {
  while (!ready_.empty() && active_.size() < settings_.connections) {
    if (Job& first = *ready_.front(); first.request.guard != nullptr && !first.may_start) {
      CompareGuard(first);
    } else if (!HaveCredentials() || !StartAttempt(first)) {
      return;
    }
  }
  // A later request must not end with the error of a load for which no request waits any more.
  if (ready_.empty() && loader_ != nullptr) loader_->TakeFailure();
}

// Another job, which begins before all others, reads the guard.
void ClientLoop::CompareGuard(Job& job) {
  ready_.pop_front();
  job.state = Job::State::kCompared;
  job.due = Clock::now();
  const auto id = static_cast<uint64_t>(job.id);
  const RequestId reading{next_id_.fetch_add(1)};
  Add(reading, {.object = {job.request.object.bucket, job.request.guard->key}},
      [this, id](const Result<Response>& found) { EndComparison(id, found); });
  std::rotate(ready_.begin(), std::prev(ready_.end()), ready_.end());
}

// The request may have been cancelled meanwhile.
void ClientLoop::EndComparison(uint64_t id, const Result<Response>& found) {
  const auto known = jobs_.find(id);
  if (known == jobs_.end()) return;
  Job& job = *known->second;
  const Guard& guard = *job.request.guard;
  job.failed += Clock::now() - job.due;
  const bool is_gone = !found && found.error().code == ErrorCode::kNotFound;
  if (found ? guard.body == found->body : is_gone && !guard.body) {
    job.may_start = true;
    job.state = Job::State::kReady;
    ready_.push_front(&job);
  } else if (found || is_gone || found.error().code == ErrorCode::kTooLarge) {
    Finish(job, MakeError(ErrorCode::kBusy, "{} {}: not repeated, because {} has changed", job.request.method,
                          ToString(job.request.object), ToString({job.request.object.bucket, guard.key})));
  } else {
    Finish(job, found.error());
  }
}

// Returns false while credentials are being loaded. If none can be loaded, ends all requests that wait for them.
bool ClientLoop::HaveCredentials() {
  if (!settings_.sign) return true;
  const bool have = loader_->provider().Cached().has_value();
  const auto failure = loader_->TakeFailure();
  if (!have && failure) {
    const std::vector<Job*> waiting(ready_.begin(), ready_.end());
    for (auto* job : waiting) Finish(*job, *failure);
    return false;
  }
  // Credentials that are still valid are renewed now and then: their source may have no others yet.
  const auto now = Clock::now();
  if (loader_->provider().NeedsLoad() && (!have || now >= next_renewal_)) {
    next_renewal_ = now + kRenewalInterval;
    loader_->Start();
  }
  return have;
}

// Starts the first of the ready jobs, or ends it if that is impossible. Returns false if there are no credentials.
bool ClientLoop::StartAttempt(Job& job) {
  const auto credentials = settings_.sign ? loader_->provider().Cached() : Credentials();
  if (!credentials) return false;
  const auto& request = job.request;
  job.credentials = *credentials;
  job.region = RegionOf(request.object.bucket);
  const auto url = MakeRequestUrl(settings_, job.region, request.object);
  const auto headers = SignedHeaders(job, url);
  if (!headers) {
    Finish(job, headers.error());
    return true;
  }
  const auto query = CanonicalQuery(request.query);
  auto transfer = TakeTransfer();
  if (transfer == nullptr ||
      !transfer->Prepare(request, url.origin + url.path + (query.empty() ? "" : "?" + query), *headers) ||
      curl_multi_add_handle(multi_.get(), transfer->easy()) != CURLM_OK) {
    Finish(job, ErrorCode::kNoMemory);
    return true;
  }
  ready_.pop_front();
  job.transfer = std::move(transfer);
  job.state = Job::State::kActive;
  job.begun = Clock::now();
  job.may_start = false;
  ++job.attempts;
  requests_.fetch_add(1);
  if (job.attempts > 1) retries_.fetch_add(1);
  active_[job.transfer->easy()] = &job;
  return true;
}

// Returns all headers of the next attempt. They also contain the credentials, the region and the host, so that none of
// these can add a header of its own.
Result<Fields> ClientLoop::SignedHeaders(const Job& job, const RequestUrl& url) const {
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
    const auto added = Sign(input, job.credentials, std::chrono::system_clock::now() + clock_error_);
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

std::unique_ptr<Transfer> ClientLoop::TakeTransfer() {
  if (!idle_transfers_.empty()) {
    auto transfer = std::move(idle_transfers_.back());
    idle_transfers_.pop_back();
    return transfer;
  }
  auto transfer = std::make_unique<Transfer>(settings_, rate_, sockets_);
  return *transfer ? std::move(transfer) : nullptr;
}

void ClientLoop::ReapTransfers() {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const auto result = message->data.result;  // removing the handle frees the message
    auto& job = *active_.at(message->easy_handle);
    curl_multi_remove_handle(multi_.get(), job.transfer->easy());
    active_.erase(job.transfer->easy());
    auto attempt = job.transfer->Finish(result);
    idle_transfers_.push_back(std::move(job.transfer));
    job.state = Job::State::kReady;
    ready_.push_front(&job);
    bytes_sent_.fetch_add(attempt.bytes_sent);
    bytes_received_.fetch_add(attempt.bytes_received);
    if (const auto date = ParseHttpTime(std::string(attempt.header("date")))) {
      date_error_ = *date - std::chrono::system_clock::now();
    }
    HandleAttempt(job, std::move(attempt));
  }
}

void ClientLoop::ResumePaused() {
  if (settings_.upload_rate == 0) return;
  rate_.Distribute(Clock::now());
  for (const auto& [easy, job] : active_) job->transfer->ResumeIfGranted();
}

void ClientLoop::HandleAttempt(Job& job, Attempt attempt) {
  const auto failure = FindFailure(job.request, attempt, settings_);
  if (failure) return HandleFailure(job, attempt, *failure);
  Finish(job, Response{attempt.status, std::move(attempt.headers), std::move(attempt.body), job.attempts});
}

void ClientLoop::HandleFailure(Job& job, const Attempt& attempt, const Failure& failure) {
  using Remedy = Failure::Remedy;
  const bool waits = failure.remedy == Remedy::kRetry || failure.remedy == Remedy::kRetryBriefly;
  const auto limit =
      failure.remedy == Remedy::kRetryBriefly ? std::min(kBriefAttempts, settings_.attempts) : settings_.attempts;
  job.failed += std::min<Clock::duration>(Clock::now() - job.begun, StallLimit(settings_, job.request));
  const auto pause = PauseBefore(job, failure);
  // An attempt of a request whose answer is slow may stall for longer than all attempts of another one.
  const bool in_time = job.failed + pause < GiveUpAfter(settings_, job.request);
  if (waits && job.attempts < limit && in_time) return Retry(job, failure, pause, limit);
  if (!waits && Repair(job, attempt, failure)) return;  // it is in ready_, and starts again at once
  Finish(job, FinalError(job, failure));
}

// Removes the cause of the failure. Returns false if that is impossible, or was tried without success.
bool ClientLoop::Repair(Job& job, const Attempt& attempt, const Failure& failure) {
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
      loader_->provider().Invalidate(job.credentials);
      return true;
    case Failure::Remedy::kChangeRegion:
      // Compared with the region of this attempt: another request may have changed that of the bucket meanwhile.
      if (failure.region == job.region || job.region_changes >= kMaxRegionChanges) return false;
      ++job.region_changes;
      regions_[job.request.object.bucket] = failure.region;
      return true;
    default: return false;
  }
}

ClientLoop::Clock::duration ClientLoop::PauseBefore(const Job& job, const Failure& failure) {
  const unsigned doublings = std::min(job.attempts - 1, 16U);
  const auto longest = std::min(kMaxBackoff, kFirstBackoff * (1U << doublings));
  const auto jitter = milliseconds(std::uniform_int_distribution<milliseconds::rep>(0, longest.count())(random_));
  return failure.retry_after.value_or(milliseconds(0)) + jitter;
}

void ClientLoop::Retry(Job& job, const Failure& failure, Clock::duration pause, unsigned limit) {
  const auto now = Clock::now();
  // With the pause, during which nothing else would report it.
  Report(job, job.failed + pause,
         fmt::format("{}; attempt {} of {} follows in {} s", failure.reason, job.attempts + 1, limit,
                     std::chrono::ceil<std::chrono::seconds>(pause).count()));
  Detach(job);
  job.state = Job::State::kDelayed;
  job.due = now + pause;
  job.failed += pause;
  delayed_.emplace(job.due, &job);
}

void ClientLoop::ReportUnconnected() {
  if (Clock::now() < next_report_) return;
  for (const auto& [easy, job] : active_) {
    if (job->transfer->is_connected()) continue;
    Report(*job, Clock::now() - job->begun,
           fmt::format("attempt {} of {} is not connected to the service yet", job->attempts, settings_.attempts));
  }
}

void ClientLoop::Report(const Job& job, Clock::duration troubled, const std::string& what) {
  const std::chrono::seconds quiet(settings_.quiet_s);
  const auto now = Clock::now();
  if (!settings_.on_retry || troubled < quiet || now < next_report_) return;
  next_report_ = now + quiet;
  settings_.on_retry(fmt::format("{} {}: {}; it gives up after the last one or {} s", job.request.method,
                                 ToString(job.request.object), what, GiveUpAfter(settings_, job.request).count()));
}

// Takes the job out of its place.
void ClientLoop::Detach(Job& job) {
  switch (job.state) {
    case Job::State::kReady: ready_.erase(std::ranges::find(ready_, &job)); break;
    case Job::State::kCompared: break;
    case Job::State::kDelayed: {
      auto [first, last] = delayed_.equal_range(job.due);
      delayed_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == &job; }));
      break;
    }
    case Job::State::kActive:
      curl_multi_remove_handle(multi_.get(), job.transfer->easy());
      active_.erase(job.transfer->easy());
      job.transfer->Abandon();
      idle_transfers_.push_back(std::move(job.transfer));
      break;
  }
}

// The callback runs last, because it may start other requests.
void ClientLoop::Finish(Job& job, Result<Response> result) {
  Detach(job);
  const auto callback = std::move(job.callback);
  jobs_.erase(static_cast<uint64_t>(job.id));
  callback(std::move(result));
}

int ClientLoop::PollTimeoutMs() const {
  auto timeout = milliseconds(kIdlePollMs);
  if (!delayed_.empty()) {
    const auto wait = std::chrono::ceil<milliseconds>(delayed_.begin()->first - Clock::now());
    timeout = std::clamp(wait, milliseconds(0), timeout);
  }
  if (rate_.has_waiting()) timeout = std::min(timeout, milliseconds(kPausedPollMs));
  return static_cast<int>(timeout.count());
}

std::string ClientLoop::RegionOf(const std::string& bucket) const {
  const auto found = regions_.find(bucket);
  return found == regions_.end() ? settings_.region : found->second;
}

Error ClientLoop::FinalError(const Job& job, const Failure& failure) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - job.started).count();
  auto text = fmt::format("{} {}: {}", job.request.method, ToString(job.request.object), failure.reason);
  if (job.attempts > 1) text += fmt::format(" ({} attempts in {} s)", job.attempts, seconds);
  if (!failure.advice.empty()) text += "; " + failure.advice;
  return {failure.code, std::move(text)};
}

}  // namespace weightfs::s3
