// SPDX-License-Identifier: Apache-2.0
// Man pages in the language of man(7).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/options.h"

namespace weightfs::cli {

// The section on mount options, which the pages in cli/man/ also have.
std::string MountOptions();

// Returns the pages by their path below share/man: weightfs(1), one page for each command, and the other names of
// mount.weightfs(8). `date` is that of the pages: YYYY-MM-DD.
std::vector<std::pair<std::string, std::string>> MakeManPages(const std::vector<Command>& commands,
                                                              const std::string& date);

}  // namespace weightfs::cli
