// SPDX-License-Identifier: Apache-2.0
// A forked process that holds a resource until the test ends the process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace weightfs {

class HoldingChild {
 public:
  // Called by the child when it holds the resource. Sends a text to the test, and returns when the child should end.
  using Hold = std::function<void(const std::string& text)>;

  // Runs `body` in the child and waits for its text of at most 4096 bytes.
  explicit HoldingChild(const std::function<void(const Hold&)>& body) {
    int ready[2] = {-1, -1}, go[2] = {-1, -1};
    if (pipe(ready) != 0 || pipe(go) != 0) ADD_FAILURE() << "pipe";
    process_ = fork();
    if (process_ < 0) ADD_FAILURE() << "fork";
    if (process_ == 0) {
      close(go[1]);
      body([&](const std::string& text) {
        char end = 0;
        if (write(ready[1], text.data(), text.size()) != static_cast<ssize_t>(text.size()) || read(go[0], &end, 1) != 0)
          _exit(2);
      });
      _exit(0);
    }
    close(ready[1]);
    close(go[0]);
    go_ = go[1];
    char text[4096];
    const ssize_t got = read(ready[0], text, sizeof(text));
    close(ready[0]);
    if (got > 0) text_.assign(text, static_cast<size_t>(got));
  }
  ~HoldingChild() { End(); }
  HoldingChild(const HoldingChild&) = delete;
  HoldingChild& operator=(const HoldingChild&) = delete;

  pid_t process() const { return process_; }
  // Empty if the child ended without sending a text.
  const std::string& text() const { return text_; }

  // Lets the child end, without waiting for it.
  void Release() {
    if (go_ >= 0) close(go_);
    go_ = -1;
  }
  // Lets the child end, waits for it, and expects success.
  void End() {
    Release();
    int status = 0;
    if (process_ <= 0) return;
    EXPECT_EQ(waitpid(process_, &status, 0), process_);
    EXPECT_EQ(status, 0);
    process_ = 0;
  }

 private:
  pid_t process_ = 0;
  int go_ = -1;
  std::string text_;
};

}  // namespace weightfs
