// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace sim {

namespace {

std::string uuid_text(int physical) {
  char bytes[16];
  uuid_of(physical, bytes);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[i]));
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

/// As the driver reads it: ordinals or the beginnings of UUIDs; the first that does not exist ends it.
std::vector<int> visible_devices(int count) {
  const char* wanted = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> visible;
  if (!wanted) {
    for (int i = 0; i < count; ++i) visible.push_back(i);
    return visible;
  }
  for (const std::string& word : split(wanted, ',')) {
    int found = -1;
    for (int i = 0; i < count; ++i)
      if (word == std::to_string(i) || (word.rfind("GPU-", 0) == 0 && uuid_text(i).rfind(word, 0) == 0))
        found = i;
    if (found < 0 || std::find(visible.begin(), visible.end(), found) != visible.end()) break;
    visible.push_back(found);
  }
  return visible;
}

Settings read_settings() {
  Settings s;
  s.devices = static_cast<int>(number_of("ONECOPY_SIM_CUDA_DEVICES", s.devices));
  s.memory =
      static_cast<std::size_t>(number_of("ONECOPY_SIM_CUDA_MEMORY", static_cast<long long>(s.memory)));
  s.granularity = static_cast<std::size_t>(
      number_of("ONECOPY_SIM_CUDA_GRANULARITY", static_cast<long long>(s.granularity)));
  s.driver_version = static_cast<int>(number_of("ONECOPY_SIM_CUDA_VERSION", s.driver_version));
  s.delay_us = static_cast<int>(number_of("ONECOPY_SIM_CUDA_DELAY_US", 0));
  s.room = static_cast<std::size_t>(number_of("ONECOPY_SIM_CUDA_ROOM", 0));
  s.peers = text_of("ONECOPY_SIM_CUDA_PEERS", "all");
  s.missing = split(text_of("ONECOPY_SIM_CUDA_MISSING", ""), ',');
  s.visible = visible_devices(s.devices);
  return s;
}

}  // namespace

const char* const kFaultsVariable = "ONECOPY_SIM_CUDA_FAIL";

const Settings& settings() {
  static const auto& all = *new Settings(read_settings());
  return all;
}

void uuid_of(int physical, char (&bytes)[16]) {
  std::memcpy(bytes, "SIMulated-GPU-", 14);
  bytes[14] = static_cast<char>(physical >> 8);
  bytes[15] = static_cast<char>(physical);
}

bool Settings::is_missing(const std::string& symbol) const {
  return std::find(missing.begin(), missing.end(), symbol) != missing.end();
}

}  // namespace sim
