// SPDX-License-Identifier: Apache-2.0
#include "device/order/registered_devices.h"

#include "core/point.h"

namespace onecopy {

std::optional<bool> RegisteredDevices::find(Device device) const {
  const LockGuard lock(mutex_);
  const auto at = known_.find(device);
  if (at == known_.end()) return {};
  return at->second;
}

bool RegisteredDevices::register_page(Device device, const Mapping& page) {
  if (const auto known = find(device)) return *known;
  const LockGuard one_at_a_time(registering_);
  if (const auto known = find(device)) return *known;
  point("timeline.register");
  const bool can_use = backend(device.type).register_words(device.index, page.data(), page.size());
  const LockGuard lock(mutex_);
  return known_[device] = can_use;
}

}  // namespace onecopy
