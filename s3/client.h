// SPDX-License-Identifier: Apache-2.0
// Requests to an S3 service, with retries.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <random>
#include <span>

#include "s3/location.h"
#include "s3/rate_limit.h"
#include "s3/settings.h"
#include "s3/signer.h"

namespace weightfs::s3 {

// An object of the same bucket that must stay as it is while a request is repeated.
struct Guard {
  std::string key;
  std::optional<std::string> body = {};  // none: there is no such object
};
using GuardPtr = std::shared_ptr<const Guard>;

struct Attempt;
struct Failure;
struct RequestUrl;
class Transfer;

struct Request {
  std::string method = "GET";
  Location object;  // an empty key: the bucket itself
  Fields query = {};
  Fields headers = {};  // in addition to those of HTTP and of the signature
  // The body. Up to 64 KiB, and the documents of a POST, are signed with their SHA-256; a larger body is not
  // (UNSIGNED-PAYLOAD), so damage on a plain connection is found by checksums only.
  std::span<const std::byte> body = {};
  // The memory for the body of a successful response. Its size must match exactly; otherwise the request is retried and
  // fails. After an error its content is undefined.
  std::optional<std::span<std::byte>> into = {};
  // The maximum size of a response body without `into`, in bytes. A larger one fails with kTooLarge.
  size_t body_limit = size_t{16} << 20;
  // The service may work for minutes before it answers (CompleteMultipartUpload, CopyObject): it may be silent ten
  // times as long as Settings::stall_timeout_s, and an attempt may take an hour.
  bool slow_answer = false;
  // Does not wait for the connections of others: there is one more for these requests.
  bool urgent = false;
  // Read and compared immediately before each attempt but the first, whatever the failure was; the caller has compared
  // it before the first one. If it has changed, the request ends with kBusy. Null: none.
  GuardPtr guard = {};
  // The response must be an XML document with this root; otherwise the request is retried. Empty: any response.
  std::string_view xml_root = {};
};

struct Response {
  int status = 0;         // 200 to 299
  Fields headers = {};    // names in lower case, in the order of arrival
  std::string body = {};  // empty with Request::into
  unsigned attempts = 1;

  // The value of the first header with this name (lower case), or "".
  std::string_view header(std::string_view name) const;
};

struct ClientStatistics {
  uint64_t requests = 0;        // attempts, all of them
  uint64_t retries = 0;         // attempts after the first of a request
  uint64_t bytes_sent = 0;      // bodies, those of failed attempts included
  uint64_t bytes_received = 0;  // the same
};

// Sends requests over at most Settings::connections kept connections, and one for Request::urgent, each on the thread
// that calls Send. The others wait for a connection.
//
// Retried, with exponential backoff and full jitter (at least what Retry-After says, at most 60 s): connections that
// cannot be made or that break, stalls, bodies of a wrong length, the statuses 429, 500, 502, 503, 504, SlowDown,
// RequestTimeout, InternalError, OperationAborted and ConditionalRequestConflict, also in the body of a response with
// status 200. These are repeated at once: a request whose time the service rejects (once; the clock is corrected for
// all later ones), expired credentials (once; they are loaded again), and a redirect to another region (twice). A
// request therefore always ends: after Settings::attempts attempts at the latest, none of which begins after
// Settings::give_up_after_s (ten times that for Request::slow_answer), and each of which ends when it stalls.
//
// The reading of a Request::guard is repeated in the same manner. libcurl repeats no request that has one by itself.
//
// A repeated request may meet the effect of its own lost predecessor: a conditional PUT may fail with kExists because
// its first attempt succeeded, and CompleteMultipartUpload with kNotFound. The caller looks at the object to find out.
//
// Errors are one full line: method, object, reason, number of attempts and the next step. Codes:
//   kNotFound   404: no such object or upload              kAccess     403, 401, or no credentials
//   kExists     412 or a lasting 409 of a change           kStale      412 of a GET or HEAD: the object was replaced
//   kNoSpace    507, QuotaExceeded                         kTooLarge   see Request::body_limit
//   kCancelled  `interrupted`                              kInvalid    no such bucket, or a line break in a header
//   kRange      416: the object is shorter                 kNotSupported  501, or OpenSSL has no SHA-256
//   kBusy       Request::guard has changed: the attempts before may have taken effect
//   kIo         everything else
//
// Thread-safe.
class Client {
 public:
  // Fails with kInvalid for settings that cannot work (an endpoint that is not http or https, connections = 0), and
  // with kNotFound if the file `ca_bundle` does not exist. Makes no connection. Without `credentials`, the provider of
  // the settings is used; it is not asked before the first request.
  static Result<std::unique_ptr<Client>> Create(const Settings& settings,
                                                std::unique_ptr<CredentialProvider> credentials = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Sends the request and waits for its response. Ends with kCancelled once `interrupted` returns true.
  Result<Response> Send(const Request& request, const Interrupted& interrupted = {});

  const Settings& settings() const { return settings_; }
  ClientStatistics statistics() const;
  // The time of the service, by the Date of its last response; before the first one that of this machine.
  std::chrono::system_clock::time_point ServiceTime() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Job;

  Client(const Settings& settings, std::unique_ptr<CredentialProvider> credentials);
  Result<std::unique_ptr<Transfer>> TakeTransfer(const Request& request, const Interrupted& interrupted);
  Result<Response> SendOn(Transfer& transfer, const Request& request, const Interrupted& interrupted);
  Result<Attempt> MakeAttempt(Job& job);
  Result<Fields> SignedHeaders(const Job& job, const RequestUrl& url) const;
  // Removes the cause of the failure. Returns false if that is impossible, or was tried without success.
  bool Repair(Job& job, const Attempt& attempt, const Failure& failure);
  // The pause before the next attempt.
  Clock::duration PauseBefore(const Job& job, const Failure& failure);
  // kBusy: it has changed.
  Result<void> CompareGuard(Job& job);
  Result<void> Pause(const Job& job, Clock::duration pause) const;
  // Calls Settings::on_retry, if it is time, for a request that has been `troubled` for so long.
  void Report(const Job& job, Clock::duration troubled, const std::string& what);
  Error FinalError(const Job& job, const Failure& failure) const;

  const Settings settings_;
  const std::unique_ptr<CredentialProvider> credentials_;
  RateLimit rate_;
  std::atomic<uint64_t> requests_ = 0, retries_ = 0, bytes_sent_ = 0, bytes_received_ = 0;
  // The service's clock - ours, by its last response. Requests are signed with the time of this machine, unless the
  // service rejects it: then with `clock_error_`.
  std::atomic<std::chrono::system_clock::duration> date_error_{}, clock_error_{};

  Mutex mutex_;
  std::condition_variable free_;
  unsigned taken_ GUARDED_BY(mutex_) = 0;  // transfers
  std::vector<std::unique_ptr<Transfer>> idle_ GUARDED_BY(mutex_);
  std::map<std::string, std::string> regions_ GUARDED_BY(mutex_);  // of buckets that are not in Settings::region
  Clock::time_point next_report_ GUARDED_BY(mutex_) = {};
  std::mt19937_64 random_ GUARDED_BY(mutex_){std::random_device{}()};
};

}  // namespace weightfs::s3
