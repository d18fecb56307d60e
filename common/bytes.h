// SPDX-License-Identifier: Apache-2.0
// Bounded encoding and decoding of fixed-width integers. Keys are big-endian, so that they sort; values are
// little-endian. A function that passes the fields of a layout to a coder, in the order of their bytes, states the
// layout once: it encodes with an Encoder and decodes with a Decoder.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace weightfs {

static_assert(std::endian::native == std::endian::little, "values are stored as they lie in memory");

inline std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
void AppendLittle(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline void AppendBig64(std::string& out, uint64_t value) { AppendLittle(out, __builtin_bswap64(value)); }

// Appends integers, or arrays of bytes.
class Encoder {
 public:
  explicit Encoder(std::string& out) : out_(out) {}

  template <typename... T>
  void Fields(const T&... fields) {
    (AppendLittle(out_, fields), ...);
  }
  // One that is stored in fewer bytes.
  template <typename Stored>
  void FieldAs(uint64_t field) {
    AppendLittle(out_, static_cast<Stored>(field));
  }

 private:
  std::string& out_;
};

// Reads integers from the front of `bytes`. Every read checks the remaining size; after one fails, `ok()` stays false.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Little() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  template <typename... T>
  void Fields(T&... fields) {
    ((fields = Little<T>()), ...);
  }
  template <typename Stored>
  void FieldAs(uint64_t& field) {
    field = Little<Stored>();
  }
  uint64_t Big64() { return __builtin_bswap64(Little<uint64_t>()); }

  // Returns the next `size` bytes, or an empty view and !ok() when fewer remain.
  std::string_view Bytes(size_t size) {
    if (bytes_.size() < size) {
      ok_ = false;
      return {};
    }
    auto head = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return head;
  }
  std::string_view rest() const { return bytes_; }
  bool ok() const { return ok_; }
  // True when every read succeeded and no bytes remain.
  bool Done() const { return ok_ && bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace weightfs
