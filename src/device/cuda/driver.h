// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "device/vendor_library.h"
#include "driver_api.h"
#include "graph_api.h"

namespace onecopy::cuda {

/// Throws for a failed call. Adds advice to errors that users can do something about.
[[noreturn]] void throw_result(CUresult result, const std::string& what);
/// Returns whether the error ends this process's use of the device.
bool is_final(CUresult result) noexcept;

inline void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    throw_result(result, what);
}

/// The error rules of the CUDA driver for VendorLibrary calls.
struct Vendor {
  static void check(CUresult result, const char* what) { cuda::check(result, what); }
  [[noreturn]] static void throw_missing(const char* call, int since);
};

template <class Signature>
using Call = VendorCall<Vendor, Signature>;

/// The CUDA driver (libcuda.so.1), loaded and initialised. Thread safety: all members may be called concurrently.
class Driver : public VendorLibrary<Driver> {
 public:
#define MEMBER(CALL, SYMBOL, SINCE, PARAMETERS) Call<CUresult PARAMETERS> CALL{#CALL, SINCE};
  ONECOPY_CUDA_CALLS(MEMBER)
  ONECOPY_CUDA_GRAPH_CALLS(MEMBER)
#undef MEMBER

  int version() const noexcept { return version_; }
  /// Returns e.g. "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
  std::string describe(CUresult result) const;

 private:
  friend VendorLibrary<Driver>;
  static constexpr ErrorDomain kDomain = ErrorDomain::cuda;
  static constexpr int kForkedCode = CUDA_ERROR_NOT_INITIALIZED;
  static constexpr const char* kForkedText =
      "CUDA was used before this process was forked, and does not work in the child; start it "
      "with spawn (multiprocessing.get_context(\"spawn\")) or exec";

  Driver();
  void bind_all(void* library);

  int version_ = 0;
};

}  // namespace onecopy::cuda
