// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "driver_api.h"

namespace onecopy::cuda {

/// Throws for a failed call, in words of its own for what users can do something about.
[[noreturn]] void throw_result(CUresult result, const std::string& what);
[[noreturn]] void throw_missing(const char* call, int since);
/// Does nothing work on the device after it any more in this process?
bool is_final(CUresult result) noexcept;

inline void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) [[unlikely]]
    throw_result(result, what);
}

template <class Signature>
class Call;

/// One call of the driver, which this driver may not have.
template <class... Arguments>
class Call<CUresult(Arguments...)> {
 public:
  Call(const char* name, int since) noexcept : name_(name), since_(since) {}

  explicit operator bool() const noexcept { return address_ != nullptr; }
  void bind(void* address) noexcept { address_ = reinterpret_cast<CUresult (*)(Arguments...)>(address); }
  const char* name() const noexcept { return name_; }
  int since() const noexcept { return since_; }

  /// The plain result. Throws unsupported when this driver does not have the call.
  CUresult operator()(Arguments... arguments) const {
    if (!address_) [[unlikely]]
      throw_missing(name_, since_);
    return address_(arguments...);
  }
  /// Throws for every result but success.
  void must(Arguments... arguments) const { check((*this)(arguments...), name_); }

 private:
  const char* name_;
  int since_;
  CUresult (*address_)(Arguments...) = nullptr;
};

/// libcuda.so.1, loaded and initialised.
/// Thread safety: all members may be called concurrently.
class Driver {
 public:
  /// Throws unsupported, saying what is missing, and in a child forked after the first use.
  static const Driver& get();
  /// Null in place of throwing; for destructors and questions.
  static const Driver* try_get() noexcept;

#define MEMBER(CALL, SYMBOL, SINCE, PARAMETERS) Call<CUresult PARAMETERS> CALL{#CALL, SINCE};
  ONECOPY_CUDA_CALLS(MEMBER)
#undef MEMBER

  int version() const noexcept { return version_; }
  /// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
  std::string describe(CUresult result) const;

 private:
  Driver();
  void load();
  void bind_all(void* library);
  static Driver& instance();

  int version_ = 0;
  std::string problem_;  ///< why it cannot be used
  CUresult result_ = 0;
};

}  // namespace onecopy::cuda
