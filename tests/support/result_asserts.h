// SPDX-License-Identifier: Apache-2.0
// Results in tests: what must succeed, with the error in the test's message where it does not.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "common/result.h"

// Ends the test's function.
#define ASSERT_OK(expression)                                        \
  do {                                                               \
    const auto& asserted = (expression);                             \
    ASSERT_TRUE(asserted.has_value()) << ToString(asserted.error()); \
  } while (false)

namespace weightfs {

// The value; a default one, and the test has failed, where there is none.
template <typename T>
T Must(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << ToString(result.error());
  return result.has_value() ? *std::move(result) : T();
}

}  // namespace weightfs
