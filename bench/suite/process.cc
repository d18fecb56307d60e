// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace weightfs::bench {
namespace {

constexpr int kPollMs = 100;

struct Pipe {
  File read, write;
  static Result<Pipe> Create() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", "cannot be made");
    return Pipe{File(ends[0]), File(ends[1])};
  }
};

// In a child: the kernel ends it with its parent, also where the parent has ended already.
void EndWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
}

void EnterCgroup(const std::string& directory) {
  const auto file = File::Open(directory + "/cgroup.procs", O_WRONLY);
  if (!file.has_value() || write(file->get(), "0", 1) != 1) _exit(125);
}

// In the child: never returns. `input` and `output` become its standard ones.
[[noreturn]] void Execute(const std::vector<std::string>& words, int input, int output, int errors) {
  setpgid(0, 0);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_DFL);
  dup2(input, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  fmt::print(stderr, "{}: {}\n", words[0], std::strerror(errno));
  std::fflush(stderr);
  _exit(127);
}

std::string LastLine(const std::string& text) {
  const size_t end = text.find_last_not_of("\n ");
  if (end == std::string::npos) return "it printed nothing";
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1,
                     end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

// One read of what is there; false at the end.
bool Drain(int descriptor, std::string* text) {
  char piece[4096];
  const ssize_t got = read(descriptor, piece, sizeof(piece));
  if (got > 0) text->append(piece, static_cast<size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

// Reads both to their ends; tells the process when the user asked to stop.
void Collect(pid_t pid, const std::atomic<bool>* cancel, Pipe* out, Pipe* err, std::string* text, std::string* errors) {
  bool told = false;
  while (out->read || err->read) {
    pollfd ends[2] = {{out->read.get(), POLLIN, 0}, {err->read.get(), POLLIN, 0}};
    poll(ends, 2, kPollMs);
    if (ends[0].revents != 0 && !Drain(out->read.get(), text)) out->read.Reset();
    if (ends[1].revents != 0 && !Drain(err->read.get(), errors)) err->read.Reset();
    if (!told && IsSet(cancel)) {
      kill(-pid, SIGTERM);
      told = true;
    }
  }
}

int WaitFor(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

Result<std::string> RunCommand(const Command& command) {
  ASSIGN_OR_RETURN(Pipe out, Pipe::Create());
  ASSIGN_OR_RETURN(Pipe err, Pipe::Create());
  ASSIGN_OR_RETURN(const File nothing, File::Open("/dev/null", O_RDONLY));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError(command.words[0], "fork");
  if (pid == 0) {
    EndWithParent(parent);
    if (!command.cgroup.empty()) EnterCgroup(command.cgroup);
    Execute(command.words, nothing.get(), out.write.get(), err.write.get());
  }
  setpgid(pid, pid);
  out.write.Reset();
  err.write.Reset();
  std::string text, errors;
  Collect(pid, command.cancel, &out, &err, &text, &errors);
  const int status = WaitFor(pid);
  if (IsSet(command.cancel)) return Interrupted();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  std::string line;
  for (const auto& word : command.words) line += (line.empty() ? "" : " ") + word;
  return Error{ErrorCode::kIo, fmt::format("'{}' failed: {}", line, LastLine(errors.empty() ? text : errors))};
}

std::string FindProgram(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::istringstream directories(path == nullptr ? "/usr/bin:/bin" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string candidate = fmt::format("{}/{}", directory, name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return {};
}

namespace {

// Of one child: says that it is ready, waits for the start, works, and says how it went ("" is well).
[[noreturn]] void BeOneOfMany(unsigned index, const Pipe& ready, const Pipe& start, const Pipe& done,
                              const std::function<Result<void>(unsigned)>& prepare,
                              const std::function<Result<void>(unsigned)>& work) {
  Result<void> result = prepare(index);
  char signal = 0;
  if (write(ready.write.get(), "r", 1) != 1) _exit(1);
  while (read(start.read.get(), &signal, 1) < 0 && errno == EINTR) {
  }
  if (result.has_value()) result = work(index);
  if (!result.has_value()) {
    const std::string line = fmt::format("{}\n", result.error().what);
    if (write(done.write.get(), line.data(), line.size()) < 0) _exit(2);
    _exit(result.error().code == ErrorCode::kShutdown ? 3 : 1);
  }
  _exit(0);
}

}  // namespace

Result<double> RunTogether(unsigned count, const std::function<Result<void>(unsigned)>& prepare,
                           const std::function<Result<void>(unsigned)>& work) {
  ASSIGN_OR_RETURN(Pipe ready, Pipe::Create());
  ASSIGN_OR_RETURN(Pipe start, Pipe::Create());
  ASSIGN_OR_RETURN(Pipe done, Pipe::Create());
  std::vector<pid_t> children;
  const pid_t parent = getpid();
  for (unsigned index = 0; index < count; ++index) {
    const pid_t pid = fork();
    if (pid == 0) {
      EndWithParent(parent);
      start.write.Reset();
      BeOneOfMany(index, ready, start, done, prepare, work);
    }
    if (pid > 0) children.push_back(pid);
  }
  ready.write.Reset();
  done.write.Reset();
  std::string seen;
  while (seen.size() < children.size() && Drain(ready.read.get(), &seen)) {
  }
  const double begin = Now();
  start.write.Reset();  // all of them see the end of the pipe at once
  bool interrupted = false, failed = children.size() < count;
  for (const pid_t pid : children) {
    const int status = WaitFor(pid);
    interrupted |= WIFEXITED(status) && WEXITSTATUS(status) == 3;
    failed |= status != 0;
  }
  const double seconds = Now() - begin;
  if (interrupted) return Interrupted();
  if (!failed) return seconds;
  std::string lines;
  while (Drain(done.read.get(), &lines)) {
  }
  return Error{ErrorCode::kIo,
               lines.empty() ? "a child process of the benchmark died" : lines.substr(0, lines.find('\n'))};
}

Result<Worker> Worker::Start(const std::vector<std::string>& words) {
  ASSIGN_OR_RETURN(Pipe to, Pipe::Create());
  ASSIGN_OR_RETURN(Pipe from, Pipe::Create());
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return SystemError(words[0], "fork");
  if (pid == 0) {
    EndWithParent(parent);
    Execute(words, to.read.get(), from.write.get(), STDERR_FILENO);
  }
  return Worker(pid, std::move(to.write), std::move(from.read));
}

Worker::Worker(Worker&& other) noexcept
    : pid_(other.pid_), to_(std::move(other.to_)), from_(std::move(other.from_)), unread_(std::move(other.unread_)) {
  other.pid_ = -1;
}

Worker::~Worker() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  WaitFor(pid_);
}

Result<std::string> Worker::Ask(const std::string& line, const std::atomic<bool>* cancel) {
  const std::string text = line + "\n";
  if (write(to_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return SystemError("the Python worker", "does not listen");
  }
  for (size_t end; (end = unread_.find('\n')) == std::string::npos;) {
    if (IsSet(cancel)) return Interrupted();
    pollfd answer{from_.get(), POLLIN, 0};
    if (poll(&answer, 1, kPollMs) > 0 && !Drain(from_.get(), &unread_)) {
      return Error{ErrorCode::kIo, "the Python worker ended; what it printed above says why"};
    }
  }
  const size_t end = unread_.find('\n');
  std::string answer = unread_.substr(0, end);
  unread_.erase(0, end + 1);
  return answer;
}

}  // namespace weightfs::bench
