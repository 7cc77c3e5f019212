// SPDX-License-Identifier: Apache-2.0
#include "mappings.h"

#include <iterator>

#include "peers.h"

namespace onecopy::cuda {

/// Returns the mappings, which are never destroyed: the last reservations go while static objects are destroyed.
Mappings& Mappings::get() {
  static Mappings& instance = *new Mappings;
  return instance;
}

void Mappings::add(CUdeviceptr base, std::size_t bytes, int owner) {
  const LockGuard lock(mutex_);
  mappings_.try_emplace(base, Mapping{bytes, owner});
}

void Mappings::remove(CUdeviceptr base) noexcept {
  const LockGuard lock(mutex_);
  mappings_.erase(base);
}

void Mappings::allow(CUdeviceptr base, std::size_t bytes, int ordinal, Access access) {
  const LockGuard lock(mutex_);
  set_access(base, bytes, ordinal, access);
  const auto end = mappings_.lower_bound(base + bytes);
  for (auto next = mappings_.lower_bound(base); next != end; ++next) {
    Mapping& mapping = next->second;
    if (mapping.allowed.empty()) mapping.access = access;
    mapping.allowed.insert(ordinal);
  }
}

std::vector<int> Mappings::users(CUdeviceptr base) {
  const LockGuard lock(mutex_);
  const auto found = mappings_.find(base);
  if (found == mappings_.end()) return {};
  return {found->second.allowed.begin(), found->second.allowed.end()};
}

Mappings::ByAddress::iterator Mappings::find(CUdeviceptr at) {
  const auto after = mappings_.upper_bound(at);
  if (after == mappings_.begin()) return mappings_.end();
  const auto before = std::prev(after);
  return at - before->first < before->second.bytes ? before : mappings_.end();
}

/// Lets the device read with the access that other devices have here, because a driver that gave it to one card gives
/// it to the next. Returns false if the driver refuses: the copy then goes the other way, is counted, and reports any
/// other fault.
bool Mappings::let_read(int ordinal, CUdeviceptr base, Mapping& mapping) {
  if (mapping.allowed.contains(ordinal)) return true;
  if (mapping.allowed.empty() || !has_path(ordinal, mapping.owner)) return false;
  if (!try_set_access(base, mapping.bytes, ordinal, mapping.access)) return false;
  mapping.allowed.insert(ordinal);
  return true;
}

Mappings::Reach Mappings::let_read(int ordinal, CUdeviceptr at, std::size_t bytes) {
  const LockGuard lock(mutex_);
  const CUdeviceptr end = at + bytes;
  while (at < end) {
    const auto found = find(at);
    if (found == mappings_.end()) return Reach::unknown;
    if (!let_read(ordinal, found->first, found->second)) return Reach::none;
    at = found->first + found->second.bytes;
  }
  return Reach::direct;
}

}  // namespace onecopy::cuda
