// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace onecopy::cli {

enum class Verdict { ok, slower, missing };

/// The observation of one probe, and its consequence.
struct Finding {
  Verdict verdict = Verdict::ok;
  std::string detail;
  /// The consequence and the remedy; empty if none is needed.
  std::string advice;
};

Finding works(std::string detail);
Finding slower(std::string detail, std::string advice);
Finding missing(std::string detail, std::string advice);

/// A test of one feature of this machine. If `run` throws, the feature is missing.
struct Probe {
  const char* name;
  Finding (*run)();
  /// Says that onecopy does not work at all without the feature.
  bool required = false;
};

// There is one list per source file, in the order in which they are shown.
std::vector<Probe> memory_probes();
std::vector<Probe> limit_probes();
std::vector<Probe> process_probes();
std::vector<Probe> vendor_probes();
/// Returns the probes of devices; empty if there are no devices.
std::vector<Probe> device_probes();
std::vector<Probe> probes_between_processes();

}  // namespace onecopy::cli
