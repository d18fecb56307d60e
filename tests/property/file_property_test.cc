// SPDX-License-Identifier: Apache-2.0
// Compares random operations on one file with a string in memory. A failure prints its seed; set WEIGHTFS_SEED to
// repeat it.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <random>

#include "tests/support/seeds.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

constexpr size_t kLargest = 6 * kMiB;

struct Model {
  std::string data;
  void Write(uint64_t at, std::string_view text) {
    if (at + text.size() > data.size()) data.resize(at + text.size(), '\0');
    data.replace(at, text.size(), text);
  }
  void Zero(uint64_t at, uint64_t length) {
    if (at >= data.size()) return;
    const uint64_t end = std::min<uint64_t>(data.size(), at + length);
    data.replace(at, end - at, end - at, '\0');
  }
};

// Returns offsets and lengths near block and stripe boundaries.
uint64_t Near(std::mt19937_64& random, uint64_t limit) {
  static constexpr uint64_t kUnits[] = {1, 512, kBlockSize, 64 * kKiB, kMiB, 2 * kMiB};
  const uint64_t unit = kUnits[random() % std::size(kUnits)];
  uint64_t value = random() % (limit / unit + 1) * unit;
  if (random() % 3 == 0) value += random() % 5;
  return std::min(value, limit);
}

class FileRun {
 public:
  FileRun(uint64_t seed, size_t devices) : random_(seed), store_(Options(seed, devices)) {
    file_ = store_.Create("file").value();
  }

