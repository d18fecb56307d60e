// SPDX-License-Identifier: Apache-2.0
// Assertions on Results that print the error if a call fails.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "common/result.h"

// Returns from the test's function on failure.
#define ASSERT_OK(expression)                                        \
  do {                                                               \
    const auto& asserted = (expression);                             \
    ASSERT_TRUE(asserted.has_value()) << ToString(asserted.error()); \
  } while (false)

namespace weightfs {

// Returns the value. Without a value, fails the test and returns a default one.
template <typename T>
T Must(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << ToString(result.error());
  return result.has_value() ? *std::move(result) : T();
}

}  // namespace weightfs
