// SPDX-License-Identifier: Apache-2.0
// Assertions that are active in every build. They state invariants of this program. Bad input and bad bytes on disk are
// errors (common/result.h), never assertions.
#pragma once

#include <cstdio>
#include <cstdlib>

// Prints the condition and its location and aborts when `condition` is false. Always evaluated, so keep it cheap.
#define WEIGHTFS_ASSERT(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
