// SPDX-License-Identifier: Apache-2.0
// POSIX.1e access control lists, in the form Linux gives them in extended attributes. The kernel enforces them, but
// for what is done by other ways than its own; here they are kept in step with the mode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "store/types.h"

namespace weightfs {

inline constexpr std::string_view kAccessAclName = "system.posix_acl_access";
inline constexpr std::string_view kDefaultAclName = "system.posix_acl_default";

// Externally synchronized. A decoded list is valid: the entries of owner, group and others are there once, in the
// order of the standard, and a mask where named users or groups need one. An empty list stands for none.
class Acl {
 public:
  // kInvalid when the bytes are no valid list. No bytes, or no entries, are the empty list.
  static Result<Acl> Decode(std::string_view bytes);
  std::string Encode() const;

  bool empty() const { return entries_.empty(); }

  // Whether the nine permission bits say all that the list says.
  bool IsMode() const;
  // `mode` with the permission bits that the list shows to programs that know modes only.
  uint32_t ApplyToMode(uint32_t mode) const;
  // Whether `who` may do `wanted` (of 4 read, 2 write, 1 search) with a file of this owner and group: POSIX.1e 23.1.5.
  bool Permits(const Credentials& who, uint32_t owner, uint32_t group, uint16_t wanted) const;
  // chmod(2): the owner's, the others' and the mask's (without one: the group's) permissions become those of `mode`.
  void SetMode(uint32_t mode);
  // Makes the default list of a directory the access list of an inode created in it with `mode`, which afterwards holds
  // the permissions that both allow.
  void Inherit(uint32_t* mode);

 private:
  struct Entry {
    uint16_t tag = 0;
    uint16_t permissions = 0;
    uint32_t id = 0;
  };

  bool IsValid() const;
  // The entry whose permissions the group bits of a mode show: the mask, or the group's where there is none.
  Entry* GroupClass();

  std::vector<Entry> entries_;
};

}  // namespace weightfs
