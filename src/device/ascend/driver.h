// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "acl_api.h"

namespace onecopy::ascend {

/// Throws for a failed call, in words of its own for what users can do something about.
[[noreturn]] void throw_result(aclError result, const std::string& what);
[[noreturn]] void throw_missing(const char* call);
/// Has this process lost the device?
bool is_final(aclError result) noexcept;

inline void check(aclError result, const char* what) {
  if (result != ACL_SUCCESS) [[unlikely]]
    throw_result(result, what);
}

template <class Signature>
class Call;

/// One call of the runtime, which this runtime may not have.
template <class... Arguments>
class Call<aclError(Arguments...)> {
 public:
  explicit Call(const char* name) noexcept : name_(name) {}

  explicit operator bool() const noexcept { return address_ != nullptr; }
  void bind(void* address) noexcept { address_ = reinterpret_cast<aclError (*)(Arguments...)>(address); }

  /// The plain result. Throws unsupported when this runtime does not have the call.
  aclError operator()(Arguments... arguments) const {
    if (!address_) [[unlikely]]
      throw_missing(name_);
    return address_(arguments...);
  }
  /// Throws for every result but success.
  void must(Arguments... arguments) const { check((*this)(arguments...), name_); }

 private:
  const char* name_;
  aclError (*address_)(Arguments...) = nullptr;
};

/// The ACL runtime (libascendcl.so, or libacl_rt.so of the open runtime), loaded and initialised.
/// Thread safety: all members may be called concurrently.
class Driver {
 public:
  /// Throws unsupported, saying what is missing, and in a child forked after the first use.
  static const Driver& get();
  /// Null in place of throwing; for destructors and questions.
  static const Driver* try_get() noexcept;
  /// The same, and does not load it either.
  static const Driver* if_loaded() noexcept;
  /// Whether anything in this process has loaded it, a framework, say.
  static bool is_in_process() noexcept;

#define MEMBER(CALL, PARAMETERS) Call<aclError PARAMETERS> CALL{#CALL};
  ONECOPY_ACL_CALLS(MEMBER)
#undef MEMBER

  /// The chip's name; empty when the runtime does not say.
  std::string chip() const;
  /// "507899: what the runtime said last".
  std::string describe(aclError result) const;
  /// All that segments of physical memory with shareable handles need.
  bool has_virtual_memory() const noexcept;

 private:
  Driver();
  void load();
  void check_version(int package, const char* name, const char* oldest);
  static Driver& instance();

  GetSocName* get_soc_name_ = nullptr;
  GetRecentErrMsg* get_message_ = nullptr;
  std::string problem_;  ///< why it cannot be used
  aclError result_ = 0;
};

/// Orders "8.3.RC1", "8.3.RC1.alpha002", "25.3.rc1", "8.5.0" as they were released: candidates before the
/// release they are for. False as well when the text is no version.
bool is_older(const std::string& version, const std::string& than);

}  // namespace onecopy::ascend
