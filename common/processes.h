// SPDX-License-Identifier: Apache-2.0
// What /proc says about processes. Paths are relative to /proc.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace weightfs {

// A descriptor of the directory /proc, opened by the first call. After setns(2) the path /proc may belong to another
// PID namespace, in which this process does not exist; a program that enters a mount namespace calls this function
// before.
int ProcDirectory();

// The whole file. Nothing, with errno set, when it cannot be read.
std::optional<std::string> ReadProcFile(const std::string& path);

// The target of a link. Empty, with errno set, when it cannot be read.
std::string ReadProcLink(const std::string& path);

// The names in a directory. Nothing, with errno set, when it cannot be read.
std::optional<std::vector<std::string>> ListProc(const std::string& path);

std::vector<pid_t> AllProcesses();

// The name of the program that a process runs: "weightfs". Empty when the process is gone.
std::string CommandOf(pid_t process);

// Whether the process is gone, a zombie, or about to end because it was killed.
bool IsEnding(pid_t process);

// The process that holds an exclusive flock(2) on the file, by its number in the PID namespace of this process: the one
// in the kernel's list of locks, or `claimed` where that process has the file open. 0 where neither is so.
pid_t FindLockHolder(int descriptor, pid_t claimed);

}  // namespace weightfs
