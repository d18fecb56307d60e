// SPDX-License-Identifier: Apache-2.0
// POSIX.1e access control lists, in the form of Linux's extended attributes. The kernel enforces them for operations on
// the mount; CheckAccess enforces them for leases. This class keeps them consistent with the mode.
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
inline bool IsAcl(std::string_view name) { return name == kAccessAclName || name == kDefaultAclName; }

// Externally synchronized. A decoded list is valid: it has exactly one entry each for owner, group and others, in the
// standard order, and a mask if there are named users or groups. An empty list means that there is no ACL.
class Acl {
 public:
  // Returns kInvalid when the bytes are not a valid list. No bytes, or no entries, decode to the empty list.
  static Result<Acl> Decode(std::string_view bytes);
  std::string Encode() const;

  bool empty() const { return entries_.empty(); }

  // True when the nine permission bits express the whole list.
  bool IsMode() const;
  // Returns `mode` with the permission bits that the list implies for programs that only know modes.
  uint32_t ApplyToMode(uint32_t mode) const;
  // True when `who` may do `wanted` (a sum of 4 read, 2 write, 1 search) with a file of this owner and group: POSIX.1e
  // 23.1.5.
  bool Permits(const Credentials& who, uint32_t owner, uint32_t group, uint16_t wanted) const;
  // chmod(2): sets the permissions of the owner, of others and of the mask (without a mask: the group) from `mode`.
  void SetMode(uint32_t mode);
  // Converts a directory's default list to the access list of an inode created in it with `mode`. Afterwards `mode`
  // holds the permissions that both allow.
  void Inherit(uint32_t* mode);

 private:
  struct Entry {
    uint16_t tag = 0;
    uint16_t permissions = 0;
    uint32_t id = 0;
  };

  bool IsValid() const;
  // The entry that the group bits of a mode show: the mask, or the group's entry when there is no mask.
  Entry* GroupClass();

  std::vector<Entry> entries_;
};

}  // namespace weightfs
