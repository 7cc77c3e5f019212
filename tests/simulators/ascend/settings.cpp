// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <cstdlib>
#include <cstring>

namespace sim {

namespace {

/// As the runtime reads it: ascending numbers; the first that is none, or does not exist, ends it.
std::vector<int> visible_devices(int count) {
  const char* wanted = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  std::vector<int> visible;
  if (!wanted) {
    for (int i = 0; i < count; ++i) visible.push_back(i);
    return visible;
  }
  for (const std::string& word : split(wanted, ',')) {
    if (word.find_first_not_of("0123456789") != std::string::npos) break;
    const int number = std::atoi(word.c_str());
    if (number >= count || (!visible.empty() && number <= visible.back())) break;
    visible.push_back(number);
  }
  return visible;
}

Settings read_settings() {
  Settings s;
  s.devices = static_cast<int>(number_of("ONECOPY_SIM_ASCEND_DEVICES", s.devices));
  s.memory =
      static_cast<std::size_t>(number_of("ONECOPY_SIM_ASCEND_MEMORY", static_cast<long long>(s.memory)));
  s.cann = text_of("ONECOPY_SIM_ASCEND_CANN", "8.5.0");
  s.driver = text_of("ONECOPY_SIM_ASCEND_DRIVER", "25.5.2");
  s.delay_us = static_cast<int>(number_of("ONECOPY_SIM_ASCEND_DELAY_US", 0));
  s.peers = text_of("ONECOPY_SIM_ASCEND_PEERS", "all");
  s.virtuals = text_of("ONECOPY_SIM_ASCEND_VIRTUAL", "none");
  s.peers_once = number_of("ONECOPY_SIM_ASCEND_PEERS_ONCE", 0) != 0;
  s.number_offset = static_cast<int>(number_of("ONECOPY_SIM_ASCEND_NUMBER_OFFSET", 0));
  s.ipc_events = number_of("ONECOPY_SIM_ASCEND_IPC_EVENTS", 1) != 0;
  s.key_directory = text_of("ONECOPY_SIM_ASCEND_KEYS", "");
  s.max_keys = static_cast<int>(number_of("ONECOPY_SIM_ASCEND_MAX_KEYS", s.max_keys));
  s.visible = visible_devices(s.devices);
  return s;
}

}  // namespace

const char* const kFaultsVariable = "ONECOPY_SIM_ASCEND_FAIL";

const Settings& settings() {
  static const auto& all = *new Settings(read_settings());
  return all;
}

void uuid_of(int physical, char (&bytes)[16]) {
  std::memcpy(bytes, "SIMulated-NPU-", 14);
  bytes[14] = static_cast<char>(physical >> 8);
  bytes[15] = static_cast<char>(physical);
}

bool Settings::is_virtual(int physical) const {
  if (virtuals == "all") return true;
  for (const std::string& number : split(virtuals, ','))
    if (number == std::to_string(physical)) return true;
  return false;
}

}  // namespace sim
