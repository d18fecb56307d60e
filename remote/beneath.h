// SPDX-License-Identifier: Apache-2.0
// Access to files at paths that other users may change meanwhile.
#pragma once

#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::remote {

// Opens what a path names, for *at calls and Reopen (O_PATH). Symbolic links on the way are followed, but one of
// another user than root and this one only to something of that user: kAccess with a full line. A link of proc(5) leads
// where the kernel leads it, not where its text says. The other errors have a code and no text.
Result<UniqueFd> OpenPath(const std::string& path);

// Opens the directory that a relative path has its last component in, which becomes `name`. Never follows a symbolic
// link, so it never leaves `root`. The descriptor is of O_PATH. The errors have a code and no text.
Result<UniqueFd> OpenParent(int root, std::string_view path, std::string* name);

// Opens anything at a relative path, in the same manner; a symbolic link itself.
Result<UniqueFd> OpenBeneath(int root, std::string_view path);

// Opens for reading what a descriptor of any kind names, whatever has happened to its path; a file with O_DIRECT if
// `direct` is true and its filesystem has it. Does not wait for the holder of a lease of fcntl(2). The errors have a
// code and no text.
Result<UniqueFd> Reopen(int descriptor, bool direct = false);

// Returns the names in an open directory, without "." and "..". `path` is for errors.
Result<std::vector<std::string>> ListNames(int directory, const std::string& path);

// Removes the directory `name` in `parent` with everything below it, as far as possible. Never follows a symbolic link,
// and does not enter other filesystems.
void RemoveTree(int parent, const std::string& name);

}  // namespace weightfs::remote
