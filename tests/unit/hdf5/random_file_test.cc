// SPDX-License-Identifier: Apache-2.0
// Compares random requests on a File with the same requests on an array of bytes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "hdf5/file.h"
#include "tests/support/seeds.h"
#include "tests/unit/client/files.h"

namespace weightfs::hdf5 {
namespace {

using client::Bytes;
using client::RandomBytes;

constexpr uint64_t kSpace = 12 << 20;

// Small limits, so that the requests take every path.
Settings SettingsFor(uint64_t seed) {
  return {.direct_size = seed % 2 == 0 ? 256U << 10 : 4096U,
          .cache = seed % 3 == 0 ? 1U << 20 : 4U << 20,
          .read_ahead = seed % 5 == 0 ? 0 : 512U << 10};
}

class RandomFile {
 public:
  RandomFile(std::string path, uint64_t seed) : path_(std::move(path)), settings_(SettingsFor(seed)), random_(seed) {
    Open();
  }

  void Step() {
    switch (random_() % 16) {
      case 0: return Flush();
      case 1: return random_() % 4 == 0 ? Truncate() : Flush();
      case 2: return random_() % 4 == 0 ? Reopen() : Stream();
      case 3: return Vector();
      case 4:
      case 5:
      case 6:
      case 7:
      case 8: return Write();
      default: return Read();
    }
  }
  void Check() {
    const auto closed = file_->Close();
    ASSERT_TRUE(closed.has_value()) << closed.error().what;
    ASSERT_EQ(client::ReadFile(path_), model_);
  }

 private:
  void Open() {
    file_ = *File::Open(path_, {.write = true, .create = true}, settings_);
    // Otherwise the kernel may read ahead first.
    posix_fadvise(file_->descriptor(), 0, 0, POSIX_FADV_RANDOM);
  }
  Content AnyContent() { return random_() % 2 == 0 ? Content::kRaw : Content::kMetadata; }
  size_t AnySize() {
    constexpr size_t kMost[] = {100, 5'000, 70'000, 1 << 20, 3 << 20};
    return 1 + random_() % kMost[random_() % 5];
  }
  uint64_t AnyOffset() {
    const uint64_t at = random_() % 3 == 0 ? last_ : random_() % kSpace;
    return std::min<uint64_t>(random_() % 2 == 0 ? at / 4096 * 4096 : at, kSpace);
  }
  Bytes ModelOf(uint64_t offset, size_t size) {
    Bytes bytes(size);
    if (offset < model_.size()) {
      std::copy_n(model_.begin() + static_cast<long>(offset), std::min(size, model_.size() - offset), bytes.begin());
    }
    return bytes;
  }

  void Write() { WriteAt(AnyOffset(), AnySize()); }
  void WriteAt(uint64_t offset, size_t size) {
    const Bytes bytes = RandomBytes(size, static_cast<unsigned>(random_()));
    const auto written = file_->Write(AnyContent(), offset, bytes);
    ASSERT_TRUE(written.has_value()) << written.error().what;
    model_ = client::AfterWrite(std::move(model_), offset, bytes);
    last_ = offset + bytes.size();
    ASSERT_EQ(file_->size(), model_.size());
  }
  void Read() { ReadAt(AnyContent(), AnyOffset(), AnySize()); }
  void ReadAt(Content content, uint64_t offset, size_t size) {
    Bytes out(size, std::byte{0xEE});
    const auto read = file_->Read(content, offset, out);
    ASSERT_TRUE(read.has_value()) << read.error().what;
    ASSERT_EQ(out, ModelOf(offset, size)) << "at " << offset << ", " << size << " bytes";
    last_ = offset + size;
  }
  // Reads sequentially, with writes into the read-ahead window and flushes between the reads.
  void Stream() {
    DropPages();
    const size_t step = random_() % 2 == 0 ? AnySize() : 1 + random_() % 70'000;
    uint64_t offset = AnyOffset();
    for (int i = 0; i < 20 && offset < model_.size() && !testing::Test::HasFatalFailure(); ++i, offset += step) {
      ReadAt(Content::kRaw, offset, step);
      if (random_() % 4 == 0) WriteAt(offset + random_() % (512 << 10), 1 + random_() % 5'000);
      if (random_() % 4 == 0) Flush();
    }
  }
  void Vector() {
    std::vector<File::WriteRequest> writes;
    std::vector<Bytes> kept;
    uint64_t offset = AnyOffset();
    for (int i = 0; i < 6; ++i) {
      kept.push_back(RandomBytes(AnySize() / 4 + 1, static_cast<unsigned>(random_())));
      if (random_() % 3 == 0) offset = AnyOffset();
      writes.push_back({.content = AnyContent(), .offset = offset});
      offset += kept.back().size();
    }
    for (size_t i = 0; i < writes.size(); ++i) {
      writes[i].memory = kept[i];
      model_ = client::AfterWrite(std::move(model_), writes[i].offset, kept[i]);
    }
    ASSERT_TRUE(file_->WriteMany(writes).has_value());
    std::vector<File::ReadRequest> reads;
    for (size_t i = 0; i < writes.size(); ++i) reads.push_back({.offset = writes[i].offset, .memory = kept[i]});
    ASSERT_TRUE(file_->ReadMany(reads).has_value());
    for (const auto& read : reads) {
      ASSERT_EQ(Bytes(read.memory.begin(), read.memory.end()), ModelOf(read.offset, read.memory.size()));
    }
  }
  void Flush() { ASSERT_TRUE(file_->Flush(random_() % 32 == 0).has_value()); }
  void Truncate() {
    const uint64_t size = random_() % kSpace;
    ASSERT_TRUE(file_->Truncate(size).has_value());
    model_.resize(size);
    ASSERT_EQ(file_->size(), size);
  }
  void Reopen() {
    ASSERT_TRUE(file_->Close().has_value());
    DropPages();
    Open();
    ASSERT_EQ(file_->size(), model_.size());
  }
  void DropPages() const {
    const int descriptor = open(path_.c_str(), O_RDONLY);
    fdatasync(descriptor);
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    close(descriptor);
  }

  const std::string path_;
  const Settings settings_;
  std::mt19937_64 random_;
  std::unique_ptr<File> file_;
  Bytes model_;
  uint64_t last_ = 0;
};

TEST(RandomFileTest, MatchesAnArray) {
  const uint64_t first = FirstSeed();
  for (uint64_t seed = first; seed < first + 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "WEIGHTFS_SEED=" << seed);
    const client::Folder folder;
    RandomFile file(folder / "file", seed);
    for (int step = 0; step < 250; ++step) {
      file.Step();
      if (testing::Test::HasFatalFailure()) FAIL() << "at step " << step;
    }
    file.Check();
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace weightfs::hdf5
