// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "acl_api.h"
#include "device/vendor_library.h"

namespace onecopy::ascend {

/// Throws for a failed call. Adds advice to errors that users can do something about.
[[noreturn]] void throw_result(aclError result, const std::string& what);
/// Returns whether the error means that this process has lost the device.
bool is_final(aclError result) noexcept;

inline void check(aclError result, const char* what) {
  if (result != ACL_SUCCESS) [[unlikely]]
    throw_result(result, what);
}

/// The error rules of the ACL runtime for VendorLibrary calls.
struct Vendor {
  static void check(aclError result, const char* what) { ascend::check(result, what); }
  [[noreturn]] static void throw_missing(const char* call, int since);
};

template <class Signature>
using Call = VendorCall<Vendor, Signature>;

/// The ACL runtime (libascendcl.so, or libacl_rt.so of the open runtime), loaded and initialised. Thread safety: all
/// members may be called concurrently.
class Driver : public VendorLibrary<Driver> {
 public:
  /// Returns whether a part of this process, such as a framework, has loaded the runtime.
  static bool is_in_process() noexcept;

#define MEMBER(CALL, PARAMETERS) Call<aclError PARAMETERS> CALL{#CALL};
  ONECOPY_ACL_CALLS(MEMBER)
#undef MEMBER

  /// Returns the chip's name; empty if the runtime does not report it.
  std::string chip() const;
  /// Returns e.g. "507899: ..." with the last message of the runtime.
  std::string describe(aclError result) const;
  /// Returns whether the runtime has all calls for segments of physical memory with shareable handles.
  bool has_virtual_memory() const noexcept;

 private:
  friend VendorLibrary<Driver>;
  static constexpr ErrorDomain kDomain = ErrorDomain::ascend;
  static constexpr int kForkedCode = ACL_ERROR_UNINITIALIZE;
  static constexpr const char* kForkedText =
      "Ascend devices were used before this process was forked, and do not work in the child; "
      "start it with spawn (multiprocessing.get_context(\"spawn\")) or exec";

  Driver();
  void check_version(int package, const char* name, const char* oldest);

  GetSocName* get_soc_name_ = nullptr;
  GetRecentErrMsg* get_message_ = nullptr;
};

/// Returns whether `version` was released before `than`: "8.3.RC1", "8.3.RC1.alpha002", "25.3.rc1", "8.5.0". Candidates
/// come before their release. Returns false if a text is not a version.
bool is_older(const std::string& version, const std::string& than);

}  // namespace onecopy::ascend
