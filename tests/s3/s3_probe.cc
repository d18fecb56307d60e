// SPDX-License-Identifier: Apache-2.0
// Runs one operation of the S3 client and prints one line of JSON: the result, or "error" and "code", and the cost in
// requests, bytes and seconds. The environment configures the client as it does for users. For the tests; it is not
// installed.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "s3/bucket.h"
#include "s3/client.h"
#include "s3/credentials.h"
#include "s3/settings.h"

namespace weightfs::s3 {
namespace {

using nlohmann::json;

struct Arguments {
  std::string command, bucket = "tests", key, file, upload_id, delimiter, if_match, method = "GET";
  std::vector<std::string> keys;
  uint64_t part_size = 5 << 20, limit = 16 << 20, offset = 0, size = 0;
  unsigned attempts = 10, connections = 16, stall_s = 30, connect_s = 10, cancel_after_ms = 0, repeat = 1;
  unsigned give_up_s = 120, quiet_s = 5;
  uint64_t rate = 0;
  bool if_none_match = false, unsigned_requests = false, keep_upload = false;
  std::optional<std::string> addressing, profile;
};

std::vector<std::byte> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<std::byte> bytes(static_cast<size_t>(std::max<std::streamoff>(file.tellg(), 0)));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

void WriteFile(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// Calls `run` on one thread for each index below `count`, and returns an error of any of them.
Result<void> InParallel(size_t count, const std::function<Result<void>(size_t index)>& run) {
  std::vector<std::future<Result<void>>> calls;
  for (size_t index = 0; index < count; ++index) calls.push_back(std::async(std::launch::async, run, index));
  Result<void> result;
  for (auto& call : calls) {
    if (auto done = call.get(); !done) result = std::move(done);
  }
  return result;
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return double(time.tv_sec) + double(time.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Time since its construction, without that of files and fresh memory.
class Cost {
 public:
  void Stop() {
    if (stopped_) return;
    stopped_ = true;
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    cpu_s_ = CpuSeconds() - cpu_start_;
  }
  double seconds() const { return seconds_; }
  double cpu_s() const { return cpu_s_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double cpu_start_ = CpuSeconds(), seconds_ = 0, cpu_s_ = 0;
  bool stopped_ = false;
};

class Probe {
 public:
  Probe(const Arguments& arguments, Client& client)
      : arguments_(arguments), client_(client), bucket_(client, arguments.bucket) {}

  Result<json> Run() {
    static const std::map<std::string, Result<json> (Probe::*)()> kCommands = {
        {"put", &Probe::Put},
        {"get", &Probe::Get},
        {"head", &Probe::Head},
        {"upload", &Probe::Upload},
        {"download", &Probe::Download},
        {"list", &Probe::List},
        {"parts", &Probe::Parts},
        {"uploads", &Probe::Uploads},
        {"abort", &Probe::Abort},
        {"delete", &Probe::Delete},
        {"delete-many", &Probe::DeleteMany},
        {"send", &Probe::Send},
        {"complete", &Probe::Complete},
        {"put-many", &Probe::PutMany},
        {"cancel", &Probe::Cancel},
    };
    const auto found = kCommands.find(arguments_.command);
    if (found == kCommands.end()) return Error{ErrorCode::kInvalid, "no such command: " + arguments_.command};
    auto result = (this->*found->second)();
    cost_.Stop();
    return result;
  }
  const Cost& cost() const { return cost_; }

 private:
  UploadInfo GivenUpload() const { return {arguments_.key, arguments_.upload_id}; }
  PutOptions GivenOptions() const { return {.if_none_match = arguments_.if_none_match}; }

  Result<json> Put() {
    const auto body = ReadFile(arguments_.file);
    ASSIGN_OR_RETURN(const auto etag, bucket_.PutObject(arguments_.key, body, GivenOptions()));
    return json{{"etag", etag}};
  }
  // Puts the file under several keys at once: KEY-0, KEY-1, ...
  Result<json> PutMany() {
    const auto body = ReadFile(arguments_.file);
    const auto done = InParallel(arguments_.repeat, [&](size_t i) -> Result<void> {
      RETURN_IF_ERROR(bucket_.PutObject(arguments_.key + "-" + std::to_string(i), body, GivenOptions()));
      return {};
    });
    RETURN_IF_ERROR(done);
    return json::object();
  }
  Result<json> Get() {
    ASSIGN_OR_RETURN(const auto content, bucket_.GetObject(arguments_.key, arguments_.limit));
    WriteFile(arguments_.file, std::as_bytes(std::span(content.body)));
    return json{{"size", content.body.size()}};
  }
  Result<json> Head() {
    ASSIGN_OR_RETURN(const auto info, bucket_.HeadObject(arguments_.key));
    return json{
        {"size", info.size}, {"etag", info.etag}, {"modified", std::chrono::system_clock::to_time_t(info.modified)}};
  }
  Result<json> Upload() {
    const auto body = ReadFile(arguments_.file);
    cost_ = Cost();
    UploadInfo upload{arguments_.key, arguments_.upload_id};
    if (upload.upload_id.empty()) {
      ASSIGN_OR_RETURN(upload, bucket_.CreateMultipartUpload(upload.key));
    } else {
      ASSIGN_OR_RETURN(const auto found, bucket_.ListParts(upload));
      upload.crc32c = found.crc32c;
    }
    const auto parts = static_cast<unsigned>((body.size() + arguments_.part_size - 1) / arguments_.part_size);
    std::vector<PartInfo> done(parts);
    const auto sent = InParallel(parts, [&](size_t i) -> Result<void> {
      const auto start = i * arguments_.part_size;
      const auto part = std::span(body).subspan(start, std::min(arguments_.part_size, body.size() - start));
      ASSIGN_OR_RETURN(done[i], bucket_.UploadPart(upload, static_cast<unsigned>(i + 1), part));
      return {};
    });
    RETURN_IF_ERROR(sent);
    if (arguments_.keep_upload) return json{{"upload_id", upload.upload_id}};
    ASSIGN_OR_RETURN(const auto etag, bucket_.CompleteMultipartUpload(upload, done));
    return json{{"upload_id", upload.upload_id}, {"etag", etag}};
  }
  // Completes an upload with the parts that it has.
  Result<json> Complete() {
    ASSIGN_OR_RETURN(const auto found, bucket_.ListParts(GivenUpload()));
    ASSIGN_OR_RETURN(const auto etag, bucket_.CompleteMultipartUpload(GivenUpload(), found.parts));
    return json{{"etag", etag}};
  }
  Result<json> Download() {
    auto size = arguments_.size;
    if (size == 0) {
      ASSIGN_OR_RETURN(const auto info, bucket_.HeadObject(arguments_.key));
      size = info.size;
    }
    std::vector<std::byte> memory(size);
    cost_ = Cost();
    const size_t ranges = (size + arguments_.part_size - 1) / arguments_.part_size;
    const auto received = InParallel(ranges, [&](size_t i) -> Result<void> {
      const auto start = i * arguments_.part_size;
      const auto part = std::span(memory).subspan(start, std::min(arguments_.part_size, size - start));
      RETURN_IF_ERROR(bucket_.GetRange({arguments_.key, arguments_.offset + start, arguments_.if_match}, part));
      return {};
    });
    RETURN_IF_ERROR(received);
    cost_.Stop();
    if (!arguments_.file.empty()) WriteFile(arguments_.file, memory);
    return json{{"size", size}};
  }
  Result<json> List() {
    ASSIGN_OR_RETURN(const auto listing, bucket_.ListObjects({.prefix = arguments_.key,
                                                              .delimiter = arguments_.delimiter,
                                                              .limit = static_cast<size_t>(arguments_.limit)}));
    json objects = json::array();
    for (const auto& object : listing.entries) objects.push_back({object.key, object.size, object.etag});
    return json{{"objects", objects}, {"prefixes", listing.prefixes}};
  }
  Result<json> Parts() {
    ASSIGN_OR_RETURN(const auto found, bucket_.ListParts(GivenUpload()));
    json listed = json::array();
    for (const auto& part : found.parts) listed.push_back({part.number, part.size, part.etag});
    return json{{"parts", listed}};
  }
  Result<json> Uploads() {
    ASSIGN_OR_RETURN(const auto uploads, bucket_.ListMultipartUploads(arguments_.key));
    json listed = json::array();
    for (const auto& upload : uploads) listed.push_back({upload.key, upload.upload_id});
    return json{{"uploads", listed}};
  }
  Result<json> Abort() {
    RETURN_IF_ERROR(bucket_.AbortMultipartUpload(GivenUpload()));
    return json::object();
  }
  Result<json> Delete() {
    RETURN_IF_ERROR(bucket_.DeleteObject(arguments_.key));
    return json::object();
  }
  Result<json> DeleteMany() {
    std::vector<ObjectVersion> objects;
    for (const std::string& key : arguments_.keys) objects.push_back({.key = key});
    RETURN_IF_ERROR(bucket_.DeleteObjects(objects));
    return json::object();
  }
  Result<json> Send() {
    ASSIGN_OR_RETURN(const auto response,
                     client_.Send({.method = arguments_.method, .object = {arguments_.bucket, arguments_.key}}));
    return json{{"status", response.status}, {"attempts", response.attempts}};
  }
  // Interrupts a request that is under way.
  Result<json> Cancel() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(arguments_.cancel_after_ms);
    const Bucket bucket(client_, bucket_.name(), [&] { return std::chrono::steady_clock::now() >= end; });
    ASSIGN_OR_RETURN(const auto content, bucket.GetObject(arguments_.key, arguments_.limit));
    return json{{"size", content.body.size()}};
  }

  const Arguments& arguments_;
  Client& client_;
  const Bucket bucket_;
  Cost cost_;
};

// The options of the command line change the settings of the environment.
Result<Settings> MakeSettings(const Arguments& arguments) {
  SettingsOverrides overrides{.profile = arguments.profile};
  if (arguments.addressing)
    overrides.addressing = *arguments.addressing == "host" ? Addressing::kHost : Addressing::kPath;
  if (arguments.unsigned_requests) overrides.sign = false;
  ASSIGN_OR_RETURN(auto settings, LoadSettings(overrides));
  settings.attempts = arguments.attempts;
  settings.connections = arguments.connections;
  settings.stall_timeout_s = arguments.stall_s;
  settings.connect_timeout_s = arguments.connect_s;
  settings.give_up_after_s = arguments.give_up_s;
  settings.quiet_s = arguments.quiet_s;
  settings.upload_rate = arguments.rate;
  return settings;
}

Result<json> Answer(const Arguments& arguments) {
  ASSIGN_OR_RETURN(auto settings, MakeSettings(arguments));
  Mutex mutex;
  std::vector<std::string> reported;
  settings.on_retry = [&](const std::string& line) {
    MutexLock lock(mutex);
    reported.push_back(line);
  };
  if (arguments.command == "credentials") {
    CredentialProvider provider(settings);
    ASSIGN_OR_RETURN(const auto credentials, provider.Get());
    return json{{"access_key", credentials.access_key},
                {"secret_key", credentials.secret_key},
                {"session_token", credentials.session_token},
                {"expires", credentials.expires ? std::chrono::system_clock::to_time_t(*credentials.expires) : 0}};
  }
  ASSIGN_OR_RETURN(const auto client, Client::Create(settings));
  Probe probe(arguments, *client);
  auto result = probe.Run();
  json answer = result ? *result : json{{"error", ToString(result.error())}, {"code", result.error().error_number()}};
  const auto statistics = client->statistics();
  answer["requests"] = statistics.requests;
  answer["retries"] = statistics.retries;
  answer["reported"] = reported;
  answer["bytes_sent"] = statistics.bytes_sent;
  answer["bytes_received"] = statistics.bytes_received;
  answer["seconds"] = probe.cost().seconds();
  answer["cpu_s"] = probe.cost().cpu_s();
  return answer;
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Runs one operation of the S3 client.");
  app.add_option("command", arguments.command)->required();
  app.add_option("--bucket", arguments.bucket);
  app.add_option("--key", arguments.key);
  app.add_option("--keys", arguments.keys);
  app.add_option("--file", arguments.file);
  app.add_option("--upload-id", arguments.upload_id);
  app.add_option("--delimiter", arguments.delimiter);
  app.add_option("--if-match", arguments.if_match);
  app.add_option("--method", arguments.method);
  app.add_option("--part-size", arguments.part_size);
  app.add_option("--limit", arguments.limit);
  app.add_option("--offset", arguments.offset);
  app.add_option("--size", arguments.size);
  app.add_option("--attempts", arguments.attempts);
  app.add_option("--connections", arguments.connections);
  app.add_option("--stall", arguments.stall_s);
  app.add_option("--connect-timeout", arguments.connect_s);
  app.add_option("--give-up", arguments.give_up_s);
  app.add_option("--quiet", arguments.quiet_s);
  app.add_option("--cancel-after-ms", arguments.cancel_after_ms);
  app.add_option("--repeat", arguments.repeat);
  app.add_option("--rate", arguments.rate);
  app.add_option("--addressing", arguments.addressing);
  app.add_option("--profile", arguments.profile);
  app.add_flag("--if-none-match", arguments.if_none_match);
  app.add_flag("--unsigned", arguments.unsigned_requests);
  app.add_flag("--keep-upload", arguments.keep_upload);
  CLI11_PARSE(app, argc, argv);
  const auto answer = Answer(arguments);
  const json line =
      answer ? *answer : json{{"error", ToString(answer.error())}, {"code", answer.error().error_number()}};
  std::puts(line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
  return line.contains("error") ? 1 : 0;
}

}  // namespace
}  // namespace weightfs::s3

int main(int argc, char** argv) { return weightfs::s3::Main(argc, argv); }
