// SPDX-License-Identifier: Apache-2.0
// libfuse's low-level interface, at the one API level that weightfs is written for. Private to fs/.
#pragma once

#define FUSE_USE_VERSION 312

#include <fuse_lowlevel.h>

// From 3.17 on libfuse itself asks the kernel for everything that fs/init_reply.h adds for older ones.
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
#define WEIGHTFS_COMPLETE_REPLIES 0
#else
#define WEIGHTFS_COMPLETE_REPLIES 1
#endif
