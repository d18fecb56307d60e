// SPDX-License-Identifier: Apache-2.0
// Lets root create files that belong to another user from the start.
#pragma once

#include <sys/fsuid.h>
#include <unistd.h>

namespace weightfs {

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
