// SPDX-License-Identifier: Apache-2.0
// Loading, initialisation and versions.
#include <pthread.h>

#include <cstdio>
#include <cstring>

#include "extra_calls.h"
#include "state.h"

using namespace sim;

#define DECLARE(name, parameters) \
  extern "C" __attribute__((visibility("default"))) aclError name parameters;
ONECOPY_ACL_CALLS(DECLARE)
ONECOPY_ACL_EXTRA_CALLS(DECLARE)
#undef DECLARE

namespace sim {

State& state() {
  static State& all = *new State;  // never destroyed: stream threads may outlive static objects
  return all;
}

aclError enter(const char* symbol) {
  if (const int fault = injected_fault(symbol); fault != 0) return fault;
  const State& all = state();
  return all.forked || !all.initialized ? ACL_ERROR_UNINITIALIZE : ACL_SUCCESS;
}

}  // namespace sim

SIM_CALL aclInit(const char*) {
  if (const int fault = injected_fault("aclInit"); fault != 0) return fault;
  State& all = state();
  if (all.forked) return ACL_ERROR_UNINITIALIZE;
  if (all.initialized.exchange(true)) return ACL_ERROR_REPEAT_INITIALIZE;
  pthread_atfork(nullptr, nullptr, [] { state().forked = true; });
  return ACL_SUCCESS;
}

SIM_CALL aclFinalize() {
  SIM_ENTER(aclFinalize);
  state().initialized = false;
  return ACL_SUCCESS;
}

SIM_CALL aclsysGetCANNVersion(int package, aclCANNPackageVersion* version) {
  if (const int fault = injected_fault("aclsysGetCANNVersion"); fault != 0) return fault;
  if (!version) return ACL_ERROR_INVALID_PARAM;
  const std::string& text = package == ACL_PKG_NAME_DRIVER ? settings().driver : settings().cann;
  if (text.empty() || (package != ACL_PKG_NAME_DRIVER && package != ACL_PKG_NAME_CANN))
    return ACL_ERROR_INVALID_FILE;
  *version = {};
  std::snprintf(version->version, sizeof version->version, "%s", text.c_str());
  return ACL_SUCCESS;
}

SIM_CALL aclrtGetVersion(std::int32_t* major, std::int32_t* minor, std::int32_t* patch) {
  if (const int fault = injected_fault("aclrtGetVersion"); fault != 0) return fault;
  if (!major || !minor || !patch) return ACL_ERROR_INVALID_PARAM;
  *major = 1;
  *minor = 16;
  *patch = 0;
  return ACL_SUCCESS;
}

extern "C" __attribute__((visibility("default"))) const char* aclrtGetSocName() {
  return "Ascend-simulated";
}
extern "C" __attribute__((visibility("default"))) const char* aclGetRecentErrMsg() { return nullptr; }
