// SPDX-License-Identifier: Apache-2.0
// What programs that link the shared library may call; everything else in it is hidden.
#pragma once

#define WEIGHTFS_EXPORT __attribute__((visibility("default")))
