// SPDX-License-Identifier: Apache-2.0
#include "s3/responses.h"

#include <gtest/gtest.h>

namespace weightfs::s3 {
namespace {

TEST(Responses, ErrorsHaveACodeAndAMessage) {
  const auto error = ParseErrorDocument(
      "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code><Message>a &amp; b</Message><Region>eu</Region></Error>");
  EXPECT_EQ(error.code, "NoSuchKey");
  EXPECT_EQ(error.message, "a & b");
  EXPECT_EQ(error.region, "eu");
  for (const auto* body : {"", "not XML", "<Error>", "<html><body>502</body></html>"}) {
    EXPECT_TRUE(ParseErrorDocument(body).empty()) << body;
  }
}

TEST(Responses, ListingsDecodeTheirKeys) {
  const auto page = ParseListing(
      R"(<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
         <EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextContinuationToken>a b</NextContinuationToken>
         <Contents><Key>a%0Ab+c%2B/%C3%BC</Key><Size>5368709120</Size><ETag>&quot;x&quot;</ETag>
         <LastModified>2026-11-23T18:47:26.123Z</LastModified></Contents>
         <CommonPrefixes><Prefix>d%2F/</Prefix></CommonPrefixes></ListBucketResult>)");
  ASSERT_TRUE(page) << page.error().what;
  ASSERT_EQ(page->entries.size(), 1U);
  const auto& object = page->entries[0];
  EXPECT_EQ(object.key, "a\nb c+/ü");
  EXPECT_EQ(object.size, 5'368'709'120U);
  EXPECT_EQ(object.etag, "\"x\"");
  EXPECT_EQ(std::chrono::system_clock::to_time_t(object.modified), 1795459646);
  EXPECT_EQ(page->prefixes, std::vector<std::string>{"d//"});
  EXPECT_EQ(page->next, (Fields{{"continuation-token", "a b"}}));
}

TEST(Responses, KeysThatAreNotEncodedStayAsTheyAre) {
  const auto page =
      ParseListing("<ListBucketResult><Contents><Key>a%20+ b </Key><Size>0</Size></Contents></ListBucketResult>");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->entries[0].key, "a%20+ b ");
  EXPECT_TRUE(page->next.empty());
}

TEST(Responses, DocumentsThatLackSomethingAreErrors) {
  for (const auto* body :
       {"", "{}", "<html/>", "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>1x</Size></Contents></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "<ListBucketResult><Contents>"}) {
    const auto page = ParseListing(body);
    ASSERT_FALSE(page) << body;
    EXPECT_EQ(page.error().code, ErrorCode::kIo);
  }
  EXPECT_FALSE(ParseParts("<ListPartsResult><Part><PartNumber>0</PartNumber><Size>1</Size></Part></ListPartsResult>"));
  EXPECT_FALSE(ParseUploadId("<InitiateMultipartUploadResult/>"));
  EXPECT_FALSE(ParseCompletedEtag("<Error/>"));
  EXPECT_FALSE(ParseDeleteFailures("<Error/>"));
}

TEST(Responses, PartsAndUploadsHaveMarkers) {
  const auto parts = ParseParts(
      "<ListPartsResult><IsTruncated>true</IsTruncated><NextPartNumberMarker>7</NextPartNumberMarker><Part>"
      "<PartNumber>7</PartNumber><Size>10</Size><ETag>\"e\"</ETag></Part></ListPartsResult>");
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->entries[0].number, 7U);
  EXPECT_EQ(parts->next, (Fields{{"part-number-marker", "7"}}));
  const auto uploads = ParseUploads(
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
      "<NextUploadIdMarker>u</NextUploadIdMarker><Upload><Key>k</Key><UploadId>u</UploadId>"
      "<Initiated>2026-11-23T18:47:26Z</Initiated></Upload></ListMultipartUploadsResult>");
  ASSERT_TRUE(uploads);
  EXPECT_EQ(uploads->entries[0].upload_id, "u");
  EXPECT_EQ(uploads->next, (Fields{{"key-marker", "k"}, {"upload-id-marker", "u"}}));
}

// They are kept for each entry of a list.
TEST(Responses, KeysAndTagsAreShort) {
  const auto listing = [](size_t key, size_t etag) {
    return ParseListing("<ListBucketResult><Contents><Key>" + std::string(key, 'k') + "</Key><Size>1</Size><ETag>" +
                        std::string(etag, 'e') + "</ETag></Contents></ListBucketResult>");
  };
  EXPECT_TRUE(listing(1024, 200));
  EXPECT_FALSE(listing(1025, 200));
  EXPECT_FALSE(listing(0, 200));
  EXPECT_FALSE(listing(1024, 5000));
  std::string encoded;
  for (int at = 0; at < 1024; ++at) encoded += "%41";
  EXPECT_TRUE(ParseListing("<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>" + encoded +
                           "</Key><Size>1</Size></Contents></ListBucketResult>"));
  EXPECT_FALSE(ParseListing("<ListBucketResult><CommonPrefixes><Prefix>" + std::string(1025, 'p') +
                            "</Prefix></CommonPrefixes></ListBucketResult>"));
  const auto upload = [](size_t key, size_t id) {
    return ParseUploads("<ListMultipartUploadsResult><Upload><Key>" + std::string(key, 'k') + "</Key><UploadId>" +
                        std::string(id, 'u') + "</UploadId></Upload></ListMultipartUploadsResult>");
  };
  EXPECT_TRUE(upload(1024, 200));
  EXPECT_FALSE(upload(1025, 200));
  EXPECT_FALSE(upload(1024, 5000));
  EXPECT_FALSE(ParseParts("<ListPartsResult><Part><PartNumber>7</PartNumber><Size>10</Size><ETag>" +
                          std::string(5000, 'e') + "</ETag></Part></ListPartsResult>"));
}

TEST(Responses, NestedDocumentsAreNoLists) {
  std::string nested;
  while (nested.size() < size_t{8} << 20) nested += "<a>";
  EXPECT_FALSE(ParseListing(nested));
  EXPECT_FALSE(ParseListing("<ListBucketResult>" + nested));
  EXPECT_FALSE(IsDocument(nested, "ListBucketResult"));
  EXPECT_EQ(ParseErrorDocument(nested).code, "");
}

TEST(Responses, VersionsAndDeleteMarkersAreListed) {
  const auto page = ParseVersions(
      "<ListVersionsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
      "<NextVersionIdMarker>1</NextVersionIdMarker><DeleteMarker><Key>k</Key><VersionId>2</VersionId></DeleteMarker>"
      "<Version><Key>k</Key><VersionId>1</VersionId><Size>7</Size></Version><CommonPrefixes><Prefix>p/</Prefix>"
      "</CommonPrefixes></ListVersionsResult>");
  ASSERT_TRUE(page);
  ASSERT_EQ(page->entries.size(), 2U);
  EXPECT_TRUE(page->entries[0].is_marker);
  EXPECT_EQ(page->entries[1].version_id, "1");
  EXPECT_EQ(page->entries[1].size, 7U);
  EXPECT_EQ(page->prefixes, std::vector<std::string>{"p/"});
  EXPECT_EQ(page->next, (Fields{{"key-marker", "k"}, {"version-id-marker", "1"}}));
  EXPECT_FALSE(ParseVersions("<ListVersionsResult><Version><Key>k</Key><Size>7</Size></Version></ListVersionsResult>"));
}

TEST(Responses, DocumentsOfRequestsAreEscaped) {
  EXPECT_EQ(
      CompleteDocument({{1, 0, "\"a\""}, {2, 0, "b<"}}),
      "<?xml version=\"1.0\"?><CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part><Part>"
      "<PartNumber>2</PartNumber><ETag>b&lt;</ETag></Part></CompleteMultipartUpload>");
  EXPECT_EQ(CompleteDocument({{1, 0, "a", "4waSgw=="}}),
            "<?xml version=\"1.0\"?><CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>a</ETag>"
            "<ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part></CompleteMultipartUpload>");
  const std::vector<ObjectVersion> versions = {{.key = "a&b"}, {.key = " c ", .version_id = "v"}};
  EXPECT_EQ(DeleteDocument(versions),
            "<?xml version=\"1.0\"?><Delete><Quiet>true</Quiet><Object><Key>a&amp;b</Key></Object><Object><Key> c "
            "</Key><VersionId>v</VersionId></Object></Delete>");
}

TEST(Responses, OnlyCharactersOfXmlCanBeInIt) {
  for (const auto* text : {"", "a b/ü", "\u20ac", "\U0001f600", "\ue000", "\u00a0", "\ufffd"})
    EXPECT_TRUE(CanBeInXml(text)) << text;
  for (const auto* text : {"\n", "a\x01", "\x7f", "\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xef\xbf\xbe",
                           "\xef\xbf\xbf", "\xc2\x80", "ü\xc2\x9f"}) {
    EXPECT_FALSE(CanBeInXml(text)) << text;
  }
}

TEST(Responses, AssumedRolesHaveCredentials) {
  const auto credentials = ParseAssumedRole(
      "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>a</AccessKeyId>"
      "<SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken><Expiration>2026-11-23T18:47:26Z</Expiration>"
      "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>");
  ASSERT_TRUE(credentials);
  EXPECT_EQ(credentials->session_token, "c");
  EXPECT_TRUE(credentials->expires);
  EXPECT_FALSE(ParseAssumedRole("<Error/>"));
}

}  // namespace
}  // namespace weightfs::s3
