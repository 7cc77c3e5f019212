// SPDX-License-Identifier: Apache-2.0
#include "detours.h"

#include <algorithm>

#include "devices.h"
#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy::cuda {

/// Returns the detours, which are never destroyed: streams use the buffers until the end.
Detours& Detours::get() {
  static Detours& instance = *new Detours;
  return instance;
}

bool Detours::copy(Backend& cuda, const Transfer& t, Stream stream) {
  if (t.bytes > kMax || cuda.is_captured(t.to_device.index, stream)) return false;
  const UseDevice use(t.to_device.index);
  Detour* const detour = find(cuda, t.to_device.index, stream);
  if (!detour) return false;
  std::byte* const by = detour->buffer.data();
  const LockGuard lock(detour->order);
  cuda.copy({by, kCpu, t.from, t.from_device, t.bytes}, stream);
  cuda.copy({t.to, t.to_device, by, kCpu, std::max(t.bytes, Backend::kAsideRoom)}, stream);
  return true;
}

Detours::Detour* Detours::find(Backend& cuda, int ordinal, Stream stream) {
  const Driver& driver = Driver::get();
  unsigned long long id = 0;
  if (!driver.cuStreamGetId ||
      driver.cuStreamGetId(static_cast<CUstream>(stream.native), &id) != CUDA_SUCCESS)
    return nullptr;
  const LockGuard lock(mutex_);
  const auto found = detours_.find({ordinal, id});
  if (found != detours_.end()) return found->second.get();
  if (detours_.size() == kMaxStreams) return nullptr;
  return detours_.emplace(std::pair{ordinal, id}, make(cuda, ordinal)).first->second.get();
}

/// Creates a detour. Returns null, for good, where memory cannot be pinned, and logs that.
std::unique_ptr<Detours::Detour> Detours::make(Backend& cuda, int ordinal) {
  try {
    auto detour = std::make_unique<Detour>();
    detour->buffer = Mapping::anonymous(kMax);
    cuda.pin_host(ordinal, detour->buffer.data(), kMax, Access::read_write);
    return detour;
  } catch (const Error& error) {
    log_warning(std::string("small copies on cuda:") + std::to_string(ordinal) +
                " cannot use its copy engines: " + error.what());
    return nullptr;
  }
}

}  // namespace onecopy::cuda
