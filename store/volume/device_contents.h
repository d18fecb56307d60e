// SPDX-License-Identifier: Apache-2.0
// Detects existing content of a device or file, so that format overwrites nothing by accident.
#pragma once

#include <optional>
#include <string>

#include "common/result.h"

namespace weightfs {

// Describes the content in words: "an ext4 filesystem", "a weightfs device", "data that is not zero at byte 4096".
// Returns nullopt when libblkid finds no signature and all bytes at superblock locations are zero. Returns kIo with a
// full message when the content cannot be read.
Result<std::optional<std::string>> DescribeContents(const std::string& path);

}  // namespace weightfs
