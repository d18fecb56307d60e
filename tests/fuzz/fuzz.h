// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share. A target is one source file that defines both functions below. It is linked either with
// driver.cc or, by clang, with libFuzzer. A target asserts properties (WEIGHTFS_ASSERT), not only the absence of
// crashes: whatever decodes must encode to the same bytes, and its sizes must be within the stated limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Decodes one input. Aborts the process if a property does not hold. Always returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace weightfs::fuzz {

// The inputs that the mutations begin with, made by the encoders.
std::vector<std::string> Seeds();

inline std::string_view Text(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }
inline std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// Replaces the bytes at `at`, which must exist.
template <typename T>
void Put(std::string& out, size_t at, T value) {
  out.replace(at, sizeof(value), reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace weightfs::fuzz
