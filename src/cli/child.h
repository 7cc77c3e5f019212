// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "os/fd.h"

namespace onecopy::cli {

/// This program started again as another process. It is asked by lines of JSON on its stdin and answers on its
/// stdout. Killed and reaped by the destructor. Thread safety: none.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();

  int pid() const noexcept { return pid_; }
  /// Sends without waiting for the answer. Throws peer_died.
  void tell(const nlohmann::json& question);
  /// Throws timeout, peer_died, and the Error of the child's answer.
  nlohmann::json hear(std::chrono::milliseconds timeout);
  nlohmann::json ask(const nlohmann::json& question, std::chrono::milliseconds timeout) {
    tell(question);
    return hear(timeout);
  }
  /// SIGKILL, and waits until the process is gone.
  void kill();
  /// Closes its stdin, which ends it. True if it ended by itself with status 0 in time.
  bool finish(std::chrono::milliseconds timeout);

 private:
  void reap();

  int pid_ = -1;
  int status_ = 0;
  Fd exit_;  ///< readable when it has ended
  Fd to_;
  Fd from_;
  std::string pending_;
};

/// The child's side: reads questions from stdin until it is closed, and answers each by `answer`. Exceptions travel
/// as {"error": text}. Returns the exit status. Ends with its parent.
int serve_questions(nlohmann::json (*answer)(const nlohmann::json& question));

}  // namespace onecopy::cli
