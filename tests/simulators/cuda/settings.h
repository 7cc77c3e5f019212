// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sim {

/// The settings of the environment; README.md lists the variables. Read once.
struct Settings {
  int devices = 2;  ///< physical ones, before CUDA_VISIBLE_DEVICES
  std::size_t memory = std::size_t{1} << 30;
  std::size_t granularity = std::size_t{2} << 20;
  int driver_version = 13000;
  int delay_us = 0;  ///< before each operation of a stream
  /// Operations that wait in a stream before a caller that adds one has to; 0: any number.
  std::size_t room = 0;
  std::string peers;  ///< "all", "none", or pairs "0-1,2-3"
  std::vector<std::string> missing;
  std::vector<int> visible;  ///< physical number of each ordinal

  bool can_access(int from, int to) const;
  bool is_missing(const std::string& symbol) const;
};

const Settings& settings();

/// "SIM0" and the device's number: the same in every process.
void uuid_of(int physical, char (&bytes)[16]);

/// The error that the environment, or sim_fail(), wants from this call now; 0 for none.
int injected_fault(const char* symbol);

}  // namespace sim

/// For tests in the same process: from its `after`-th next call on (0 = the very next) the call returns
/// `code`, `times` times (-1 = for ever). Found by dlsym.
extern "C" void sim_fail(const char* symbol, int code, int after, int times);
