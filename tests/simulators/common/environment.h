// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

/// The settings that the simulators of all vendors read in one way. Thread safety: all functions may be called
/// concurrently.
namespace sim {

/// The variable of the simulator that lists faults: "aclrtMalloc=207001,cuStreamQuery=700@3" names the code, and how many
/// calls go well before. Each simulator defines it.
extern const char* const kFaultsVariable;

std::string text_of(const char* variable, const char* otherwise);
long long number_of(const char* variable, long long otherwise);
/// Returns the parts of `text` that are not empty.
std::vector<std::string> split(const std::string& text, char separator);
/// Returns whether `peers` ("all", "none", or pairs "0-1,2-3") names this pair of devices.
bool are_peers(const std::string& peers, int from, int to);

/// Returns the error that the environment, or sim_fail(), wants from this call now; 0 for none.
int injected_fault(const char* symbol);

}  // namespace sim

/// For tests in the same process: from its `after`-th next call on (0 = the very next) the call returns
/// `code`, `times` times (-1 = for ever). Found by dlsym.
extern "C" void sim_fail(const char* symbol, int code, int after, int times);
