// SPDX-License-Identifier: Apache-2.0
// The user and group as whom a thread accesses files.
#pragma once

#include <sys/fsuid.h>
#include <unistd.h>

namespace weightfs {

// The user and group as whom a thread accesses files: its own with setfsuid(2), otherwise those of the process.
struct FileIdentity {
  uid_t user = 0;
  gid_t group = 0;

  // Those of the calling thread. The system calls change nothing if the number is none.
  static FileIdentity OfThisThread() {
    return {static_cast<uid_t>(setfsuid(static_cast<uid_t>(-1))), static_cast<gid_t>(setfsgid(static_cast<gid_t>(-1)))};
  }
  // Gives them to the calling thread, as far as the process may.
  void Adopt() const {
    const FileIdentity now = OfThisThread();
    if (now.group != group) setfsgid(group);
    if (now.user != user) setfsuid(user);
  }
};

// During the lifetime of this object, files and directories that this thread creates belong to `user` and `group`, and
// the thread has the file permissions of that user. No effect unless the process is root's and `user` is not root.
class FileOwnerScope {
 public:
  FileOwnerScope(uid_t user, gid_t group) : active_(geteuid() == 0 && user != 0) {
    if (!active_) return;
    setfsgid(group);
    setfsuid(user);
  }
  ~FileOwnerScope() {
    if (!active_) return;
    setfsuid(geteuid());
    setfsgid(getegid());
  }
  FileOwnerScope(const FileOwnerScope&) = delete;
  FileOwnerScope& operator=(const FileOwnerScope&) = delete;

 private:
  const bool active_;
};

// Calls `create`, which returns true when it has created its file or directory, so that the new file belongs to `user`
// and `group`. If that fails, calls it again without the scope, because root may write where the user may not; the new
// file then belongs to root. Returns the result of the last call.
template <typename Create>
bool CreateAsOwner(uid_t user, gid_t group, const Create& create) {
  if (const FileOwnerScope as_owner(user, group); create()) return true;
  return create();
}

}  // namespace weightfs
