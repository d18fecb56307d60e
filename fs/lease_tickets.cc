// SPDX-License-Identifier: Apache-2.0
#include "fs/lease_tickets.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "common/system_calls.h"

namespace weightfs {

Result<lease::Token> LeaseTickets::Issue(const Opened& opened, uint32_t uid) {
  const void* handle = opened.file != nullptr ? static_cast<const void*>(opened.file.get()) : opened.directory.get();
  lease::Token token{};
  if (!FillRandom(std::as_writable_bytes(std::span(token))))
    return Error{ErrorCode::kIo, fmt::format("a lease ticket cannot be made: getrandom: {}", std::strerror(errno))};
  MutexLock lock(mutex_);
  std::vector<lease::Token>& issued = of_handle_[handle];
  for (const lease::Token& earlier : issued) {
    const Ticket& ticket = tickets_.at(earlier);
    if (ticket.uid == uid && ticket.capabilities == opened.capabilities && ticket.process == opened.process) {
      return earlier;
    }
  }
  if (issued.size() >= kMostOfHandle) ForgetEndedLocked(&issued);
  if (issued.size() >= kMostOfHandle) {
    return Error{ErrorCode::kAgain, "the open file has lease tickets of too many processes and sets of capabilities"};
  }
  issued.push_back(token);
  tickets_.emplace(token, Ticket{opened.file, opened.directory, uid, opened.capabilities, opened.process});
  return token;
}

void LeaseTickets::ForgetEndedLocked(std::vector<lease::Token>* issued) {
  std::erase_if(*issued, [this](const lease::Token& token) REQUIRES(mutex_) {
    const auto at = tickets_.find(token);
    if (at->second.process == nullptr || !at->second.process->HasEnded()) return false;
    tickets_.erase(at);
    return true;
  });
}

void LeaseTickets::ForgetEnded() {
  MutexLock lock(mutex_);
  for (auto& [handle, issued] : of_handle_) ForgetEndedLocked(&issued);
}

LeaseTickets::Opened LeaseTickets::Find(const lease::Token& token, uint32_t uid) {
  MutexLock lock(mutex_);
  const auto found = tickets_.find(token);
  if (found == tickets_.end() || found->second.uid != uid) return {};
  return {found->second.file.lock(), found->second.directory.lock(), found->second.capabilities,
          found->second.process};
}

void LeaseTickets::Forget(const void* handle) {
  MutexLock lock(mutex_);
  const auto found = of_handle_.find(handle);
  if (found == of_handle_.end()) return;
  for (const lease::Token& token : found->second) tickets_.erase(token);
  of_handle_.erase(found);
}

}  // namespace weightfs
