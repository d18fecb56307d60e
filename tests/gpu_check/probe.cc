// SPDX-License-Identifier: Apache-2.0
// Transfers between files and the memory of a real GPU, by libweightfs and CUDA's driver alone (scripts/gpu-check).
//
//   gpu_probe open MODE                          opens the GPU
//   gpu_probe transfers MODE DIRECT FOLDER SIZE  files of 8 handles in 8 threads, and one of SIZE bytes for its speed
//   gpu_probe write MODE DIRECT FILE SIZE        writes a file
//   gpu_probe read MODE DIRECT FILE SIZE         reads it, and compares its bytes
//
// MODE is bounce, auto or cufile, DIRECT is auto, never or require. It prints facts in JSON. The exit status is 1 for a
// failure and 3 if this machine or filesystem cannot do it; the reason is on standard error.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "client/handle.h"

namespace {

using weightfs::Error;
using weightfs::ErrorCode;
using weightfs::Result;
using weightfs::client::Direct;
using weightfs::client::GpuMode;
using weightfs::client::Handle;
using weightfs::client::HandleOptions;
using weightfs::client::MemoryView;

// What this machine or filesystem cannot do.
struct Impossible : std::runtime_error {
  using runtime_error::runtime_error;
};

std::string Text(const Error& error) {
  const std::string what = error.what.empty() ? strerror(error.error_number()) : error.what;
  return error.path.empty() ? what : error.path + ": " + what;
}

template <typename T>
T Value(Result<T> result) {
  if (!result.has_value()) {
    if (result.error().code == ErrorCode::kNotSupported) throw Impossible(Text(result.error()));
    throw std::runtime_error(Text(result.error()));
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// CUDA's driver, and the primary context of the first GPU.
class Driver {
 public:
  Driver() {
    const char* named = std::getenv("WEIGHTFS_CUDA_LIBRARY");
    library_ = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW);
    if (library_ == nullptr) throw Impossible(dlerror());
    Call<unsigned>("cuInit", 0);
    int device = 0;
    Call<int*, int>("cuDeviceGet", &device, 0);
    Call<void**, int>("cuDevicePrimaryCtxRetain", &context_, device);
  }
  // Must be called on each thread that uses the others.
  void Enter() const { Call<void*>("cuCtxSetCurrent", context_); }
  uint64_t Allocate(size_t size) const {
    uint64_t address = 0;
    Call<uint64_t*, size_t>("cuMemAlloc_v2", &address, size);
    return address;
  }
  void Free(uint64_t address) const { Call<uint64_t>("cuMemFree_v2", address); }
  void Set(uint64_t address, std::span<const std::byte> bytes) const {
    Call<uint64_t, const void*, size_t>("cuMemcpyHtoD_v2", address, bytes.data(), bytes.size());
  }
  void Get(uint64_t address, std::span<std::byte> bytes) const {
    Call<void*, uint64_t, size_t>("cuMemcpyDtoH_v2", bytes.data(), address, bytes.size());
  }

 private:
  template <typename... Arguments>
  void Call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    const int status = function == nullptr ? -1 : function(arguments...);
    if (status == 100) throw Impossible("CUDA finds no GPU");
    if (status != 0) throw std::runtime_error(std::string(name) + ": CUDA error " + std::to_string(status));
  }
  void* library_ = nullptr;
  void* context_ = nullptr;
};

using Bytes = std::vector<std::byte>;

Bytes Content(size_t size, uint64_t seed) {
  Bytes bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (auto& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

class DeviceBytes {
 public:
  DeviceBytes(const Driver& driver, size_t size) : driver_(driver), size_(size), address_(driver.Allocate(size)) {}
  ~DeviceBytes() {
    try {
      driver_.Free(address_);
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
    }
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  MemoryView View() const { return MemoryView::OnDevice(address_, size_, 0); }
  void Set(const Bytes& bytes) const { driver_.Set(address_, bytes); }
  Bytes Get() const {
    Bytes bytes(size_);
    driver_.Get(address_, bytes);
    return bytes;
  }

 private:
  const Driver& driver_;
  const size_t size_;
  const uint64_t address_;
};

void Expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

template <typename T>
T Named(const std::string& name, std::initializer_list<std::pair<const char*, T>> values) {
  for (const auto& [known, value] : values) {
    if (name == known) return value;
  }
  throw std::runtime_error("unknown value '" + name + "'");
}

std::unique_ptr<Handle> Open(const std::string& mode, const std::string& direct, HandleOptions options = {}) {
  options.gpu =
      Named<GpuMode>(mode, {{"bounce", GpuMode::kBounce}, {"auto", GpuMode::kAuto}, {"cufile", GpuMode::kCufile}});
  options.direct =
      Named<Direct>(direct, {{"auto", Direct::kAuto}, {"never", Direct::kNever}, {"require", Direct::kRequire}});
  auto handle = Handle::Create(options);
  if (!handle.has_value()) throw Impossible(Text(handle.error()));
  return std::move(*handle);
}

nlohmann::json Facts(const Handle& handle) {
  const auto facts = handle.gpu().value();
  return {{"gpu", facts.name}, {"cuda", facts.cuda}, {"cufile", facts.cufile},
          {"mode", facts.mode == GpuMode::kCufile ? "cufile" : "bounce"}, {"reason", facts.why},
          {"refusal", facts.refusal}, {"cufile_bytes", facts.cufile_bytes}, {"bounce_bytes", facts.bounce_bytes},
          {"direct_operations", handle.direct_operations()}};
}

Bytes ReadFile(const std::string& path) {
  Bytes bytes(std::filesystem::file_size(path));
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(bytes.data()), static_cast<long>(bytes.size()));
  return bytes;
}

void ExpectUsed(const Handle& handle, const std::string& mode, const std::string& direct) {
  const auto facts = handle.gpu().value();
  Expect(mode != "cufile" || facts.cufile_bytes > 0, "mode cufile, and cuFile transferred nothing");
  Expect(mode != "bounce" || facts.cufile_bytes == 0, "mode bounce, and cuFile transferred bytes");
  Expect(direct != "require" || handle.direct_operations() > 0, "direct=require, and no operation used a lease");
}

// A new file or one that exists, overwritten and read at odd offsets, by path and by descriptor, with pinned memory.
void TransferFile(const Driver& driver, const std::string& mode, const std::string& direct, const std::string& path,
                  unsigned number) {
  constexpr size_t kSize = 3'000'001;
  constexpr size_t kOdd = 4097;
  const HandleOptions small{.block_size = 65536, .queue_depth = 8, .overlap_events = true, .intra_op_parallelism = 2};
  driver.Enter();
  if (number > 0) std::ofstream(path, std::ios::binary) << std::string(kSize + 5000, 'x');
  const auto handle = Open(mode, direct, small);
  const Bytes first = Content(kSize, number);
  const Bytes second = Content(kSize, number + 100);
  const DeviceBytes source(driver, kSize);
  const DeviceBytes target(driver, kSize);
  source.Set(first);
  Value(handle->Write(path, source.View()));
  Expect(ReadFile(path) == first, path + ": other bytes than were written");
  source.Set(second);
  Value(handle->Write(path, source.View(), {.offset = kOdd}));
  Bytes expected = first;
  expected.resize(kOdd);
  expected.insert(expected.end(), second.begin(), second.end());
  Expect(ReadFile(path) == expected, path + ": other bytes than were written at an odd offset");
  Value(handle->PinDevice(target.View()));
  Value(handle->Read(path, target.View(), {.offset = kOdd}));
  Expect(target.Get() == second, path + ": other bytes were read into pinned memory");
  target.Set(first);
  const int descriptor = open(path.c_str(), O_RDWR | O_DIRECT | O_NONBLOCK | O_CLOEXEC);
  Expect(descriptor >= 0, path + ": " + strerror(errno));
  const auto read = handle->Read(descriptor, target.View(), {.offset = kOdd});
  close(descriptor);
  Value(read);
  Expect(target.Get() == second, path + ": other bytes were read from a descriptor");
  ExpectUsed(*handle, mode, direct);
}

template <typename Transfer>
double GigabytesPerSecond(size_t size, const Transfer& transfer) {
  std::vector<double> rates;
  for (int round = 0; round < 3; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    transfer();
    rates.push_back(static_cast<double>(size) / 1e9 /
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(rates.begin(), rates.end());
  return rates[1];
}

nlohmann::json Transfers(const Driver& driver, const std::string& mode, const std::string& direct,
                         const std::string& folder, size_t size) {
  std::vector<std::exception_ptr> failures(8);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < failures.size(); ++number) {
    threads.emplace_back([&, number] {
      try {
        TransferFile(driver, mode, direct, folder + "/probe-" + std::to_string(number), number);
      } catch (...) {
        failures[number] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  const auto handle = Open(mode, direct, {.queue_depth = 32, .overlap_events = true});
  const std::string path = folder + "/probe-large";
  const Bytes bytes = Content(size, 7);
  const DeviceBytes memory(driver, size);
  memory.Set(bytes);
  Value(handle->PinDevice(memory.View()));
  const double write = GigabytesPerSecond(size, [&] { Value(handle->Write(path, memory.View(), {.durable = true})); });
  memory.Set(Bytes(size));
  const double read = GigabytesPerSecond(size, [&] { Value(handle->Read(path, memory.View())); });
  Expect(memory.Get() == bytes, path + ": other bytes than were written");
  ExpectUsed(*handle, mode, direct);
  nlohmann::json facts = Facts(*handle);
  facts.update({{"size", size}, {"write_gb_s", write}, {"read_gb_s", read}});
  return facts;
}

nlohmann::json OneFile(const Driver& driver, const std::vector<std::string>& words) {
  const auto handle = Open(words[1], words[2]);
  const size_t size = std::stoull(words[4]);
  const DeviceBytes memory(driver, size);
  memory.Set(words[0] == "write" ? Content(size, 1) : Bytes(size));
  if (words[0] == "write") {
    Value(handle->Write(words[3], memory.View(), {.durable = true}));
  } else {
    Value(handle->Read(words[3], memory.View()));
    Expect(memory.Get() == Content(size, 1), words[3] + ": other bytes than were written");
  }
  return Facts(*handle);
}

nlohmann::json Run(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "open") return Facts(*Open(words[1], "auto"));
  if (words.size() != 5) throw std::runtime_error("see the head of tests/gpu_check/probe.cc for its arguments");
  const Driver driver;
  driver.Enter();
  if (words[0] == "transfers") return Transfers(driver, words[1], words[2], words[3], std::stoull(words[4]));
  return OneFile(driver, words);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    std::cout << Run({arguments + 1, arguments + count}).dump() << "\n";
    return 0;
  } catch (const Impossible& error) {
    std::cerr << error.what() << "\n";
    return 3;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
