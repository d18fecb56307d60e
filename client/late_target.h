// SPDX-License-Identifier: Apache-2.0
// The target of an operation that waits for others on the same file: opened twice, once to learn at its start that it
// can be, and again when it begins, for by then the file is another.
#pragma once

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "client/target.h"

namespace weightfs::client {

// A file to be read that is not there yet: an atomic write before it is about to put it there.
class AbsentTarget : public Target {
 public:
  explicit AbsentTarget(IoError absent) : absent_(std::move(absent)) {}

  const std::string& path() const override { return absent_.path; }
  Run Locate(uint64_t offset, uint64_t length) const override { return {.offset = offset, .length = length}; }
  DirectAlignment alignment() const override { return {}; }
  int Buffered(int* error_number) const override {
    *error_number = absent_.error_number;
    return -1;
  }
  IoResult<uint64_t> Size() const override { return absent_; }
  IoResult<void> Finish(bool success) override { return success ? IoResult<void>(absent_) : IoResult<void>(); }

 private:
  const IoError absent_;
};

// Until Adopt only path() is for other threads than the one that opens it.
class LateTarget : public Target {
 public:
  explicit LateTarget(std::unique_ptr<Target> first) : path_(first->path()), first_(std::move(first)) {
    first_->TakeNothingBack();
  }

  const Target& first() const { return *first_; }
  // As it is now. The first stays open: others may have its descriptors.
  void Adopt(std::unique_ptr<Target> now) { now_ = std::move(now); }

  const std::string& path() const override { return path_; }
  Run Locate(uint64_t offset, uint64_t length) const override { return used().Locate(offset, length); }
  DirectAlignment alignment() const override { return used().alignment(); }
  int any() const override { return used().any(); }
  int Buffered(int* error_number) const override { return used().Buffered(error_number); }
  IoResult<uint64_t> Size() const override { return used().Size(); }
  bool leased() const override { return used().leased(); }
  bool sums_writes() const override { return used().sums_writes(); }
  void NoteWritten(uint64_t offset, std::span<const std::byte> blocks) const override {
    used().NoteWritten(offset, blocks);
  }
  IoResult<void> CheckRead(uint64_t offset, std::span<const std::byte> blocks, bool last) const override {
    return used().CheckRead(offset, blocks, last);
  }
  IoResult<void> Finish(bool success) override {
    [[maybe_unused]] const auto unused = first_->Finish(false);
    if (now_ != nullptr) return now_->Finish(success);
    if (!success) return {};
    return IoError{ECANCELED, path_ + ": cancelled before it began", path_};  // All of its no bytes were transferred.
  }

 private:
  const Target& used() const { return now_ != nullptr ? *now_ : *first_; }

  const std::string path_;
  std::unique_ptr<Target> first_;
  std::unique_ptr<Target> now_;
};

}  // namespace weightfs::client
