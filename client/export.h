// SPDX-License-Identifier: Apache-2.0
// Marks the functions that the shared library exports; all others are hidden.
#pragma once

#define WEIGHTFS_EXPORT __attribute__((visibility("default")))
