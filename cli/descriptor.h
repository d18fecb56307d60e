// An owned file descriptor.
#pragma once

#include <unistd.h>

namespace weightfs::cli {

// Closes it at the end of its life; -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  const int value_;
};

}  // namespace weightfs::cli
