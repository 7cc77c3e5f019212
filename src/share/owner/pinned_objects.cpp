// SPDX-License-Identifier: Apache-2.0
#include "share/owner/pinned_objects.h"

#include <utility>

namespace onecopy {

/// Leaves the registry before the object goes: its destructor may call back.
struct PinnedObjects::Pin {
  Pin(PinnedObjects& in, Name of, std::shared_ptr<const void> what) noexcept
      : registry(in), name(of), object(std::move(what)) {}
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  ~Pin() {
    const LockGuard lock(registry.mutex_);
    registry.pins_.erase(name);
  }

  PinnedObjects& registry;
  const Name name;
  const std::shared_ptr<const void> object;
};

std::shared_ptr<const void> PinnedObjects::add(Name name, std::shared_ptr<const void> object) {
  auto pin = std::make_shared<const Pin>(*this, name, std::move(object));
  const LockGuard lock(mutex_);
  pins_[name] = pin;
  return pin;
}

std::shared_ptr<const void> PinnedObjects::find(Name name) const {
  std::shared_ptr<const Pin> pin;  // outlives the lock, which its destructor takes
  const LockGuard lock(mutex_);
  const auto at = pins_.find(name);
  if (at == pins_.end()) return {};
  pin = at->second.lock();
  return pin ? pin->object : nullptr;
}

}  // namespace onecopy
