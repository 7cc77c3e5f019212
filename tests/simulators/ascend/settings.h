// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sim {

/// The settings of the environment; README.md lists the variables. Read once.
struct Settings {
  int devices = 2;  ///< physical ones, before ASCEND_RT_VISIBLE_DEVICES
  std::size_t memory = std::size_t{1} << 30;
  std::string cann;
  std::string driver;
  int delay_us = 0;         ///< before each operation of a stream
  std::string peers;        ///< "all", "none", or pairs "0-1,2-3"
  std::string virtuals;     ///< devices that are virtual: "all", "none", or physical numbers "0,2"
  bool peers_once = false;  ///< a second enable is an error
  int number_offset = 0;    ///< the driver's number of a process is its pid plus this, as in a container
  bool ipc_events = true;
  std::string key_directory;  ///< where keys outlive their process; none do when it is empty
  int most_keys = 4096;
  std::vector<int> visible;  ///< physical number of each ordinal

  bool can_access(int from, int to) const;
  bool is_virtual(int physical) const;
};

const Settings& settings();

/// Equal in every process.
void uuid_of(int physical, char (&bytes)[16]);

/// The error that the environment, or sim_fail(), wants from this call now; 0 for none.
int injected_fault(const char* symbol);

}  // namespace sim

/// For tests in the same process: from its `after`-th next call on (0 = the very next) the call returns
/// `code`, `times` times (-1 = for ever). Found by dlsym.
extern "C" void sim_fail(const char* symbol, int code, int after, int times);
