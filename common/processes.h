// SPDX-License-Identifier: Apache-2.0
// Access to /proc for information about processes. Paths are relative to /proc.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace weightfs {

// Returns a descriptor of /proc, opened by the first call that can; -1, with errno set, before that. After setns(2) the
// path /proc may belong to another PID namespace, in which this process does not exist. Therefore a program must call
// this function before it enters a mount namespace. Thread-safe.
int ProcDirectory();

// Returns the whole file; nullopt, with errno set, when it cannot be read.
std::optional<std::string> ReadProcFile(const std::string& path);

// Returns the target of a link; empty, with errno set, when it cannot be read.
std::string ReadProcLink(const std::string& path);

// Returns the names in a directory; nullopt, with errno set, when it cannot be read.
std::optional<std::vector<std::string>> ListProc(const std::string& path);

std::vector<pid_t> AllProcesses();

// Returns the name of the program that a process runs, such as "weightfs"; empty when the process is gone.
std::string CommandOf(pid_t process);

// Returns "process 4711 (weightfs)", or "another process" for 0.
std::string DescribeProcess(pid_t process);

// True when the process is gone, a zombie, or about to end because it was killed.
bool IsEnding(pid_t process);

// Returns the process that holds an exclusive flock(2) on the file, as a PID in this process's namespace: the one in
// the kernel's list of locks, or `claimed` if that process has the file open. Returns 0 when neither is found.
pid_t FindLockHolder(int descriptor, pid_t claimed);

}  // namespace weightfs
