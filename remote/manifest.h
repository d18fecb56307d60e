// SPDX-License-Identifier: Apache-2.0
// The manifest of a version in a bucket: what the version consists of. See docs/FORMAT.md section 11; this header and
// that section change together.
//
// A version N of s3://BUCKET/PREFIX/NAME has the objects
//   PREFIX/NAME/N/PATH                   the bytes of the file PATH, as they are
//   PREFIX/NAME/N/.weightfs/claim        who pushes, has pushed or removes the version
//   PREFIX/NAME/N/.weightfs/sums/I       checksums: slice I of all checksums of the version
//   PREFIX/NAME/N/.weightfs/manifest     written last: without it, or without a claim that covers it, there is no such
//                                        version
#pragma once

#include <array>
#include <map>
#include <vector>

#include "common/result.h"
#include "common/units.h"

namespace weightfs::remote {

// The checksums of a version are the CRC-32C of each 4 KiB block of each file, in the order of the manifest, as
// little-endian u32. The last block of a file is filled up with zeros. Slices cut this sequence.
inline constexpr uint64_t kSumBytes = 4;
inline constexpr uint64_t kSliceBytes = 4 << 20;                   // of each slice but the last
inline constexpr uint64_t kSliceBlocks = kSliceBytes / kSumBytes;  // 4 GiB of data

inline constexpr size_t kMaximumManifest = size_t{1} << 30;  // bytes of a manifest that readers accept
inline constexpr size_t kMaximumLine = size_t{16} << 20;     // bytes of one of its lines
inline constexpr size_t kMaximumAttributes = size_t{8} << 20;  // bytes of the attributes of one file, which fit in it
inline constexpr size_t kMaximumObjects = 20'000'000;        // of one version: more than such a manifest can name

using Attributes = std::map<std::string, std::string>;  // extended attributes "user.*"
using Sha256 = std::array<uint8_t, 32>;

struct FileEntry {
  std::string path;         // relative, UTF-8
  uint32_t mode = 0644;     // permission bits
  uint64_t size = 0;        // bytes
  int64_t modified_ns = 0;  // since the epoch
  Attributes attributes = {};
  uint64_t first_block = 0;  // its first checksum; derived from the sizes of the files before it, not stored

  uint64_t blocks() const { return (size + kBlockSize - 1) / kBlockSize; }
  bool operator==(const FileEntry&) const = default;
};

struct DirectoryEntry {
  std::string path;  // relative; "" is the directory itself
  uint32_t mode = 0755;
  int64_t modified_ns = 0;
  Attributes attributes = {};
  bool operator==(const DirectoryEntry&) const = default;
};

struct LinkEntry {
  std::string path;
  std::string target;
  bool operator==(const LinkEntry&) const = default;
  // True if it may lead out of the directory: the target is absolute, has more `..` at its start than the link has
  // directories above it, or has a `..` behind a name, which may be a link. If no link of a manifest may, none does.
  bool may_lead_outside() const;
};

struct Manifest {
  uint64_t version = 0;                          // 1 to 2^63 - 1
  std::string push;                              // id of the push that made it, 32 hexadecimal digits; as in the claim
  std::string source = {};                       // host and directory, Printable once it is encoded
  int64_t created_ns = 0;                        // since the epoch
  int64_t published_ns = 0;                      // of the publication that was pushed; 0: none
  std::vector<DirectoryEntry> directories = {};  // ordered by path, so parents come first
  std::vector<FileEntry> files = {};             // ordered by path
  std::vector<LinkEntry> links = {};             // ordered by path
  std::vector<Sha256> slices = {};               // of the bytes of each slice of checksums

  int64_t time_ns() const { return published_ns != 0 ? published_ns : created_ns; }
  uint64_t bytes() const;   // of all files
  uint64_t blocks() const;  // checksums
  // Sets FileEntry::first_block. Decode has done so.
  void NumberBlocks();

  // JSON lines; the last line has the SHA-256 of all bytes before it.
  std::string Encode() const;
  // kCorrupt: not what Encode writes, or damaged; kVersion: written by a newer program. Accepts no path that would lead
  // out of the directory, twice to the same file, or through a file or link. Links may lead anywhere.
  static Result<Manifest> Decode(std::string_view text);
};

// The claim of a version.
struct Claim {
  std::string push;         // 32 hexadecimal digits
  std::string source = {};  // as in Manifest
  int64_t created_ns = 0;
  int64_t published_ns = 0;  // as in Manifest
  // Of a publication: where it is, whatever the host and the mount are called. The id of the store, the inode of the
  // directory that has the published one, and its name there. Empty: unknown.
  std::string origin = {};
  // What the objects are sent with, because a push that is continued must not mix two; empty: what the bucket says.
  std::string storage_class = {}, encryption = {}, encryption_key = {};
  // When the version was claimed, another push had been there, which may still write: objects and parts that are in the
  // bucket are not trusted.
  bool taken_over = false;
  // It is the claim of a prune, whose id is in `push`: the version is being removed, or a prune was killed.
  bool removing = false;
  // Of a claim that was taken over: a random id, so that two programs that take over for the same push differ.
  std::string take = {};
  // The push that had the claim before, until it is decided whether that one has completed the version. Nothing is
  // deleted before. Empty: it is decided.
  std::string replaces = {};

  int64_t time_ns() const { return published_ns != 0 ? published_ns : created_ns; }
  // True if a version with this manifest is complete. Otherwise the push that wrote the manifest has lost its claim, or
  // a prune removes the version.
  bool Covers(const Manifest& manifest) const {
    return manifest.push == replaces || (!removing && manifest.push == push);
  }

  std::string Encode() const;  // JSON
  // kCorrupt: damaged; kVersion: written by a newer program. Accepts a claim without a checksum, of earlier programs.
  static Result<Claim> Decode(std::string_view text);
};

// A claim as it is in the bucket.
struct StoredClaim {
  Claim claim = {};   // without a push if it is damaged
  std::string text;   // its bytes; of one that is too large, something that only it has
  std::string etag = {};
  bool damaged() const { return claim.push.empty(); }
  bool operator==(const StoredClaim& other) const { return text == other.text; }
};

Sha256 Sha256Of(std::string_view bytes);
// 32 hexadecimal digits that nobody else has.
std::string RandomId();

// kInvalid with a full line for a path that cannot be part of a version: not UTF-8, empty, more than 900 bytes, with an
// impossible component, or `.weightfs` at its start.
Result<void> CheckPath(std::string_view path);

}  // namespace weightfs::remote
