// SPDX-License-Identifier: Apache-2.0
// What the library calls what is to be renamed when it is complete, or to go: README, "Limits", tells users.
#pragma once

#include <string>

namespace weightfs::client {

// For mkostemp(3) and mkdtemp(3), which put characters of their own in the place of the last six.
inline std::string TemporaryName(const std::string& start) { return start + ".weightfs-" + std::string(6, 'X'); }

}  // namespace weightfs::client
