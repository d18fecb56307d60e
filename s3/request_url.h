// SPDX-License-Identifier: Apache-2.0
// The URL of a request: endpoint, addressing style and key.
#pragma once

#include "s3/location.h"
#include "s3/settings.h"

namespace weightfs::s3 {

struct RequestUrl {
  std::string origin;  // "https://HOST[:PORT]"
  std::string host;    // as the Host header has it: without the default port
  std::string path;    // percent-encoded, begins with '/'
};

// Fails with kInvalid unless `endpoint` is "http[s]://HOST[:PORT][/PATH]" without a query, a user or a line break.
Result<void> CheckEndpoint(std::string_view endpoint);

// Returns the scheme, host and port of a URL, for messages. A user with a password, a path and a query may be secret;
// "...@" stands for everything before the last '@'.
std::string PrintableOrigin(std::string_view url);

// Returns the URL of the bucket or object in `region`. The settings must have passed CheckEndpoint.
RequestUrl MakeRequestUrl(const Settings& settings, std::string_view region, const Location& object);

// True for an http URL of another machine: others on the network can read and change what is sent.
bool IsUnprotected(std::string_view endpoint);

}  // namespace weightfs::s3
