// SPDX-License-Identifier: Apache-2.0
#include "onecopy/os/shared_library.h"

#include <dlfcn.h>

namespace onecopy {

std::optional<SharedLibrary> SharedLibrary::open(const std::vector<std::string>& names, std::string* why) {
  std::string reasons;
  for (const std::string& name : names) {
    if (void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return SharedLibrary(handle, name);
    const char* reason = ::dlerror();
    if (!reasons.empty()) reasons += "; ";
    reasons += reason ? reason : name + " cannot be loaded";
  }
  if (why) *why = std::move(reasons);
  return std::nullopt;
}

void* SharedLibrary::symbol(const char* name) const noexcept { return ::dlsym(handle_, name); }

}  // namespace onecopy
