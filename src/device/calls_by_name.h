// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device/shared_events.h"
#include "onecopy/core/error.h"
#include "onecopy/os/shared_library.h"

namespace onecopy {

/// Calls of a vendor's library by name, each of which returns 0 when it went well. The parameters have to be
/// those of the vendor's header exactly.
/// Thread safety: all members may be called concurrently.
class CallsByName {
 public:
  /// The library that the backend has loaded, too: the one that the environment names, or the first of `names`.
  CallsByName(const char* variable, std::vector<std::string> names)
      : library_(open(std::getenv(variable), std::move(names))) {}

  template <class... Parameters>
  int result(const char* name, Parameters... parameters) const {
    auto* call = reinterpret_cast<int (*)(Parameters...)>(library_.symbol(name));
    if (call) return call(parameters...);
    throw Error(ErrorCode::unsupported, fmt::format("{} has no {}", library_.name(), name));
  }
  template <class... Parameters>
  void must(const char* name, Parameters... parameters) const {
    if (const int error = result(name, parameters...); error != 0)
      throw Error(ErrorCode::unsupported, fmt::format("{} failed with error {}", name, error));
  }

 private:
  static SharedLibrary open(const char* chosen, std::vector<std::string> names) {
    if (chosen && *chosen) names = {chosen};
    std::string why;
    if (auto library = SharedLibrary::open(names, &why)) return *std::move(library);
    throw Error(ErrorCode::unsupported, "tried " + why);
  }

  SharedLibrary library_;
};

template <class Handle>
SharedEvent bytes_of_event(const Handle& handle) {
  SharedEvent bytes(sizeof handle);
  std::memcpy(bytes.data(), &handle, sizeof handle);
  return bytes;
}

template <class Handle>
Handle event_in(const SharedEvent& bytes) {
  Handle handle;
  if (bytes.size() != sizeof handle)
    throw Error(ErrorCode::invalid_argument, "the handle of an event has the wrong size");
  std::memcpy(&handle, bytes.data(), sizeof handle);
  return handle;
}

}  // namespace onecopy
