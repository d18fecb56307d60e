// SPDX-License-Identifier: Apache-2.0
// One short HTTP request, for the services that give credentials.
#pragma once

#include <atomic>
#include <string>

#include "common/error.h"
#include "s3/signer.h"

namespace weightfs::s3 {

struct FetchRequest {
  std::string method = "GET";
  std::string url;
  Fields headers = {};
  std::string body = {};
  long connect_timeout_ms = 1000;
  long timeout_ms = 5000;
  bool use_proxy = false;                        // metadata services are on this machine or its link
  std::string ca_bundle = {};                    // empty: the certificates of the system
  const std::atomic<bool>* cancelled = nullptr;  // ends the request with kCancelled within a second; may be null
};

struct FetchResponse {
  int status = 0;
  std::string body;
};

// Fails with kNotFound if no connection can be made, with kIo if there is no complete response, with kTooLarge for one
// above 1 MiB, and with kInvalid for a header with a line break. The error has the reason and the server, but neither
// the path nor the query, which may be secret. Blocks. Thread-safe.
Result<FetchResponse> Fetch(const FetchRequest& request);

}  // namespace weightfs::s3
