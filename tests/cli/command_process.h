// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/temporary_directory.h"

namespace onecopy::testing {

/// A run of the real command, as a user's shell starts it: own process, output in files. Killed and
/// reaped when the object goes away. An empty `standard_output` means a file that out() reads.
/// Thread safety: used by one thread.
class CommandProcess {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  explicit CommandProcess(const std::vector<std::string>& arguments, const std::string& standard_input = "",
                          const Environment& environment = {}, const std::string& standard_output = "");
  ~CommandProcess();
  CommandProcess(const CommandProcess&) = delete;
  CommandProcess& operator=(const CommandProcess&) = delete;

  int pid() const noexcept { return pid_; }
  void signal(int number) const noexcept;
  /// The exit status, or minus the signal that ended it. A test that waits too long fails.
  int wait();

  std::string out() const;
  std::string err() const;
  /// Waits until stdout has a whole first line, which it returns.
  std::string first_line() const;
  /// Waits until stderr contains `text`.
  bool says(const std::string& text) const;

 private:
  TemporaryDirectory directory_;
  int pid_ = -1;
};

/// Runs to the end.
struct Outcome {
  int status = 0;
  std::string out;
  std::string err;
};
Outcome run_command(const std::vector<std::string>& arguments, const std::string& standard_input = "",
                    const CommandProcess::Environment& environment = {});

/// For EXPECT_TRUE: shows the text when the part is missing.
::testing::AssertionResult contains(const std::string& text, const std::string& part);

/// How often the part is in the text.
std::size_t count(const std::string& text, const std::string& part);

void write_file(const std::string& path, const std::string& bytes);
std::string read_file(const std::string& path);
/// A whole safetensors file from its JSON and its data.
std::string safetensors_bytes(const std::string& json, const std::string& data);

}  // namespace onecopy::testing
