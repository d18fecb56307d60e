// SPDX-License-Identifier: Apache-2.0
// Assertions that stay on in every build. They state invariants of this program; bad input and bad bytes on disk are
// errors (common/result.h), never assertions.
#pragma once

#include <cstdio>
#include <cstdlib>

// Aborts with the condition and its place when `condition` is false. The condition is always evaluated: keep it cheap.
#define WEIGHTFS_ASSERT(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
