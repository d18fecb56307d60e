// SPDX-License-Identifier: Apache-2.0
// The places where credentials are looked for; credentials.h has their order.
#pragma once

#include "s3/credentials.h"

namespace weightfs::s3 {

// Loads from the first place that has credentials. Blocks. Fails with kCancelled soon after `cancelled` becomes true.
// Thread-safe.
Result<Credentials> LoadCredentials(const Settings& settings, const Environment& environment,
                                    const std::atomic<bool>& cancelled);

}  // namespace weightfs::s3
