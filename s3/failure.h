// SPDX-License-Identifier: Apache-2.0
// Finds the failure of an attempt, its remedy and its text.
#pragma once

#include "s3/transfer.h"

namespace weightfs::s3 {

struct Failure {
  enum class Remedy : unsigned char {
    kNone,              // another attempt would fail in the same way
    kRetry,             // wait, and try again
    kRetryBriefly,      // the same, but a few times only: the cause is probably permanent
    kCorrectClock,      // use the time of the service
    kRenewCredentials,  // load the credentials again
    kChangeRegion,      // use `region`
  };
  Remedy remedy = Remedy::kNone;
  ErrorCode code = ErrorCode::kIo;
  std::string reason;                                         // "HTTP 404 NoSuchBucket: ...": one line
  std::string advice = {};                                    // the next step of the user; may be empty
  std::string region = {};                                    // for kChangeRegion
  std::optional<std::chrono::milliseconds> retry_after = {};  // requested by the service, at most 60 s
};

// Returns none if the attempt succeeded. A response with status 200 whose body is an <Error> has failed.
std::optional<Failure> FindFailure(const Request& request, const Attempt& attempt, const Settings& settings);

}  // namespace weightfs::s3
