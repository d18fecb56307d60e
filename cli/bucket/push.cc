// SPDX-License-Identifier: Apache-2.0
// weightfs push: copy a directory into a bucket, as a version that exists completely or not at all.
#include <fcntl.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/bucket/s3_options.h"
#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "client/publication.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "remote/beneath.h"
#include "remote/local_tree.h"
#include "remote/push.h"

namespace weightfs::cli {
namespace {

using std::chrono::seconds;

constexpr seconds kLook{1};           // between two looks for new publications
constexpr seconds kLongestPause{60};  // after failures of a directory in a row
constexpr int kPauseFactor = 4;       // of the pauses after them

struct Arguments {
  std::string path, url;
  std::optional<std::string> watched;
  std::optional<uint64_t> version;
  std::string rate;   // empty: unlimited
  uint64_t keep = 0;  // 0: all
  std::string storage_class, encryption, encryption_key;
  uint64_t claim_check_ms = static_cast<uint64_t>(remote::PushOptions().claim_check.count());
  bool all_versions = false, take_over = false, verify = false, json = false, progress = false;
  S3Arguments s3;
};

void Report(const Arguments& arguments, const std::string& path, const std::string& url,
            const remote::PushReport& report) {
  if (!report.damage.empty()) {
    Print(stderr, "weightfs: warning: the version was damaged, and all of it was sent again: {}\n", report.damage);
  }
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"path", path},
                                         {"url", url},
                                         {"version", report.version},
                                         {"files", report.files},
                                         {"bytes", report.bytes},
                                         {"sent_bytes", report.sent_bytes},
                                         {"existed", report.existed}};
    // With --watch one line for each version, for programs that read while the command runs.
    Print(stdout, JsonText(json, arguments.watched ? -1 : 2) + "\n");
  } else {
    Print(stdout, "{}: {} file{}, {}{}\n", url, report.files, report.files == 1 ? "" : "s",
          FormatSize(ByteCount{report.bytes}),
          report.existed ? "; was there already" : fmt::format("; {} sent", FormatSize(ByteCount{report.sent_bytes})));
  }
}

// Pushes an open directory or file.
Result<remote::PushReport> PushOne(const Arguments& arguments, const OpenedSeries& opened, int source,
                                   const std::string& path) {
  TransferProgress progress("push", path, arguments.progress);
  const remote::PushOptions options{.version = arguments.version,
                                    .take_over = arguments.take_over,
                                    .replace_earlier = arguments.watched.has_value(),
                                    .verify = arguments.verify,
                                    .storage_class = arguments.storage_class,
                                    .claim_check = std::chrono::milliseconds(arguments.claim_check_ms),
                                    .progress = [&](uint64_t done, uint64_t total) { progress.Update(done, total); }};
  ASSIGN_OR_RETURN(const auto report, remote::Push(*opened.series, source, path, options));
  Report(arguments, path, opened.series->url(report.version), report);
  return report;
}

// Removes versions below the one that was just pushed. After a run went back, greater ones are of states that it has
// left: if they counted, each new version would be removed after the next push. Nor does a step of before, which is
// pushed late, remove those that were `published` since.
Result<remote::PruneReport> PruneAfter(const Arguments& arguments, const OpenedSeries& opened, uint64_t pushed,
                                       int64_t published = INT64_MAX) {
  if (arguments.keep == 0) return remote::PruneReport();
  const remote::PruneOptions options{
      .keep = arguments.keep, .up_to = pushed, .until_ns = published, .all_versions = arguments.all_versions};
  auto pruned = remote::Prune(*opened.series, options);
  const auto explain = [&](Error& error) {
    error.what = fmt::format("{} is pushed, but old versions could not be removed: {}", opened.series->url(pushed),
                             error.what.empty() ? ToString(error) : error.what);
  };
  if (!pruned) explain(pruned.error());
  if (pruned) std::ranges::for_each(pruned->errors, explain);
  return pruned;
}

struct FoundPublication {
  std::string name;
  client::Publication published;
};

