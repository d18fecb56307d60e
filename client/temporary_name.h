// SPDX-License-Identifier: Apache-2.0
// Names of temporary files, which are renamed when they are complete, or removed: README, "Limits", tells users.
#pragma once

#include <string>

namespace weightfs::client {

// For mkostemp(3) and mkdtemp(3), which put characters of their own in the place of the last six.
inline std::string TemporaryName(const std::string& start) { return start + ".weightfs-" + std::string(6, 'X'); }

}  // namespace weightfs::client
