// SPDX-License-Identifier: Apache-2.0
// libfuse's low-level API at the only version that weightfs uses. Private to fs/.
#pragma once

#define FUSE_USE_VERSION 312

#include <fuse_lowlevel.h>

// From 3.17 on, libfuse requests everything itself that fs/init_reply.h adds for older versions.
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
#define WEIGHTFS_COMPLETE_REPLIES 0
#else
#define WEIGHTFS_COMPLETE_REPLIES 1
#endif
