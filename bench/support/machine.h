// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace onecopy::bench {

/// The facts about a machine that a measured number needs.
struct Machine {
  std::string kind;  ///< for file names: "amd-epyc-2cpu-vm"
  std::string date;  ///< 2026-01-31, UTC
  std::vector<std::pair<std::string, std::string>> facts;
};
Machine describe_machine();

}  // namespace onecopy::bench
