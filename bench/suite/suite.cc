// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/suite.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <random>

#include "bench/suite/rows.h"
#include "bench/suite/system.h"
#include "bench/suite/texts.h"

namespace weightfs::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kInterrupted = "interrupted; what the benchmark made is removed";

// Executes the modules in the first line of standard input, in order, as the package `suite`.
constexpr const char* kLoader = R"(
import json, sys, types
job = json.loads(sys.stdin.readline())
sys.modules["suite"] = types.ModuleType("suite")
for name, text in job["modules"].items():
    module = sys.modules["suite." + name] = types.ModuleType("suite." + name)
    setattr(sys.modules["suite"], name, module)
    exec(compile(text, name + ".py", "exec"), module.__dict__)
sys.modules["suite.main"].main(job)
)";

Json JobOf(const SuiteOptions& options) {
  Json job = {{"directory", options.directory},
              {"store", options.store},
              {"host", options.host},
              {"mount_options", options.mount_options},
              {"program", options.program},
              {"python", options.python},
              {"only", options.only},
              {"size", options.size},
              {"rounds", options.rounds},
              {"seed", options.seed == 0 ? std::random_device()() : options.seed},
              {"quick", options.quick},
              {"drop_caches", options.drop_caches},
              {"scaling", options.scaling},
              {"large_size", options.large_size},
              {"many_files", options.many_files},
              {"version", WEIGHTFS_VERSION},
              {"json_version", kJsonVersion},
              {"interrupted", kInterrupted},
              {"curves", options.scaling ? SelectedCurves(options) : std::vector<std::string>()},
              {"rows", Json::parse(kRowsText)},
              {"clients", kClientsText}};
  for (const auto& [name, text] : kModules) job["modules"][name] = text;
  return job;
}

// The suite's Python interpreter. It runs in a session of its own, so that signals from the terminal do not reach it.
// SIGTERM makes it clean up and exit; the kernel also sends that signal if this process is killed.
class Interpreter {
 public:
  Result<void> Start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return SystemError("socketpair", "cannot be made");
    socket_ = UniqueFd(ends[0]);
    const UniqueFd other(ends[1]);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) return SystemError("python3", "fork");
    if (pid_ == 0) Execute(parent, other.get());
    return {};
  }
  ~Interpreter() {
    if (pid_ <= 0) return;
    kill(pid_, SIGTERM);
    socket_.Close();
    (void)Wait();
  }

  Result<void> Send(std::string text) {
    text += '\n';
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t put = send(socket_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (put < 0) return Ended();
      sent += static_cast<size_t>(put);
    }
    return {};
  }

  // Receives the next line. Sends SIGTERM once `cancel` is set, and continues to receive.
  Result<std::string> Receive(const std::atomic<bool>* cancel) {
    constexpr int kPollMs = 100;
    size_t end = 0;
    while ((end = received_.find('\n')) == std::string::npos) {
      if (!cancelled_ && cancel != nullptr && cancel->load()) cancelled_ = kill(pid_, SIGTERM) == 0;
      pollfd ready{socket_.get(), POLLIN, 0};
      if (poll(&ready, 1, kPollMs) <= 0) continue;
      char piece[65536];
      const ssize_t got = read(socket_.get(), piece, sizeof(piece));
      if (got <= 0) return Ended();
      received_.append(piece, static_cast<size_t>(got));
    }
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }

 private:
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

  Error Ended() {
    const int status = Wait();
    if (cancelled_) return {ErrorCode::kShutdown, kInterrupted};  // canceled before it could answer
    if (WIFEXITED(status) && WEXITSTATUS(status) == kNotFound) {
      return {ErrorCode::kNotFound, "the benchmark needs python3, and it is not in PATH: apt-get install python3"};
    }
    return {ErrorCode::kIo, "python3, in which the benchmark runs, has ended; what it printed above says why"};
  }

  static constexpr int kNotFound = 127;  // the exit status that a shell uses

  [[noreturn]] static void Execute(pid_t parent, int socket) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);  // the parent ended before the prctl
    setsid();
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_DFL);
    dup2(socket, STDIN_FILENO);
    dup2(socket, STDOUT_FILENO);
    // Isolated mode: no module in the current directory or in PYTHONPATH replaces one that the suite imports.
    execlp("python3", "python3", "-I", "-c", kLoader, nullptr);
    _exit(kNotFound);
  }

  pid_t pid_ = -1;
  UniqueFd socket_;
  std::string received_;
  bool cancelled_ = false;
};

}  // namespace

std::vector<std::string> SelectedCurves(const SuiteOptions& options) {
  std::vector<std::string> selected;
  for (const std::string& name : CurveNames()) {
    const bool possible = name == "streams" || (options.store.empty() && (name != "large" || options.large_size > 0));
    if (possible && (options.only.empty() || Matches("scaling", options.only) || Matches(name, options.only))) {
      selected.push_back(name);
    }
  }
  return selected;
}

Result<Json> RunSuite(const SuiteOptions& options) {
  Interpreter interpreter;
  RETURN_IF_ERROR(interpreter.Start());
  RETURN_IF_ERROR(interpreter.Send(JobOf(options).dump(-1, ' ', false, Json::error_handler_t::replace)));
  while (true) {
    ASSIGN_OR_RETURN(const std::string line, interpreter.Receive(options.cancel));
    Json answer = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object()) {
      return Error{ErrorCode::kIo,
                   fmt::format("python3, in which the benchmark runs, printed '{}', which is no answer", line)};
    }
    if (answer.contains("error")) return Error{ErrorCode::kIo, answer["error"].get<std::string>()};
    if (answer.contains("outcome")) return std::move(answer["outcome"]);
    if (!options.progress) continue;
    options.progress({.step = answer["step"].get_ref<const std::string&>(),
                      .done = answer["done"].get<uint64_t>(),
                      .total = answer["total"].get<uint64_t>(),
                      .unit = Progress::Unit::kParts,
                      .pass = answer["pass"].get<unsigned>()});
  }
}

std::string ToHtml(const Json& outcome) {
  std::string json = outcome.dump(-1, ' ', false, Json::error_handler_t::replace);
  // The text inside a script element must not contain anything that looks like its end tag.
  for (size_t at = 0; (at = json.find("</", at)) != std::string::npos; at += 3) json.insert(at + 1, 1, '\\');
  std::string page = kReportText;
  constexpr std::string_view kMark = "@DATA@";
  return page.replace(page.find(kMark), kMark.size(), json);
}

}  // namespace weightfs::bench
