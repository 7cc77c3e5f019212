// SPDX-License-Identifier: Apache-2.0
#include "settings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

namespace sim {

namespace {

std::string text_of(const char* variable, const char* otherwise) {
  const char* value = std::getenv(variable);
  return value ? value : otherwise;
}

long long number_of(const char* variable, long long otherwise) {
  const char* value = std::getenv(variable);
  return value && *value ? std::atoll(value) : otherwise;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

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

struct Fault {
  int code = 0;
  int after = 0;
  int times = -1;
};

/// "cuMemCreate=2,cuStreamQuery=700@3": the code, and how many calls go well before.
std::map<std::string, Fault> read_faults() {
  std::map<std::string, Fault> faults;
  for (const std::string& word : split(text_of("ONECOPY_SIM_CUDA_FAIL", ""), ',')) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) continue;
    const auto at = word.find('@', equals);
    Fault fault{std::atoi(word.c_str() + equals + 1), 0, -1};
    if (at != std::string::npos) fault.after = std::atoi(word.c_str() + at + 1);
    faults[word.substr(0, equals)] = fault;
  }
  return faults;
}

std::mutex faults_mutex;

std::map<std::string, Fault>& faults() {
  static auto& all = *new std::map<std::string, Fault>(read_faults());  // outlives every thread
  return all;
}

}  // namespace

const Settings& settings() {
  static const auto& all = *new Settings(read_settings());
  return all;
}

void uuid_of(int physical, char (&bytes)[16]) {
  std::memcpy(bytes, "SIMulated-GPU-", 14);
  bytes[14] = static_cast<char>(physical >> 8);
  bytes[15] = static_cast<char>(physical);
}

bool Settings::can_access(int from, int to) const {
  if (from == to || peers == "all") return true;
  const std::string one = std::to_string(from) + "-" + std::to_string(to);
  const std::string other = std::to_string(to) + "-" + std::to_string(from);
  for (const std::string& pair : split(peers, ','))
    if (pair == one || pair == other) return true;
  return false;
}

bool Settings::is_missing(const std::string& symbol) const {
  return std::find(missing.begin(), missing.end(), symbol) != missing.end();
}

int injected_fault(const char* symbol) {
  const std::lock_guard lock(faults_mutex);
  auto& all = faults();
  if (all.empty()) return 0;
  const auto at = all.find(symbol);
  if (at == all.end()) return 0;
  Fault& fault = at->second;
  if (fault.after > 0) {
    --fault.after;
    return 0;
  }
  const int code = fault.code;
  if (fault.times > 0 && --fault.times == 0) all.erase(at);
  return code;
}

}  // namespace sim

extern "C" __attribute__((visibility("default"))) void sim_fail(const char* symbol, int code, int after,
                                                                int times) {
  const std::lock_guard lock(sim::faults_mutex);
  if (code == 0) sim::faults().erase(symbol);
  else sim::faults()[symbol] = {code, after, times};
}
