// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include <cstring>
#include <string>

#include "extra_calls.h"
#include "state.h"

using namespace sim;

#define DECLARE(name, symbol, version, parameters) \
  extern "C" __attribute__((visibility("default"))) CUresult symbol parameters;
ONECOPY_CUDA_CALLS(DECLARE)
ONECOPY_CUDA_EXTRA_CALLS(DECLARE)
#undef DECLARE

namespace sim {

namespace {

struct Symbol {
  const char* name;
  int version;
  void* address;
};

const Symbol kSymbols[] = {
#define ROW(name, symbol, version, parameters) {#name, version, reinterpret_cast<void*>(&::symbol)},
    ONECOPY_CUDA_CALLS(ROW) ONECOPY_CUDA_EXTRA_CALLS(ROW)
#undef ROW
};

struct ResultName {
  CUresult code;
  const char* name;
  const char* text;
};

const ResultName kResults[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {CUDA_ERROR_NOT_MAPPED, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
     "peer access has not been enabled"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not initiated in this stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ResultName* find_result(CUresult code) {
  for (const ResultName& result : kResults)
    if (result.code == code) return &result;
  return nullptr;
}

}  // namespace

State& state() {
  static State& all = *new State;  // never destroyed: stream threads may outlive static objects
  return all;
}

CUresult enter(const char* symbol) {
  if (const int fault = injected_fault(symbol); fault != 0) return fault;
  State& all = state();
  if (all.has_ended) return CUDA_ERROR_DEINITIALIZED;
  return all.forked || !all.initialized ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
}

CUresult enter_context(const char* symbol) {
  const CUresult refused = enter(symbol);
  return refused != CUDA_SUCCESS ? refused : result_in(current());
}

CUresult result_in(const Context* context) noexcept {
  return context ? context->failed.load() : CUDA_SUCCESS;
}

}  // namespace sim

SIM_CALL cuInit(unsigned flags) {
  if (const int fault = injected_fault("cuInit"); fault != 0) return fault;
  State& all = state();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (all.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (settings().visible.empty()) return CUDA_ERROR_NO_DEVICE;
  if (!all.initialized.exchange(true)) pthread_atfork(nullptr, nullptr, [] { state().forked = true; });
  return CUDA_SUCCESS;
}

SIM_CALL cuDriverGetVersion(int* version) {
  if (const int fault = injected_fault("cuDriverGetVersion"); fault != 0) return fault;
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = settings().driver_version;
  return CUDA_SUCCESS;
}

SIM_CALL cuGetErrorName(CUresult error, const char** text) {
  const auto* found = find_result(error);
  if (text) *text = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_CALL cuGetErrorString(CUresult error, const char** text) {
  const auto* found = find_result(error);
  if (text) *text = found ? found->text : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_CALL cuGetProcAddress_v2(const char* name, void** address, int version, std::uint64_t, int* status) {
  if (const int fault = injected_fault("cuGetProcAddress"); fault != 0) return fault;
  if (!name || !address || version > settings().driver_version) return CUDA_ERROR_INVALID_VALUE;
  *address = nullptr;
  int found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const auto& symbol : kSymbols) {
    if (std::strcmp(symbol.name, name) != 0 || settings().is_missing(name)) continue;
    const bool enough = symbol.version <= version;
    found = enough ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    if (enough) *address = symbol.address;
  }
  if (status) *status = found;
  return CUDA_SUCCESS;
}

/// The form of CUDA 11: no status, and a missing symbol is an error.
SIM_CALL cuGetProcAddress(const char* name, void** address, int version, std::uint64_t flags) {
  int status = 0;
  const CUresult result = cuGetProcAddress_v2(name, address, version, flags, &status);
  return result == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_ERROR_NOT_FOUND : result;
}
