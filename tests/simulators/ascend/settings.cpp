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
  s.most_keys = static_cast<int>(number_of("ONECOPY_SIM_ASCEND_MOST_KEYS", s.most_keys));
  s.visible = visible_devices(s.devices);
  return s;
}

struct Fault {
  int code = 0;
  int after = 0;
  int times = -1;
};

/// "aclrtMalloc=207001,aclrtStreamQuery=507899@3": the code, and how many calls go well before.
std::map<std::string, Fault> read_faults() {
  std::map<std::string, Fault> faults;
  for (const std::string& word : split(text_of("ONECOPY_SIM_ASCEND_FAIL", ""), ',')) {
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
  std::memcpy(bytes, "SIMulated-NPU-", 14);
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

bool Settings::is_virtual(int physical) const {
  if (virtuals == "all") return true;
  for (const std::string& number : split(virtuals, ','))
    if (number == std::to_string(physical)) return true;
  return false;
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
