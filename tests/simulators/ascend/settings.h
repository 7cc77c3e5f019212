// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "simulators/common/environment.h"

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
  int max_keys = 4096;
  std::vector<int> visible;  ///< physical number of each ordinal

  bool can_access(int from, int to) const { return are_peers(peers, from, to); }
  bool is_virtual(int physical) const;
};

const Settings& settings();

/// Writes the UUID of a device, which is the same in every process.
void uuid_of(int physical, char (&bytes)[16]);

}  // namespace sim
