// SPDX-License-Identifier: Apache-2.0
// The names under which mount(8), umount(8) and fsck(8) call this program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weightfs::cli {

// The command line that `arguments` mean when the program is called as `program`: mount.weightfs, mount.fuse.weightfs,
// umount.weightfs, umount.fuse.weightfs and fsck.weightfs become their subcommand; any other name changes nothing.
// mount(8) hands `dev` and `suid` to no helper, only `nodev` and `nosuid`; so where these are missing and `is_root`,
// device files and set-id bits work, as mount(8) promises.
std::vector<std::string> TranslateHelperName(std::string_view program, const std::vector<std::string>& arguments,
                                             bool is_root = false);

}  // namespace weightfs::cli
