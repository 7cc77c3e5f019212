// SPDX-License-Identifier: Apache-2.0
#include "opened_keys.h"

#include <fmt/format.h>

#include "devices.h"
#include "onecopy/core/error.h"

namespace onecopy::ascend {

namespace {

[[noreturn]] void throw_no_import(const Driver& driver, aclError result, bool another_cards) {
  if (result != ACL_ERROR_RT_DRV_INTERNAL_ERROR) throw_result(result, "aclrtIpcMemImportByKey");
  throw Error(
      ErrorCode::owner_died,
      fmt::format("the Ascend driver cannot open this memory: its owner is gone, or it was not lent to "
                  "this process{} ({})",
                  another_cards
                      ? ", or the driver is older than 25.5.2, which cannot open another card's memory"
                      : "",
                  driver.describe(result)),
      result, ErrorDomain::ascend);
}

void* import_at(int ordinal, const std::string& name, bool another_cards) {
  const Driver& driver = Driver::get();
  const UseDevice use(ordinal);
  void* base = nullptr;
  const aclError result = driver.aclrtIpcMemImportByKey(
      &base, name.c_str(), another_cards ? ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS : 0);
  if (result != ACL_SUCCESS) throw_no_import(driver, result, another_cards);
  return base;
}

void close_at(int ordinal, const std::string& name) noexcept {
  const Driver* driver = Driver::try_get();
  if (!driver) return;
  try {
    const UseDevice use(ordinal);
    driver->aclrtIpcMemClose(name.c_str());
  } catch (const Error&) {
    // The device is gone, and the mapping with it.
  }
}

}  // namespace

OpenedKeys& OpenedKeys::get() {
  static OpenedKeys& all = *new OpenedKeys;  // used until the very end
  return all;
}

void* OpenedKeys::open(int ordinal, int owner, const ExportedKeys& exported, Access access) {
  const LockGuard lock(mutex_);
  if (const auto at = keys_.find(exported.key); at != keys_.end())
    for (const Import& import : at->second.imports)
      if (import.ordinal == ordinal && import.access == access) {
        ++at->second.users;
        return import.base;
      }
  void* base = import_at(ordinal, exported.key, owner != ordinal);
  Key& key = keys_[exported.key];
  key.imports.emplace_back(ordinal, owner, base, exported.bytes, access);
  ++key.users;
  return base;
}

/// Closes a key. Addresses are unregistered before another allocation can get them.
void OpenedKeys::close(const std::string& name) noexcept {
  if (!Driver::try_get()) return;  // a forked child, where another thread may hold the lock for ever
  const LockGuard lock(mutex_);
  const auto at = keys_.find(name);
  if (at == keys_.end() || --at->second.users > 0) return;
  for (auto& imports = at->second.imports; !imports.empty();) {
    const int ordinal = imports.front().ordinal;
    imports.pop_front();
    close_at(ordinal, name);
  }
  keys_.erase(at);
}

}  // namespace onecopy::ascend
