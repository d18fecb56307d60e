// SPDX-License-Identifier: Apache-2.0
// The counters and gauges of a mount, for WEIGHTFS_IOC_STATS and for -o metrics=. Private to fs/.
#pragma once

#include "lease/ioctl.h"

namespace weightfs {

class Filesystem;

// Thread-safe.
weightfs_stats StatsOf(Filesystem& filesystem);

}  // namespace weightfs
