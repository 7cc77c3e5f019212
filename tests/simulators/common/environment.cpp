// SPDX-License-Identifier: Apache-2.0
#include "simulators/common/environment.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

namespace sim {

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

bool are_peers(const std::string& peers, int from, int to) {
  if (from == to || peers == "all") return true;
  const std::string one = std::to_string(from) + "-" + std::to_string(to);
  const std::string other = std::to_string(to) + "-" + std::to_string(from);
  for (const std::string& pair : split(peers, ','))
    if (pair == one || pair == other) return true;
  return false;
}

namespace {

struct Fault {
  int code = 0;
  int after = 0;
  int times = -1;
};

std::map<std::string, Fault> read_faults() {
  std::map<std::string, Fault> faults;
  for (const std::string& word : split(text_of(kFaultsVariable, ""), ',')) {
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
