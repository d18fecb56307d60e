// SPDX-License-Identifier: Apache-2.0
// The worked examples of docs/FORMAT.md match the bytes that the code writes. A change of only one of them fails here.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <fstream>

#include "meta/keys.h"
#include "meta/records.h"

namespace weightfs {
namespace {

constexpr InodeId kFile{42};

// The document's hexadecimal digits, concatenated. Explanations follow the bytes of a line after four blanks, and are
// skipped.
std::string DocumentedBytes() {
  std::ifstream in(WEIGHTFS_FORMAT_DOCUMENT);
  EXPECT_TRUE(in.good()) << WEIGHTFS_FORMAT_DOCUMENT;
  std::string bytes;
  for (std::string line; std::getline(in, line);) {
    line.resize(std::min(line.size(), line.find("    ")));
    std::erase_if(line, [](unsigned char letter) { return std::isspace(letter) != 0; });
    bytes += line;
  }
  return bytes;
}

void ExpectDocumented(std::string_view bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  static const std::string documented = DocumentedBytes();
  EXPECT_NE(documented.find(hex), std::string::npos) << hex;
}

TEST(FormatExamplesTest, Keys) {
  ExpectDocumented(keys::Inode(kFile));
  ExpectDocumented(keys::Entry(kRootInode, "model.bin"));
  ExpectDocumented(keys::Extent(kFile, FileBlock{512}));
  ExpectDocumented(keys::Checksums(kFile, 2));
  ExpectDocumented(keys::Attribute(kFile, "user.sha"));
  ExpectDocumented(keys::Orphan(kFile));
  ExpectDocumented(keys::Store("next_ino"));
}

TEST(FormatExamplesTest, InodeRecord) {
  InodeRecord record;
  record.mode = S_IFREG | 0644;
  record.uid = 1000;
  record.gid = 1000;
  record.links = 1;
  record.flags = kInodeHasAttributes;
  record.generation = 1;
  record.size = 4'194'304;
  record.blocks = 1024;
  record.data_version = 3;
  record.accessed = record.created = {1'700'000'000, 0};
  record.modified = record.changed = {1'700'000'001, 500'000'000};
  ExpectDocumented(record.Encode());
}

TEST(FormatExamplesTest, EntryRecord) { ExpectDocumented(EntryRecord{kFile, S_IFREG}.Encode()); }

TEST(FormatExamplesTest, ExtentRecord) {
  ExtentRecord record;
  record.start = DeviceBlock{1024};
  record.count = BlockCount{512};
  record.generation = 3;
  ExpectDocumented(record.Encode(keys::Extent(kFile, FileBlock{512})));
}

TEST(FormatExamplesTest, ChecksumsRecord) { ExpectDocumented(EncodeChecksums({0x98F94189, 0xE3069283})); }

}  // namespace
}  // namespace weightfs
