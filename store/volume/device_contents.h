// SPDX-License-Identifier: Apache-2.0
// What already lies on a device or in a file, so that format overwrites nothing unasked.
#pragma once

#include <optional>
#include <string>

#include "common/result.h"

namespace weightfs {

// In words: "an ext4 filesystem", "a weightfs device", "data that is not zero at byte 4096". nullopt when libblkid
// knows no signature there and every byte where superblocks will lie is zero. kIo with a full line when it cannot be
// read.
Result<std::optional<std::string>> DescribeContents(const std::string& path);

}  // namespace weightfs