  void Step() {
    switch (random_() % 24) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5: return Write();
      case 6: return random_() % 2 == 0 ? WriteAligned() : WriteUnaligned();
      case 7:
      case 8: return Append();
      case 9:
      case 10:
      case 11:
      case 12: return Read();
      case 13: return Truncate();
      case 14: return Fallocate();
      case 15: return Copy();
      case 16: return Sync();
      case 17: return Seek();
      case 18: return Reopen();
      case 19:
      case 20: return WriteDirect();
      case 21: return ReadDirect();
      case 22: return HoldLease();
      default: return random_() % 8 == 0 ? Remount() : ReadStreamed();
    }
  }
  void CheckAll() {
    CheckHeld();
    const auto text = store_.ReadAll(file_);
    ASSERT_TRUE(text.has_value()) << ToString(text.error());
    ASSERT_EQ(text->size(), model_.data.size());
    ASSERT_TRUE(*text == model_.data) << "first difference at "
                                      << std::mismatch(text->begin(), text->end(), model_.data.begin()).first -
                                             text->begin();
  }
  void Remount() {
    held_.reset();
    ASSERT_TRUE(store_.Remount().has_value());
    file_ = store_.OpenPath("file").value();
    CheckAll();
  }

 private:
  static TestStoreOptions Options(uint64_t seed, size_t devices) {
    TestStoreOptions options;
    options.devices = devices;
    options.device = {.reorder = true, .seed = seed};
    options.store.commit_interval = std::chrono::milliseconds(seed % 3 == 0 ? 1 : 50);
    return options;
  }
  void Write() {
    const uint64_t at = Near(random_, kLargest), size = 1 + Near(random_, random_() % 4 == 0 ? 2 * kMiB : 20000);
    const std::string text = Pattern(random_(), size);
    ASSERT_TRUE(store_.WriteAt(file_, at, text).has_value());
    model_.Write(at, text);
  }
  // Like an O_DIRECT write through the mount: an aligned buffer that the store may adopt.
  void WriteAligned() {
    static const auto pool = BufferPool::Create({.buffer_size = ByteCount{kMiB}, .count = 64}).value();
    Buffer buffer = pool->Allocate();
    const uint64_t at = RoundDown(random_() % kLargest, kBlockSize);
    const uint64_t size = (1 + random_() % 256) * kBlockSize;
    const std::string text = Pattern(random_(), size);
    std::copy_n(AsBytes(text).data(), size, buffer.data());
    ASSERT_TRUE(store_->files().Write(file_, ByteOffset{at}, {buffer.data(), size}, buffer).has_value());
    model_.Write(at, text);
  }
  // Like a large write from an unaligned buffer: its blocks are on pages of a buffer that the store may adopt.
  void WriteUnaligned() {
    static const auto pool = BufferPool::Create({.buffer_size = ByteCount{2 * kMiB}, .count = 64}).value();
    uint64_t at = Near(random_, kLargest);
    for (uint64_t piece = 1 + random_() % 3; piece > 0; --piece) {
      Buffer buffer = pool->Allocate();
      const std::string text = Pattern(random_(), 1 + Near(random_, kMiB));
      std::byte* data = buffer.data() + at % kBlockSize;
      std::copy_n(AsBytes(text).data(), text.size(), data);
      ASSERT_TRUE(store_->files().Write(file_, ByteOffset{at}, {data, text.size()}, buffer).has_value());
      model_.Write(at, text);
      at += text.size();
    }
  }
  // Bypasses the store, like the holder of a lease.
  void WriteDirect() {
    const uint64_t at = RoundDown(Near(random_, kLargest), kBlockSize);
    uint64_t size = 1 + Near(random_, random_() % 4 == 0 ? 2 * kMiB : 40000);
    std::optional<uint64_t> new_size;
    if (random_() % 2 == 0) {
      new_size = at + size;
      if (random_() % 2 == 0) *new_size = RoundUp(*new_size, kBlockSize) + Near(random_, kMiB);
    }
    // Whole blocks, unless the file ends there.
    const uint64_t end = new_size.value_or(std::max<uint64_t>(model_.data.size(), at + size));
    if (end != at + size) size = RoundUp(size, kBlockSize);
    const std::string text = Pattern(random_(), size);
    const auto written = store_.WriteDirect(file_, at, text, new_size);
    ASSERT_TRUE(written.has_value()) << ToString(written.error());
    model_.Write(at, text);
    if (new_size) model_.data.resize(*new_size, '\0');
  }
  void ReadDirect() {
    const uint64_t at = Near(random_, kLargest + 100000), size = 1 + Near(random_, kMiB);
    const auto text = store_.ReadDirect(file_, at, size);
    ASSERT_TRUE(text.has_value()) << ToString(text.error());
    const std::string expected = at < model_.data.size() ? model_.data.substr(at, size) : "";
    ASSERT_TRUE(*text == expected) << "lease of " << size << " at " << at;
  }
  // A lease keeps showing the content from when it was granted, whatever happens to the file.
  void HoldLease() {
    CheckHeld();
    if (HasFatalFailure()) return;
    held_ = store_->files().LeaseRead(file_, 0, UINT64_MAX).value();
    held_content_ = model_.data;
  }
  void CheckHeld() {
    if (!held_) return;
    auto text = store_.ReadLeased(*held_);
    ASSERT_TRUE(text.has_value()) << ToString(text.error());
    text->resize(held_content_.size());
    ASSERT_TRUE(*text == held_content_) << "a leased block has changed";
    held_.reset();
  }
  static bool HasFatalFailure() { return ::testing::Test::HasFatalFailure(); }
  void Append() {
    if (model_.data.size() > 2 * kLargest) return;
    const std::string text = Pattern(random_(), 1 + Near(random_, 300000));
    ASSERT_EQ(store_->files().Append(file_, AsBytes(text)).value().value, model_.data.size());
    model_.Write(model_.data.size(), text);
  }
  void Read() {
    const uint64_t at = Near(random_, kLargest + 100000), size = 1 + Near(random_, kMiB);
    const auto text = store_.ReadAt(file_, at, size);
    ASSERT_TRUE(text.has_value()) << ToString(text.error());
    const std::string expected = at < model_.data.size() ? model_.data.substr(at, size) : "";
    ASSERT_EQ(text->size(), expected.size());
    ASSERT_TRUE(*text == expected) << "read of " << size << " at " << at;
  }
  void ReadStreamed() {
    ReadStream stream;
    uint64_t at = RoundDown(Near(random_, model_.data.size()), kBlockSize);
    for (int part = 0; part < 8; ++part) {
      std::promise<Result<std::string>> promise;
      auto result = promise.get_future();
      store_->files().Read(file_, ByteOffset{at}, ByteCount{200000}, &stream, [&](Result<ReadView> view) {
        promise.set_value(view ? Result<std::string>(ToText(*view)) : Result<std::string>(view.error()));
      });
      const auto text = result.get();
      ASSERT_TRUE(text.has_value());
      ASSERT_TRUE(*text == (at < model_.data.size() ? model_.data.substr(at, 200000) : "")) << "stream at " << at;
      at += text->size();
    }
  }
  void Truncate() {
    const uint64_t size = Near(random_, kLargest);
    ASSERT_TRUE(store_->files().Truncate(file_, size).has_value());
    model_.data.resize(size, '\0');
  }
  void Fallocate() {
    static constexpr FallocateMode kModes[] = {FallocateMode::kAllocate, FallocateMode::kAllocateKeepSize,
                                               FallocateMode::kPunchHole, FallocateMode::kZeroRange,
                                               FallocateMode::kZeroRangeKeepSize};
    const FallocateMode mode = kModes[random_() % std::size(kModes)];
    const uint64_t at = Near(random_, kLargest), size = 1 + Near(random_, kMiB);
    ASSERT_TRUE(store_->files().Fallocate(file_, mode, at, size).has_value());
    const bool grows = mode == FallocateMode::kAllocate || mode == FallocateMode::kZeroRange;
    if (grows && at + size > model_.data.size()) model_.data.resize(at + size, '\0');
    if (mode != FallocateMode::kAllocate && mode != FallocateMode::kAllocateKeepSize) model_.Zero(at, size);
  }
  void Copy() {
    const uint64_t from = Near(random_, kLargest / 2), size = 1 + Near(random_, kMiB);
    const uint64_t to = from + size + Near(random_, kMiB);
    const auto copied = store_->files().CopyRange(file_, from, file_, to, size);
    ASSERT_TRUE(copied.has_value());
    if (from >= model_.data.size()) {
      ASSERT_EQ(*copied, 0U);
      return;
    }
    const std::string text = model_.data.substr(from, size);
    ASSERT_EQ(*copied, text.size());
    model_.Write(to, text);
  }
  void Sync() { ASSERT_TRUE(store_->Sync(file_).has_value()); }
  void Seek() {
    const uint64_t at = Near(random_, kLargest);
    const auto data = store_->files().Seek(file_, at, SeekTarget::kData);
    const auto first = model_.data.find_first_not_of('\0', at);
    if (first == std::string::npos) return;
    ASSERT_TRUE(data.has_value());
    ASSERT_LE(*data, first) << "SEEK_DATA from " << at << " skips data";
  }
  void Reopen() {
    store_->CloseFile(file_);
    file_ = store_.OpenPath("file").value();
  }

  std::mt19937_64 random_;
  TestStore store_;
  InodePtr file_;
  Model model_;
  std::optional<ReadLease> held_;
  std::string held_content_;
};

class FileProperty : public ::testing::TestWithParam<int> {};

TEST_P(FileProperty, EqualsAStringInMemory) {
  const uint64_t seed = FirstSeed(static_cast<uint64_t>(GetParam()));
  SCOPED_TRACE("WEIGHTFS_SEED=" + std::to_string(seed));
  FileRun run(seed, 1 + seed % 2);
  for (int step = 0; step < 400; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    run.Step();
    if (HasFatalFailure()) return;
  }
  run.CheckAll();
  run.Remount();
}

INSTANTIATE_TEST_SUITE_P(Seeds, FileProperty, ::testing::Range(1, 21));

}  // namespace
}  // namespace weightfs
