// SPDX-License-Identifier: Apache-2.0
// cuFile (libcufile.so.0), NVIDIA's library for transfers between files and the memory of a GPU. It is looked for when
// a program asks for it; WEIGHTFS_CUFILE_LIBRARY names another one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/result.h"

namespace weightfs::client {

// Immutable; every function may be called by several threads.
class Cufile : public std::enable_shared_from_this<Cufile> {
 public:
  // Opens cuFile's driver, for the rest of the process. `path` is tried where the loader finds none. ENOENT without
  // the library; ENODEV, ... where it refuses to work.
  static Result<std::shared_ptr<const Cufile>> Load(const std::string& path);

  // "1.20", or "of an unknown version".
  std::string version() const;
  // Whether any filesystem at all is reached without the host's memory, and by which of NVIDIA's two ways. Where none
  // is, cuFile works in its compatibility mode: ordinary reads and copies, inside the library.
  bool direct() const { return kinds_ != 0; }
  std::string DirectWay() const;
  // The same of the filesystem, or the device, that an open file is on.
  bool DirectFor(int descriptor) const;

  // An open file, known to cuFile while this lives. The descriptor must stay open.
  class File {
   public:
    ~File();
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    // Transfers between the file at `offset` and the memory at `base` + `at`, which must be of the GPU whose context
    // is the thread's. `base` is that of pinned memory, or any. Bytes done, which may be fewer; 0: the end of the file.
    Result<uint64_t> Read(uint64_t base, uint64_t at, uint64_t size, uint64_t offset) const;
    Result<uint64_t> Write(uint64_t base, uint64_t at, uint64_t size, uint64_t offset) const;

   private:
    friend class Cufile;
    File(std::shared_ptr<const Cufile> cufile, void* handle) : cufile_(std::move(cufile)), handle_(handle) {}
    const std::shared_ptr<const Cufile> cufile_;
    void* const handle_;
  };
  Result<std::unique_ptr<const File>> Open(int descriptor) const;

  // Memory of the GPU that is ready for transfers while this lives: the context of its GPU must be the thread's when
  // it is made. ENOMEM, ... when cuFile refuses.
  class Pin {
   public:
    ~Pin();
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    friend class Cufile;
    Pin(std::shared_ptr<const Cufile> cufile, uint64_t address) : cufile_(std::move(cufile)), address_(address) {}
    const std::shared_ptr<const Cufile> cufile_;
    const uint64_t address_;
  };
  Result<std::unique_ptr<const Pin>> PinMemory(uint64_t address, uint64_t size) const;

 private:
  struct Functions;
  struct Status;
  explicit Cufile(std::shared_ptr<const Functions> functions) : functions_(std::move(functions)) {}
  Result<void> Start();
  static Error Failed(const char* action, int64_t code);
  Result<void> Check(const char* action, const Status& status) const;
  static Result<uint64_t> Outcome(const char* action, int64_t result, int error_number);

  const std::shared_ptr<const Functions> functions_;
  int version_ = 0;     // 1200 for 1.20; 0: unknown
  unsigned kinds_ = 0;  // a bit for each kind of filesystem that is reached directly, as cuFile numbers them
  bool nvidia_fs_ = false;
};

}  // namespace weightfs::client
