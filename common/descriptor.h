// SPDX-License-Identifier: Apache-2.0
// A file descriptor that closes itself; -1 is none.
#pragma once

#include <unistd.h>

#include <utility>

namespace weightfs {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { Close(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  // Returns what close(2) returns: some filesystems report a failed write only here.
  int Close() {
    const int number = std::exchange(number_, -1);
    return number < 0 ? 0 : close(number);
  }

 private:
  int number_ = -1;
};

}  // namespace weightfs
