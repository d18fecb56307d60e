// SPDX-License-Identifier: Apache-2.0
// Names of temporary files, which are renamed when complete or removed. Documented for users in README, "Limits".
#pragma once

#include <string>

namespace weightfs::client {

// A template for mkostemp(3) and mkdtemp(3), which replace the last six characters.
inline std::string TemporaryName(const std::string& start) { return start + ".weightfs-" + std::string(6, 'X'); }

}  // namespace weightfs::client