// A directory is not opened through a link, because another user may have put it there.
UniqueFd OpenIn(int directory, const std::string& name) {
  return UniqueFd(openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// A directory, open, and the published ones in it, ordered by version.
struct Publications {
  UniqueFd directory;
  std::vector<FoundPublication> found;
};

Result<Publications> FindPublications(const std::string& path) {
  Publications out;
  ASSIGN_OR_RETURN(out.directory, remote::OpenSource(path));
  ASSIGN_OR_RETURN(const auto names, remote::ListNames(out.directory.get(), path));
  for (const std::string& name : names) {
    if (name.starts_with('.')) continue;
    const UniqueFd opened = OpenIn(out.directory.get(), name);
    // What is not published now is looked at again; a directory may also be removed meanwhile.
    if (!opened) continue;
    if (const auto published = client::PublicationOf(opened.get(), path + "/" + name)) {
      out.found.push_back({name, *published});
    }
  }
  std::ranges::sort(out.found, [](const FoundPublication& a, const FoundPublication& b) {
    return std::tie(a.published.version, a.name) < std::tie(b.published.version, b.name);
  });
  return out;
}

// Pushes each directory once it is published, until it is interrupted. A failure is repeated later, and delays no other
// directory.
class Watch {
 public:
  Watch(const Arguments& arguments, const OpenedSeries& opened) : arguments_(arguments), opened_(opened) {}

  int Run() {
    if (const auto readable = FindPublications(*arguments_.watched); !readable) return Fail(readable.error());
    while (!interrupted_) {
      Look();
      const auto until = Clock::now() + kLook;
      while (!interrupted_ && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const auto left = std::ranges::count_if(outcomes_, [&](const auto& entry) { return IsLeft(entry.second); });
    if (left == 0) return kSuccess;
    Print(stderr, "weightfs: {}: {} published director{} not pushed\n", Printable(*arguments_.watched), left,
          left == 1 ? "y was" : "ies were");
    return kFailure;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Id = std::array<uint8_t, 16>;
  // Of a publication that was tried.
  struct Outcome {
    std::string name = {};                              // of the directory
    int64_t time_ns = 0;                                // of the publication
    bool done = false;                                  // pushed, or not wanted any more
    Clock::time_point next = Clock::time_point::min();  // when it is tried again
    seconds pause = kLook;                              // before that
    std::string reported;                               // the error that was reported
  };

  // A directory that was published again replaces what was there before.
  bool IsLeft(const Outcome& outcome) const {
    return std::ranges::none_of(outcomes_, [&](const auto& entry) {
      const Outcome& other = entry.second;
      return other.done && other.name == outcome.name && other.time_ns >= outcome.time_ns;
    });
  }

  void Look() {
    // Opened for each look, because an open descriptor keeps a mount from being unmounted.
    const auto publications = FindPublications(*arguments_.watched);
    if (!publications) return ReportOnce(publications.error(), &reported_);
    reported_.clear();
    for (const auto& [name, published] : publications->found) {
      outcomes_[published.id].name = name;
      outcomes_[published.id].time_ns = published.time_ns;
    }
    for (const FoundPublication& publication : publications->found) {
      Outcome& outcome = outcomes_[publication.published.id];
      if (interrupted_) return;
      if (Clock::now() < outcome.next) continue;
      const auto pushed = Push(publications->directory.get(), publication);
      static_cast<void>(FlushOutput().has_value());
      if (pushed) {
        outcome.done = true;
        outcome.next = Clock::time_point::max();
      } else if (!interrupted_) {
        ReportOnce(pushed.error(), &outcome.reported);
        outcome.pause = std::min(outcome.pause * kPauseFactor, kLongestPause);
        outcome.next = Clock::now() + outcome.pause;
      }
    }
  }

  Result<void> Push(int directory, const FoundPublication& publication) {
    const auto& [name, found] = publication;
    const std::string path = *arguments_.watched + "/" + name;
    if (arguments_.keep > 0) {
      // Versions that were there before are of a run that went back; they make nothing outdated.
      ASSIGN_OR_RETURN(const bool outdated,
                       opened_.series->IsSuperseded(found.version, found.time_ns, arguments_.keep));
      if (outdated) {
        Print(stderr, "weightfs: {}: version {} is older than the {} that are kept: not pushed\n", Printable(path),
              found.version, arguments_.keep);
        return {};
      }
    }
    const UniqueFd source = OpenIn(directory, name);
    if (!source) return SystemError(path, "cannot be opened");
    const auto published = client::PublicationOf(source.get(), path);
    if (!published || published->id != found.id) {
      return Error{ErrorCode::kStale, Printable(path) + ": was replaced before it was pushed"};
    }
    ASSIGN_OR_RETURN(const auto report, PushOne(arguments_, opened_, source.get(), path));
    if (report.existed) return {};
    // The version is there; the next push prunes again.
    auto pruned = PruneAfter(arguments_, opened_, report.version, found.time_ns);
    if (!pruned && !interrupted_) Fail(pruned.error());
    if (!pruned) return {};
    if (pruned->leaves_old_versions && std::exchange(warned_, true)) pruned->leaves_old_versions = false;
    ReportPrune(opened_.series->url(), *pruned);
    return {};
  }

  // A failure that lasts is reported once.
  static void ReportOnce(const Error& error, std::string* reported) {
    if (std::exchange(*reported, error.what) != error.what) Fail(error);
  }

  const Arguments& arguments_;
  const OpenedSeries& opened_;
  const std::atomic<bool>& interrupted_ = CatchInterrupts();
  std::map<Id, Outcome> outcomes_;
  bool warned_ = false;
  std::string reported_;  // of the watched directory itself
};

Result<int> Push(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const OpenedSeries opened, OpenSeriesToChange(arguments.url, arguments.s3));
  if (arguments.watched) return Watch(arguments, opened).Run();
  ASSIGN_OR_RETURN(const UniqueFd source, remote::OpenSource(arguments.path));
  ASSIGN_OR_RETURN(const auto pushed, PushOne(arguments, opened, source.get(), arguments.path));
  ASSIGN_OR_RETURN(const auto pruned, PruneAfter(arguments, opened, pushed.version));
  return ReportPrune(opened.series->url(), pruned);
}

// With --watch the only name is the URL. Returns what is wrong with the names, or with options that need others.
std::string CheckNames(Arguments* arguments) {
  if (arguments->all_versions && arguments->keep == 0) return "--all-versions needs --keep N";
  if (!arguments->watched) {
    return arguments->url.empty()
               ? "URL is missing; write e.g. 'weightfs push /mnt/tensors/step-1000 s3://bucket/team/run'"
               : "";
  }
  if (!arguments->url.empty()) return "with --watch DIR it takes only a URL, s3://BUCKET/PREFIX/NAME";
  if (arguments->version) return "with --watch each directory has the version of its publication; omit --version";
  arguments->url = std::exchange(arguments->path, {});
  return {};
}

}  // namespace

Command PushCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("push", "Copy a directory into an S3 bucket, as a version");
  command.Add("PATH", &arguments->path, "A directory or file; with --watch the URL instead");
  command.Add("[URL]", &arguments->url, "s3://BUCKET/PREFIX/NAME");
  command.Add("--watch DIR", &arguments->watched,
              "Push each published directory in DIR, now and when it is published, until interrupted",
              "/mnt/tensors/runs");
  command.AddNumber("--version N", &arguments->version,
                    "Number of the version; default: that of the publication, otherwise the time of the latest change, "
                    "unless the series has other numbers",
                    "1000");
  command.AddNumber("--keep N", &arguments->keep,
                    "Afterwards remove lower versions, so that N stay, up to this one (see weightfs prune)", "3");
  command.Add("--all-versions", &arguments->all_versions,
              "With --keep: also delete old versions of objects (see weightfs prune)");
  command.Add("--storage-class CLASS", &arguments->storage_class, "Storage class of the files, e.g. STANDARD_IA",
              "STANDARD_IA");
  command.Add("--sse KIND", &arguments->encryption, "Encryption by the service of all new objects: AES256 or aws:kms",
              "aws:kms");
  command.Add("--sse-kms-key-id ID", &arguments->encryption_key, "Key of the encryption; implies --sse aws:kms",
              "alias/tensors");
  command.Add("--verify", &arguments->verify,
              "Read everything back and compare it before the version exists. If it exists and is damaged, send all of "
              "it again");
  command.Add("--take-over", &arguments->take_over,
              "Replace an unfinished push of somebody else, or of another state of the files, and a version whose "
              "manifest is damaged");
  command.AddNumber("--claim-check-ms MS", &arguments->claim_check_ms, "", "100", 0).hidden = true;  // for tests
  command.Add("--json", &arguments->json, "Print the result as JSON; with --watch one line for each version");
  command.AddSize("--rate SIZE", &arguments->rate,
                  "Maximum bytes per second, so that other users of the network keep some", "200M");
  command.Add("--progress", &arguments->progress,
              "Print progress as JSON lines to standard error, for programs: done and total, in bytes");
  AddS3Options(&command, &arguments->s3);
  command.footer =
      "The objects are the plain files, at URL/VERSION/path, for every program that reads S3. Checksums and a "
      "manifest\n"
      "are beside them, below URL/VERSION/.weightfs; the version exists once its manifest does. Publish a directory\n"
      "first ('weightfs publish'): it then cannot change meanwhile, and its version is that of the publication.\n"
      "If a push is interrupted, the same command continues it. Credentials are found as by AWS's programs.\n"
      "With --watch a directory that is published again, because a run went back, replaces the version that was\n"
      "pushed from there before: from the same name in the same directory of the same store. It exits with 1 if a\n"
      "directory that it has found was not pushed.\n"
      "Links in the directory are pushed as links. One on the path to it is followed if it belongs to you, to root or\n"
      "to the owner of what it leads to.\n\n"
      "Examples:\n"
      "  weightfs push /mnt/tensors/run/step-1000 s3://bucket/team/run\n"
      "  weightfs push --watch /mnt/tensors/run s3://bucket/team/run\n"
      "  weightfs push model.safetensors s3://models/llama --endpoint-url http://gateway:7480";
  command.run = [arguments]() -> Result<int> {
    if (const auto wrong = CheckNames(arguments.get()); !wrong.empty()) return FailUsage("push", wrong);
    const bool has_key = !arguments->encryption_key.empty();
    arguments->s3.encryption = arguments->encryption.empty() && has_key ? "aws:kms" : arguments->encryption;
    arguments->s3.encryption_key = arguments->encryption_key;
    if (!arguments->rate.empty()) arguments->s3.upload_rate = ParseSize(arguments->rate)->value;
    return Push(*arguments);
  };
  return command;
}

}  // namespace weightfs::cli
