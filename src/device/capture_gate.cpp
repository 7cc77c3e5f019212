// SPDX-License-Identifier: Apache-2.0
#include "device/capture_gate.h"

#include <atomic>

#include "os/fork_hook.h"

namespace onecopy {

namespace {

/// The gate, which is never destroyed. A forked child makes its own, without locks that a thread of the parent held.
std::atomic<CaptureGate*> gate_of_this_process{nullptr};
const ForkHook kGateAtFork{ForkRank::devices, {.in_child = [] { gate_of_this_process.store(nullptr); }}};

}  // namespace

CaptureGate& CaptureGate::get() {
  CaptureGate* found = gate_of_this_process.load();
  if (found) [[likely]]
    return *found;
  auto* const made = new CaptureGate;
  if (gate_of_this_process.compare_exchange_strong(found, made)) return *made;
  delete made;
  return *found;
}

void CaptureGate::begin() noexcept {
  const LockGuard lock(mutex_);
  ++captures_;
}

void CaptureGate::end() noexcept {
  const LockGuard lock(mutex_);
  if (captures_ != 0) --captures_;
}

}  // namespace onecopy
