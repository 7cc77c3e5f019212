// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "onecopy/core/error.h"

namespace onecopy {

template <class Vendor, class Signature>
class VendorCall;

/// A call of a vendor's library, which an older library may lack. `Vendor` throws: check(result, name) for failed
/// calls, throw_missing(name, since) for missing ones. Thread safety: const members may be called concurrently.
template <class Vendor, class Result, class... Arguments>
class VendorCall<Vendor, Result(Arguments...)> {
 public:
  explicit VendorCall(const char* name, int since = 0) noexcept : name_(name), since_(since) {}

  explicit operator bool() const noexcept { return address_ != nullptr; }
  void bind(void* address) noexcept { address_ = reinterpret_cast<Result (*)(Arguments...)>(address); }
  const char* name() const noexcept { return name_; }
  /// Returns the vendor's version that introduced the call; 0 if the vendor does not number versions.
  int since() const noexcept { return since_; }

  /// Returns the plain result. Throws unsupported if the library lacks the call.
  Result operator()(Arguments... arguments) const {
    if (!address_) [[unlikely]]
      Vendor::throw_missing(name_, since_);
    return address_(arguments...);
  }
  /// Calls the function. Throws for every result but success.
  void must(Arguments... arguments) const { Vendor::check((*this)(arguments...), name_); }

 private:
  const char* name_;
  int since_;
  Result (*address_)(Arguments...) = nullptr;
};

/// A vendor's library, which is loaded at first use, never unloaded, and unusable in a child that is forked afterwards.
/// `Library` derives from it and is its friend. Its constructor loads, and leaves problem_ empty on success; it defines
/// kDomain, kForkedCode and kForkedText. Thread safety: all members may be called concurrently.
template <class Library>
class VendorLibrary {
 public:
  /// Returns the library. Throws unsupported, naming the missing part, and in a child forked after the first use.
  static const Library& get() {
    const Library& library = instance();
    if (forked_.load(std::memory_order_relaxed)) [[unlikely]]
      throw Error(ErrorCode::unsupported, Library::kForkedText, Library::kForkedCode, Library::kDomain);
    if (!library.problem_.empty())
      throw Error(ErrorCode::unsupported, library.problem_, library.result_, Library::kDomain);
    return library;
  }
  /// Returns the library, or null where get() throws; for destructors and queries.
  static const Library* try_get() noexcept {
    const Library& library = instance();
    return library.problem_.empty() && !forked_.load(std::memory_order_relaxed) ? &library : nullptr;
  }
  /// Notes in a child that a library loaded by its parent is unusable.
  static void note_fork() noexcept { forked_ = forked_ || loaded_; }
  /// Returns the library, or null if it is unusable or get() and try_get() were not called before. Loads nothing.
  static const Library* if_loaded() noexcept {
    return loaded_.load(std::memory_order_relaxed) ? try_get() : nullptr;
  }

 protected:
  std::string problem_;  ///< the reason why the library is unusable
  int result_ = 0;       ///< the vendor's code for problem_

 private:
  static Library& instance() {
    static Library& library = make();  // never destroyed: memory with static lifetime uses it
    return library;
  }
  static Library& make() {
    Library& library = *new Library;
    if (!library.problem_.empty()) return library;
    loaded_ = true;
    return library;
  }

  inline static std::atomic<bool> loaded_{false};
  inline static std::atomic<bool> forked_{false};
};

}  // namespace onecopy
