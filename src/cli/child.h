// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "os/fd.h"

namespace onecopy::cli {

/// A second process of this program, which reads questions as lines of JSON on its stdin and answers on its stdout. The
/// destructor kills and reaps it. Thread safety: none.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments);
  Child& operator=(Child&&) = delete;
  ~Child() { kill(); }

  int pid() const noexcept { return pid_; }
  /// Sends a question and returns the answer. Throws timeout, peer_died, and the Error that the answer contains.
  nlohmann::json ask(const nlohmann::json& question, std::chrono::milliseconds timeout);
  /// Sends SIGKILL and waits until the process is gone.
  void kill();

 private:
  void send(const nlohmann::json& question);

  int pid_ = -1;
  Fd to_;
  Fd from_;
  std::string pending_;
};

/// Serves as the child: answers each question on stdin with `answer` until stdin is closed or the parent ends.
/// Exceptions are sent as {"error": text}. Returns the exit status.
int serve_questions(nlohmann::json (*answer)(const nlohmann::json& question));

}  // namespace onecopy::cli
