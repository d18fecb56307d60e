// SPDX-License-Identifier: Apache-2.0
// Names of objects, s3://BUCKET/KEY, and the URLs of requests for them: endpoint, addressing style and key.
#pragma once

#include <string_view>

#include "s3/settings.h"

namespace weightfs::s3 {

// An object, or all objects whose keys begin with `key`. A key is any text of at most 1,024 bytes: S3 has no folders,
// so "a//b" and "a/b/" are names of their own. Nothing is decoded: "%20" in a key is three characters.
struct Location {
  std::string bucket;
  std::string key = {};  // without a '/' at the start; may be empty

  bool operator==(const Location&) const = default;
};

// Parses "s3://BUCKET" or "s3://BUCKET/KEY". Fails with kInvalid and one full line if the scheme is another, if the
// bucket is missing or has a character that no bucket may have, or if the key is longer than 1,024 bytes.
Result<Location> ParseLocation(std::string_view url);

// Returns "s3://BUCKET/KEY" with unprintable bytes escaped, for messages.
std::string ToString(const Location& location);

enum class Slashes : unsigned char { kKeep, kEncode };

// Percent-encodes `text` as RFC 3986 and AWS's signatures require it: every byte but letters, digits, '-', '.', '_' and
// '~' becomes %XX.
std::string PercentEncode(std::string_view text, Slashes slashes);

// The inverse, for listings with encoding-type=url, where '+' is a space. A '%' that does not precede two hexadecimal
// digits is returned as it is.
std::string PercentDecode(std::string_view text);

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
