// SPDX-License-Identifier: Apache-2.0
// Parses JSON that anybody may have written. The library's parser has no limits: a megabyte of brackets takes 80
// megabytes of memory, and copying or printing the result as many frames of the stack.
#pragma once

#include <fmt/format.h>

#include <cstddef>
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

// Every reader of foreign JSON uses this function (tests/unit/layers_test.py). `Json` is nlohmann::json or ordered_json.
// kCorrupt, with the reason: it is not JSON, or exceeds a limit.
template <typename Json = nlohmann::json>
Result<Json> ParseJson(std::string_view text, const JsonLimits& limits = {}) {
  const auto refuse = [](std::string_view what, size_t limit) {
    return Error{ErrorCode::kCorrupt, fmt::format("its JSON has more than {} {}", limit, what)};
  };
  if (text.size() > limits.bytes) return refuse("bytes", limits.bytes);
  // The parser goes on when a callback refuses a value, so an exception ends it.
  struct TooDeep {};
  struct TooMany {};
  using Event = typename Json::parse_event_t;
  size_t values = 0;
  const auto count = [&](int depth, Event event, Json&) {
    const bool opens = event == Event::object_start || event == Event::array_start;
    if (opens && static_cast<size_t>(depth) >= limits.depth) throw TooDeep();
    if ((opens || event == Event::value) && ++values > limits.values) throw TooMany();
    return true;
  };
  try {
    Json json = Json::parse(text, count, /*allow_exceptions=*/false);
    if (json.is_discarded()) return Error{ErrorCode::kCorrupt, "it is not JSON"};
    return json;
  } catch (const TooDeep&) {
    return refuse("levels", limits.depth);
  } catch (const TooMany&) {
    return refuse("values", limits.values);
  }
}

}  // namespace weightfs
