// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "simulators/common/environment.h"

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

  bool can_access(int from, int to) const { return are_peers(peers, from, to); }
  bool is_missing(const std::string& symbol) const;
};

const Settings& settings();

/// Writes the UUID of a device, which is the same in every process.
void uuid_of(int physical, char (&bytes)[16]);

}  // namespace sim
