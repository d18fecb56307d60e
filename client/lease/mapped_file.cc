// SPDX-License-Identifier: Apache-2.0
#include "client/lease/mapped_file.h"

#include <cerrno>
#include <utility>

namespace weightfs::client {
namespace {

constexpr int kAttempts = 2;  // for a file that changes while it is being loaded

// Returns an empty descriptor if the file has changed.
Result<UniqueFd> Load(const std::shared_ptr<LeaseConnections>& connections, int descriptor, uint64_t offset,
                      uint64_t length, lease::Kind kind, const std::function<bool()>& interrupted) {
  const uint64_t end = offset + length;
  uint64_t content = 0;
  UniqueFd memory;
  while (true) {
    if (interrupted && interrupted()) return Error{ErrorCode{ECANCELED}, "a signal has ended the load"};
    ASSIGN_OR_RETURN(auto begun, Lease::Begin(connections, descriptor, kind, offset, end - offset));
    lease::MapAnswer answer;
    if (!lease::BodyReader(begun.answer.body()).Take(&answer) || begun.answer.descriptors.size() > 1) {
      return Error{ErrorCode{EPROTO}, "no lease: the mount has answered without an end"};
    }
    if (answer.file_size < end) {
      return Error{ErrorCode::kNoAttribute, "no lease: the file ends before what is to be read"};
    }
    if (content != 0 && answer.content != content) return UniqueFd();
    if (answer.end <= offset || answer.end > end || begun.answer.descriptors.empty()) {
      return Error{ErrorCode{EPROTO}, "no lease: the mount has answered with another range"};
    }
    memory = std::move(begun.answer.descriptors.front());
    if (answer.end == end) return memory;
    content = answer.content;
    offset = answer.end;
  }
}

}  // namespace

Result<UniqueFd> MapOpenFile(const std::shared_ptr<LeaseConnections>& connections, int descriptor, uint64_t offset,
                             uint64_t length, bool load, const std::function<bool()>& interrupted) {
  // First what is loaded, which does not wait behind the loads of other programs.
  auto loaded = Load(connections, descriptor, offset, length, lease::Kind::kMapLoaded, interrupted);
  if (!load || loaded || loaded.error().code != ErrorCode::kNoMemory) return loaded;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ASSIGN_OR_RETURN(UniqueFd memory, Load(connections, descriptor, offset, length, lease::Kind::kMap, interrupted));
    if (memory) return memory;
  }
  return Error{ErrorCode::kAgain, "the file is being written all the time"};
}

}  // namespace weightfs::client
