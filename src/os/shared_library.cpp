// SPDX-License-Identifier: Apache-2.0
#include "os/shared_library.h"

#include <dlfcn.h>

#include <algorithm>

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

bool SharedLibrary::is_loaded(const std::vector<std::string>& names) noexcept {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    void* handle = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (handle) ::dlclose(handle);  // the first loader's reference keeps it
    return handle != nullptr;
  });
}

void* SharedLibrary::symbol(const char* name) const noexcept { return ::dlsym(handle_, name); }

}  // namespace onecopy
