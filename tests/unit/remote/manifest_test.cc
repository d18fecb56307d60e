// SPDX-License-Identifier: Apache-2.0
#include "remote/manifest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <utility>

#include "common/checksum.h"
#include "common/hex.h"
#include "remote/series.h"

namespace weightfs::remote {
namespace {

constexpr const char* kPush = "0123456789abcdef0123456789abcdef";

Manifest Example() {
  Manifest manifest{.version = 7, .push = kPush, .source = "host:/data", .created_ns = 1'500'000'000'000'000'000};
  manifest.directories = {{.path = ""}, {.path = "a", .mode = 0750, .modified_ns = -1}, {.path = "a/b"}};
  manifest.files = {{.path = "a/b/\xc3\xa9", .size = 4097, .attributes = {{"user.note", std::string("\0\xff", 2)}}},
                    {.path = "a/x", .size = 0},
                    {.path = "z", .mode = 0400, .size = 4096}};
  manifest.links = {{.path = "a/link", .target = "../z"}};
  manifest.slices = {Sha256Of("checksums")};
  manifest.NumberBlocks();
  return manifest;
}

void ExpectSame(const Manifest& a, const Manifest& b) {
  EXPECT_EQ(a.version, b.version);
  EXPECT_EQ(a.push, b.push);
  EXPECT_EQ(a.source, b.source);
  EXPECT_EQ(a.created_ns, b.created_ns);
  EXPECT_EQ(a.directories, b.directories);
  EXPECT_EQ(a.files, b.files);
  EXPECT_EQ(a.slices, b.slices);
  EXPECT_EQ(a.links.size(), b.links.size());
}

// Returns the manifest with `from` replaced by `to` in its lines, and with the right hash.
std::string Changed(const std::string& from, const std::string& to) {
  std::string text = Example().Encode();
  text.resize(text.rfind("{\"sha256\""));
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  return text + "{\"sha256\":\"" + ToHex(Sha256Of(text)) + "\"}\n";
}

ErrorCode CodeOf(const std::string& text) {
  const auto decoded = Manifest::Decode(text);
  return decoded ? ErrorCode{} : decoded.error().code;
}

TEST(Manifest, SurvivesEncodingAndDecoding) {
  const auto decoded = Manifest::Decode(Example().Encode());
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what;
  ExpectSame(*decoded, Example());
  EXPECT_EQ(decoded->bytes(), 4097U + 4096);
  EXPECT_EQ(decoded->blocks(), 3U);
  EXPECT_EQ(decoded->files[2].first_block, 2U);
  EXPECT_EQ(decoded->files[2].mode, 0400U);
}

TEST(Claim, SaysWhomItTakesOver) {
  const Claim claim{.push = kPush, .source = "host", .created_ns = 5, .taken_over = true, .take = "x", .replaces = "y"};
  const auto decoded = Claim::Decode(claim.Encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->Encode(), claim.Encode());
  EXPECT_EQ(decoded->take, "x");
  EXPECT_EQ(decoded->replaces, "y");
  EXPECT_TRUE(Claim::Decode(std::string("{\"weightfs-claim\":1,\"push\":\"") + kPush +
                            "\",\"source\":\"\",\"created\":1}\n"));
}

TEST(Claim, EveryChangedBitOfItsFieldsIsDamage) {
  const std::string text = Claim{.push = kPush, .source = "host", .created_ns = 5, .replaces = kPush}.Encode();
  for (size_t bit = 0; bit < text.find("sha256") * 8; ++bit) {
    std::string changed = text;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(Claim::Decode(changed)) << changed;
  }
}

TEST(Claim, CoversAManifestOfTheOneItReplacesUntilItIsDecided) {
  const Manifest former{.version = 1, .push = "former"}, own{.version = 1, .push = "own"};
  EXPECT_TRUE((Claim{.push = "own", .replaces = "former"}).Covers(former));
  EXPECT_TRUE((Claim{.push = "own", .removing = true, .replaces = "former"}).Covers(former));
  EXPECT_FALSE((Claim{.push = "own"}).Covers(former));
  EXPECT_TRUE((Claim{.push = "own"}).Covers(own));
  EXPECT_FALSE((Claim{.push = "own", .removing = true}).Covers(own));
}

// The example of docs/FORMAT.md section 11.
TEST(Manifest, IsEncodedAsDocumented) {
  constexpr int64_t kTime = 1'767'225'600'000'000'000;
  const std::byte digits[kBlockSize] = {std::byte{'1'}, std::byte{'2'}, std::byte{'3'}, std::byte{'4'}, std::byte{'5'},
                                        std::byte{'6'}, std::byte{'7'}, std::byte{'8'}, std::byte{'9'}};
  uint32_t sum = 0;
  Crc32cBlocks(digits, &sum);
  const Manifest manifest{
      .version = 1000,
      .push = "00112233445566778899aabbccddeeff",
      .source = "node7:/mnt/tensors/step-1000",
      .created_ns = kTime,
      .directories = {{.path = "", .mode = 0755, .modified_ns = kTime}},
      .files = {{.path = "digits", .size = 9, .modified_ns = kTime, .attributes = {{"user.step", "1000"}}}},
      .links = {{.path = "latest", .target = "digits"}},
      .slices = {Sha256Of({reinterpret_cast<const char*>(&sum), sizeof sum})}};
  EXPECT_EQ(manifest.Encode(), R"({"weightfs-manifest":1,"version":1000,"push":"00112233445566778899aabbccddeeff",)"
                               R"("source":"node7:/mnt/tensors/step-1000","created":1767225600000000000})"
                               "\n"
                               R"({"directory":"","mode":493,"modified":1767225600000000000})"
                               "\n"
                               R"({"file":"digits","size":9,"mode":420,"modified":1767225600000000000,)"
                               R"("attributes":{"user.step":"MTAwMA=="}})"
                               "\n"
                               R"({"link":"latest","target":"digits"})"
                               "\n"
                               R"({"slice":"9f7ffdb61fa047ce1662fd7218afb96f496d3145ac5bcefa759bf51331f9c972"})"
                               "\n"
                               R"({"sha256":"f923f521c93669df290a6016d123462ded00cc29e4b06571d5cc9935a080fe5b"})"
                               "\n");
}

TEST(Manifest, OfAnEmptyDirectoryHasNoChecksums) {
  const Manifest empty{.version = 1, .push = kPush, .directories = {{.path = ""}}};
  const auto decoded = Manifest::Decode(empty.Encode());
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what;
  EXPECT_EQ(decoded->blocks(), 0U);
}

TEST(Manifest, DamageOfAnyByteIsFound) {
  const std::string text = Example().Encode();
  for (size_t at = 0; at < text.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      EXPECT_EQ(CodeOf(damaged), ErrorCode::kCorrupt) << at;
    }
    EXPECT_EQ(CodeOf(text.substr(0, at)), ErrorCode::kCorrupt) << at;
  }
  EXPECT_EQ(CodeOf(text + "\n"), ErrorCode::kCorrupt);
  EXPECT_EQ(CodeOf(text + text), ErrorCode::kCorrupt);
}

TEST(Manifest, OfANewerFormatSaysSo) {
  EXPECT_EQ(CodeOf(Changed("\"weightfs-manifest\":1", "\"weightfs-manifest\":2")), ErrorCode::kVersion);
  EXPECT_EQ(CodeOf(Changed("\"weightfs-manifest\":1", "\"weightfs-manifest\":0")), ErrorCode::kCorrupt);
}

TEST(Manifest, PathsThatLeadElsewhereAreRefused) {
  const std::pair<const char*, const char*> changes[] = {
      {"\"file\":\"z\"", "\"file\":\"../z\""},        {"\"file\":\"z\"", "\"file\":\"/z\""},
      {"\"file\":\"z\"", "\"file\":\"z/\""},          {"\"file\":\"z\"", "\"file\":\"z//y\""},
      {"\"file\":\"z\"", "\"file\":\"./z\""},         {"\"file\":\"z\"", "\"file\":\"\""},
      {"\"file\":\"z\"", "\"file\":\"z\\u0000\""},    {"\"file\":\"z\"", "\"file\":\".weightfs/z\""},
      {"\"file\":\"z\"", "\"file\":\".weightfs\""},   {"\"file\":\"z\"", "\"file\":\"a/link/z\""},
      {"\"file\":\"z\"", "\"file\":\"a/x/z\""},       {"\"file\":\"z\"", "\"file\":\"c/z\""},
      {"\"file\":\"z\"", "\"file\":\"a/x\""},         {"\"file\":\"z\"", "\"file\":\"a\""},
      {"\"link\":\"a/link\"", "\"link\":\"a/x\""},    {"\"link\":\"a/link\"", "\"link\":\"a/../x\""},
      {"\"directory\":\"a\"", "\"directory\":\"y\""}, {"\"target\":\"../z\"", "\"target\":\"\""},
  };
  for (const auto& [from, to] : changes) EXPECT_EQ(CodeOf(Changed(from, to)), ErrorCode::kCorrupt) << to;
}

TEST(Manifest, ImpossibleValuesAreRefused) {
  const std::pair<const char*, const char*> changes[] = {
      {"\"size\":4096", "\"size\":-1"},
      {"\"size\":4096", "\"size\":9223372036854775807"},
      {"\"size\":4096", "\"size\":\"4096\""},
      {"\"size\":4096", "\"size\":4294967296"},  // needs more slices
      {"\"mode\":256", "\"mode\":65536"},
      {"\"version\":7", "\"version\":0"},
      {"\"version\":7", "\"version\":9223372036854775808"},
      {"\"user.note\"", "\"security.note\""},
      {kPush, "0123"},
      {"\"link\"", "\"pipe\""},
  };
  for (const auto& [from, to] : changes) EXPECT_EQ(CodeOf(Changed(from, to)), ErrorCode::kCorrupt) << to;
}

// The empty path is that of the directory itself, and sorts before all others.
TEST(Manifest, FilesAndLinksHaveNames) {
  Manifest file{.version = 1, .push = kPush, .directories = {{.path = ""}}, .files = {{.path = ""}}};
  EXPECT_EQ(CodeOf(file.Encode()), ErrorCode::kCorrupt);
  Manifest link{.version = 1, .push = kPush, .directories = {{.path = ""}}, .links = {{.path = "", .target = "x"}}};
  EXPECT_EQ(CodeOf(link.Encode()), ErrorCode::kCorrupt);
  Manifest twice{.version = 1, .push = kPush, .directories = {{.path = ""}, {.path = ""}}};
  EXPECT_EQ(CodeOf(twice.Encode()), ErrorCode::kCorrupt);
}

TEST(Manifest, NestedJsonTakesLittleMemory) {
  const std::string brackets(size_t{64} << 20, '[');
  std::string head = Example().Encode();
  head.resize(head.find('\n') + 1);
  const auto sealed = [](const std::string& text) {
    return text + "{\"sha256\":\"" + ToHex(Sha256Of(text)) + "\"}\n";
  };
  const std::string texts[] = {sealed(brackets + "\n"), sealed(head + brackets + "\n"), head + brackets + "\n",
                               sealed(head + "{\"file\":\"x\",\"attributes\":" + std::string(100'000, '[') + "\n")};
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  for (const std::string& text : texts) EXPECT_EQ(CodeOf(text), ErrorCode::kCorrupt);
  EXPECT_FALSE(Claim::Decode(std::string(60'000, '[')).has_value());
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 256 << 10) << "KiB";
}

TEST(Manifest, TheGreatestAttributesFitInALine) {
  Manifest manifest = Example();
  for (size_t index = 0; index < kMaximumAttributes / 65536; ++index) {
    manifest.files[2].attributes["user." + std::to_string(index)] = std::string(65500, '\xff');
  }
  const auto decoded = Manifest::Decode(manifest.Encode());
  ASSERT_TRUE(decoded.has_value()) << decoded.error().what;
  EXPECT_EQ(decoded->files, manifest.files);
}

TEST(LinkEntry, MayLeadOutside) {
  const LinkEntry inside[] = {{"a", "b"}, {"a/l", "../b"}, {"a/b/l", "../.././c/d"}, {"a", "./b//c"}, {"a/l", ".."},
                              {"a", "..."}, {"a", "b/..c"}};
  for (const LinkEntry& link : inside) EXPECT_FALSE(link.may_lead_outside()) << link.path << " to " << link.target;
  const LinkEntry outside[] = {{"a", "/etc/passwd"}, {"a", ".."},       {"a", "../b"},      {"a/l", "../../b"},
                               {"a/l", ".././../b"}, {"a", "b/../../c"}, {"a", "link/../x"}, {"a", "./.."},
                               {"a/b/l", "link/../x"}};
  for (const LinkEntry& link : outside) EXPECT_TRUE(link.may_lead_outside()) << link.path << " to " << link.target;
}

TEST(Manifest, EntriesOutOfOrderAreRefused) {
  Manifest directories = Example();
  directories.directories.insert(directories.directories.begin() + 1, {.path = "b"});
  EXPECT_EQ(CodeOf(directories.Encode()), ErrorCode::kCorrupt);
  Manifest files = Example();
  std::swap(files.files[0], files.files[1]);
  EXPECT_EQ(CodeOf(files.Encode()), ErrorCode::kCorrupt);

  // A link before the files.
  std::string text = Example().Encode();
  text.resize(text.rfind("{\"sha256\""));
  const size_t link = text.find("{\"link\""), end = text.find('\n', link) + 1, file = text.find("{\"file\"");
  const std::string line = text.substr(link, end - link);
  text.erase(link, line.size()).insert(file, line);
  EXPECT_EQ(CodeOf(text + "{\"sha256\":\"" + ToHex(Sha256Of(text)) + "\"}\n"), ErrorCode::kCorrupt);
}

TEST(Manifest, SizesWhoseSumIsImpossibleAreRefused) {
  Manifest huge{.version = 1, .push = kPush, .directories = {{.path = ""}}};
  for (int number = 0; number < 16; ++number) {
    huge.files.push_back({.path = fmt::format("{:02}", number), .size = uint64_t{1} << 60});
  }
  EXPECT_EQ(huge.bytes(), 0U);
  EXPECT_EQ(CodeOf(huge.Encode()), ErrorCode::kCorrupt);
}

TEST(Manifest, SourceIsPrintable) {
  Manifest manifest = Example();
  manifest.source = "a\nb\xff";
  const auto decoded = Manifest::Decode(manifest.Encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->source, "a\\x0ab\\xff");
}

TEST(Claim, SurvivesEncodingAndDecoding) {
  const Claim claim{.push = kPush, .source = "host:/data", .created_ns = 42};
  const auto decoded = Claim::Decode(claim.Encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->push, kPush);
  EXPECT_EQ(decoded->source, "host:/data");
  EXPECT_EQ(decoded->created_ns, 42);
  for (const char* text : {"", "{}", "[]", "{\"push\":1}", "{\"push\":\"x\",\"source\":\"\",\"created\":1}"}) {
    EXPECT_FALSE(Claim::Decode(text).has_value()) << text;
  }
}

TEST(CheckPath, AcceptsNamesOfFilesAndNothingElse) {
  for (const std::string& path : {std::string("a"), std::string("a/b"), std::string(".a"), std::string("..."),
                                  std::string("weightfs"), std::string("a/.weightfs/b"), std::string(255, 'x')}) {
    EXPECT_TRUE(CheckPath(path).has_value()) << path;
  }
  for (const std::string& path :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string(".."),
        std::string("a/./b"), std::string(256, 'x'), std::string("a\0b", 3), std::string("\xff"),
        std::string(".weightfs"), std::string(".weightfs/a")}) {
    const auto checked = CheckPath(path);
    ASSERT_FALSE(checked.has_value()) << path;
    EXPECT_EQ(checked.error().what.find('\n'), std::string::npos);
  }
  std::string longest;
  while (longest.size() < 900) longest += "0123456789/";
  EXPECT_FALSE(CheckPath(longest + "x").has_value());
}

TEST(ParseVersion, AcceptsNumbersWithoutLeadingZeros) {
  EXPECT_EQ(ParseVersion("1"), 1U);
  EXPECT_EQ(ParseVersion("9223372036854775807"), uint64_t{INT64_MAX});
  for (const char* text : {"", "0", "01", "-1", "+1", "1 ", "1x", "9223372036854775808", "99999999999999999999"}) {
    EXPECT_EQ(ParseVersion(text), 0U) << text;
  }
}

}  // namespace
}  // namespace weightfs::remote
