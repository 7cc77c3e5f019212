// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>

#include "cpu/factory.h"
#include "onecopy/core/error.h"
#include "onecopy/device/backend.h"

namespace onecopy {

namespace {

struct Entry {
  DeviceType type;
  Backend& (*get)();
};

// The only place that names backends: a new one is one folder and one line here.
constexpr std::array kBackends{
    Entry{DeviceType::cpu, cpu_backend},
};

}  // namespace

Backend& backend(DeviceType type) {
  for (const Entry& entry : kBackends)
    if (entry.type == type) return entry.get();
  throw Error(ErrorCode::unsupported,
              fmt::format("this build of onecopy has no backend for {} devices", name(type)));
}

std::vector<DeviceType> backend_types() {
  std::vector<DeviceType> types;
  for (const Entry& entry : kBackends) types.push_back(entry.type);
  return types;
}

}  // namespace onecopy
