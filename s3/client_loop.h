// SPDX-License-Identifier: Apache-2.0
// The thread of a client: queues, transfers and retries.
#pragma once

#include <map>
#include <random>
#include <unordered_map>

#include "common/mutex.h"
#include "s3/failure.h"
#include "s3/request_url.h"

namespace weightfs::s3 {

// The public functions are thread-safe; all others run on the thread.
class ClientLoop final : public Client {
 public:
  static Result<std::unique_ptr<ClientLoop>> Create(const Settings& settings,
                                                    std::unique_ptr<CredentialProvider> credentials);
  ~ClientLoop() override;

  RequestId Start(Request request, ResponseCallback callback) override;
  void Cancel(RequestId id) override;
  const Settings& settings() const override { return settings_; }
  ClientStatistics statistics() const override;
  std::chrono::system_clock::time_point ServiceTime() const override;

 private:
  using Clock = std::chrono::steady_clock;

  // A request is in one of these places: ready_ (kReady), delayed_ (kDelayed), or a transfer (kActive); or its guard is
  // read by another job (kCompared).
  struct Job {
    enum class State : unsigned char { kReady, kDelayed, kActive, kCompared };
    RequestId id;
    Request request;
    ResponseCallback callback;
    State state = State::kReady;
    std::unique_ptr<Transfer> transfer = nullptr;
    Credentials credentials = {};  // of the current attempt
    std::string region = {};       // the same
    unsigned attempts = 0;
    bool clock_corrected = false, credentials_renewed = false;  // each is tried once
    bool may_start = true;  // since the last comparison of its guard
    unsigned region_changes = 0;
    Clock::time_point started = Clock::now(), begun = {}, due = {};  // the request, its last attempt, its next one
    Clock::duration failed = {};                                      // Settings::give_up_after_s
  };
  explicit ClientLoop(const Settings& settings);
  // Runs the command on the thread.
  void Submit(std::function<void()> command);
  void Run();
  bool TakeCommands();
  void Add(RequestId id, Request request, ResponseCallback callback);
  void CancelJob(RequestId id);
  void CancelAll();
  void RequeueDueJobs();
  void StartReadyJobs();
  bool HaveCredentials();
  void CompareGuard(Job& job);
  void EndComparison(uint64_t id, const Result<Response>& found);
  bool StartAttempt(Job& job);
  Result<Fields> SignedHeaders(const Job& job, const RequestUrl& url) const;
  void ReapTransfers();
  void ResumePaused();
  void HandleAttempt(Job& job, Attempt attempt);
  void HandleFailure(Job& job, const Attempt& attempt, const Failure& failure);
  bool Repair(Job& job, const Attempt& attempt, const Failure& failure);
  // The pause before the next attempt.
  Clock::duration PauseBefore(const Job& job, const Failure& failure);
  void Retry(Job& job, const Failure& failure, Clock::duration pause, unsigned limit);
  void ReportUnconnected();
  // Calls Settings::on_retry, if it is time, for a request that has been `troubled` for so long.
  void Report(const Job& job, Clock::duration troubled, const std::string& what);
  void Detach(Job& job);
  void Finish(Job& job, Result<Response> result);
  std::unique_ptr<Transfer> TakeTransfer();
  int PollTimeoutMs() const;
  std::string RegionOf(const std::string& bucket) const;
  Error FinalError(const Job& job, const Failure& failure) const;

  const Settings settings_;
  OpenSockets sockets_;  // of the thread; libcurl closes them with multi_
  const CurlMulti multi_;
  std::unique_ptr<CredentialLoader> loader_;

  Mutex mutex_;
  std::vector<std::function<void()>> commands_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> next_id_ = 1;
  std::atomic<uint64_t> requests_ = 0, retries_ = 0, bytes_sent_ = 0, bytes_received_ = 0;
  // The service's clock - ours, by its last response. Requests are signed with the time of this machine, unless the
  // service rejects it.
  std::atomic<std::chrono::system_clock::duration> date_error_ = std::chrono::system_clock::duration::zero();

  // Of the thread.
  RateLimit rate_;  // outlives the transfers
  std::unordered_map<uint64_t, std::unique_ptr<Job>> jobs_;
  std::deque<Job*> ready_;
  std::multimap<Clock::time_point, Job*> delayed_;
  std::unordered_map<CURL*, Job*> active_;
  std::vector<std::unique_ptr<Transfer>> idle_transfers_;
  std::map<std::string, std::string> regions_;         // of buckets that are not in Settings::region
  std::chrono::system_clock::duration clock_error_{};  // the service's clock - ours, if it rejected ours
  Clock::time_point next_renewal_ = {}, next_report_ = {};
  std::mt19937_64 random_{std::random_device{}()};

  std::thread thread_;
};

}  // namespace weightfs::s3
