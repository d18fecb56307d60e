// SPDX-License-Identifier: Apache-2.0
// Parses JSON that anybody may have written. The library's parser has no limits: a megabyte of brackets takes 80
// megabytes of memory, and copying or printing the result as many frames of the stack.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/error.h"

namespace weightfs {

struct JsonLimits {
  size_t bytes = size_t{1} << 20;
  size_t depth = 8;         // of objects and arrays inside each other
  size_t values = 100'000;  // of all kinds; one takes up to 200 bytes of memory besides its text
};

// Counts the values and levels of a text, and stops at the limits. For nlohmann::json::sax_parse.
class JsonCounter {
 public:
  explicit JsonCounter(const JsonLimits& limits) : limits_(limits) {}
  bool too_deep() const { return too_deep_; }
  bool too_many() const { return values_ > limits_.values; }

  bool null() { return Count(); }
  bool boolean(bool) { return Count(); }
  bool number_integer(int64_t) { return Count(); }
  bool number_unsigned(uint64_t) { return Count(); }
  bool number_float(double, const std::string&) { return Count(); }
  bool string(std::string&) { return Count(); }
  bool binary(nlohmann::json::binary_t&) { return Count(); }
  bool key(std::string&) { return true; }
  bool start_object(size_t) { return Open(); }
  bool start_array(size_t) { return Open(); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) { return false; }

 private:
  bool Count() { return ++values_ <= limits_.values; }
  bool Open() {
    too_deep_ = depth_++ == limits_.depth;
    return !too_deep_ && Count();
  }
  bool Close() {
    --depth_;
    return true;
  }

  const JsonLimits limits_;
  size_t depth_ = 0, values_ = 0;
  bool too_deep_ = false;
};

// Every reader of foreign JSON uses this function (tests/unit/layers_test.py). kCorrupt, with the reason: it is not
// JSON, or exceeds a limit. The text is read twice, because a callback of the library's parser would make it take
// quadratic time.
inline Result<nlohmann::json> ParseJson(std::string_view text, const JsonLimits& limits = {}) {
  const auto refuse = [](std::string_view what, size_t limit) {
    return Error{ErrorCode::kCorrupt, fmt::format("its JSON has more than {} {}", limit, what)};
  };
  if (text.size() > limits.bytes) return refuse("bytes", limits.bytes);
  JsonCounter counter(limits);
  const bool within = nlohmann::json::sax_parse(text, &counter);
  if (counter.too_deep()) return refuse("levels", limits.depth);
  if (counter.too_many()) return refuse("values", limits.values);
  if (!within) return Error{ErrorCode::kCorrupt, "it is not JSON"};
  return nlohmann::json::parse(text);
}

}  // namespace weightfs
