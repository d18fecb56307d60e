// SPDX-License-Identifier: Apache-2.0
// A file descriptor that is closed on destruction; -1 means none.
#pragma once

#include <unistd.h>

#include <utility>

namespace weightfs {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int number) : number_(number) {}
  UniqueFd(UniqueFd&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  // Transfers the descriptor to the caller, who must close it.
  int Release() { return std::exchange(number_, -1); }
  // Returns the result of close(2), because some filesystems report a failed write only there.
  int Close() {
    const int number = Release();
    return number < 0 ? 0 : close(number);
  }

 private:
  int number_ = -1;
};

}  // namespace weightfs
