// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <list>
#include <map>
#include <utility>

#include "backend.h"
#include "devices.h"
#include "exported.h"
#include "known_ranges.h"
#include "onecopy/core/error.h"
#include "os/mutex.h"

namespace onecopy::ascend {

namespace {

/// An allocation, and the key of its export if it was exported.
struct KeyMapping {
  int ordinal = 0;
  void* base = nullptr;
  std::size_t bytes = 0;
  std::string key;
};

/// A store of exported allocations that no segment uses. Keys are finite and outlive a process that does not close
/// them, so they are closed when the process ends.
class ParkedMemory {
 public:
  static ParkedMemory& get() {
    static ParkedMemory& all = *new ParkedMemory;  // used until the very end
    return all;
  }

  bool take(int ordinal, std::size_t bytes, KeyMapping& found) {
    const LockGuard lock(mutex_);
    const auto at = free_.find({ordinal, bytes});
    if (at == free_.end()) return false;
    found = std::move(at->second);
    free_.erase(at);
    return true;
  }
  void put(KeyMapping memory) {
    const LockGuard lock(mutex_);
    const std::pair place{memory.ordinal, memory.bytes};
    free_.emplace(place, std::move(memory));
  }
  bool is_ours(const std::string& key) {
    const LockGuard lock(mutex_);
    return std::find(keys_.begin(), keys_.end(), key) != keys_.end();
  }
  void note(const std::string& key) {
    const LockGuard lock(mutex_);
    keys_.push_back(key);
    if (keys_.size() == 1) std::atexit([] { ParkedMemory::get().close_all(); });
  }

 private:
  void close_all() noexcept {
    const Driver* driver = Driver::try_get();
    if (!driver) return;
    const LockGuard lock(mutex_);
    for (const std::string& key : keys_) driver->aclrtIpcMemClose(key.c_str());
  }

  Mutex mutex_;
  std::multimap<std::pair<int, std::size_t>, KeyMapping> free_ GUARDED_BY(mutex_);
  std::vector<std::string> keys_ GUARDED_BY(mutex_);  ///< all keys of this process
};

KeyMapping allocate(int ordinal, std::size_t bytes) {
  KeyMapping memory{ordinal, nullptr, bytes, {}};
  if (ParkedMemory::get().take(ordinal, bytes, memory)) return memory;
  const Driver& driver = Driver::get();
  const aclError result = driver.aclrtMalloc(&memory.base, bytes, ACL_MEM_MALLOC_HUGE_ONLY);
  check_room(result, "aclrtMalloc", "allocate", ordinal, bytes);
  return memory;
}

/// A segment of kind ascend_key, in its owner: memory of aclrtMalloc, which is exported by an IPC key, for chips and drivers
/// without virtual memory. The segment is *weak*: it ends with its process. Borrowers have to close a key before the owner
/// may free the memory, but the owner does not learn when they have. Exported memory is therefore kept for the next segment
/// of its size.
class KeyMemory final : public DeviceMemory {
 public:
  explicit KeyMemory(KeyMapping memory) : DeviceMemory(Access::read_write), memory_(std::move(memory)) {}
  ~KeyMemory() override;

  std::byte* data() const noexcept override { return static_cast<std::byte*>(memory_.base); }
  std::size_t size() const noexcept override { return memory_.bytes; }
  SegmentKind kind() const noexcept override { return SegmentKind::ascend_key; }

 private:
  ExportedMemory do_export(Access access) const override;
  void export_key() const;

  mutable Mutex mutex_;
  mutable KeyMapping memory_;
};

KeyMemory::~KeyMemory() {
  const Driver* driver = Driver::try_get();
  if (!driver) return;
  if (!memory_.key.empty()) {
    ParkedMemory::get().put(std::move(memory_));
    return;
  }
  try {
    const UseDevice use(memory_.ordinal);
    driver->aclrtFree(memory_.base);
  } catch (const Error&) {
    // The device is gone, and the memory with it.
  }
}

void KeyMemory::export_key() const {
  const Driver& driver = Driver::get();
  const UseDevice use(memory_.ordinal);
  std::array<char, kKeyBytes> key{};
  const aclError result =
      driver.aclrtIpcMemGetExportKey(memory_.base, memory_.bytes, key.data(), key.size(), 0);
  if (result == ACL_ERROR_RT_DRV_INTERNAL_ERROR)
    throw Error(ErrorCode::system,
                fmt::format("the Ascend driver cannot create a key to share memory ({}); keys of processes "
                            "that were killed stay until the driver is reset: are there many?",
                            driver.describe(result)),
                result, ErrorDomain::ascend);
  check(result, "aclrtIpcMemGetExportKey");
  memory_.key.assign(key.data(), ::strnlen(key.data(), kKeyBytes - 1));
  ParkedMemory::get().note(memory_.key);
}

ExportedMemory KeyMemory::do_export(Access access) const {
  const LockGuard lock(mutex_);
  if (memory_.key.empty()) export_key();
  return describe({access, size(), Devices::get().at(memory_.ordinal).info.uuid, 0, memory_.key});
}

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

/// The memory that this process has opened by keys. Closing a key ends its oldest import, not a chosen one. Imports of
/// a key are therefore shared where possible, and all end with the last one in use. Thread safety: all members may be
/// called concurrently.
class OpenedKeys {
 public:
  static OpenedKeys& get() {
    static OpenedKeys& all = *new OpenedKeys;  // used until the very end
    return all;
  }

  /// Opens the memory and returns its address for `ordinal`, which differs for each access. close() ends it. Throws
  /// owner_died, unsupported.
  void* open(int ordinal, int owner, const ExportedKeys& exported, Access access);
  /// Ends the effect of one open().
  void close(const std::string& name) noexcept;

 private:
  struct Import {
    Import(int at, int owner, void* where, std::size_t bytes, Access how)
        : ordinal(at), access(how), base(where), known(where, bytes, how, owner) {}

    const int ordinal;
    const Access access;
    void* const base;
    const KnownRange known;
  };
  struct Key {
    std::size_t users = 0;
    std::list<Import> imports;  ///< in the order in which the runtime ends them
  };

  Mutex mutex_;
  std::map<std::string, Key> keys_ GUARDED_BY(mutex_);
};

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

/// An allocation of another process, opened by its key. The runtime cannot map it read-only: only onecopy's own copies
/// refuse to write.
class OpenedByKey final : public DeviceMemory {
 public:
  OpenedByKey(int ordinal, int owner, ExportedKeys exported, Access access)
      : DeviceMemory(access),
        exported_(std::move(exported)),
        base_(OpenedKeys::get().open(ordinal, owner, exported_, access)) {}
  OpenedByKey& operator=(OpenedByKey&&) = delete;
  ~OpenedByKey() override { OpenedKeys::get().close(exported_.key); }

  std::byte* data() const noexcept override { return static_cast<std::byte*>(base_); }
  std::size_t size() const noexcept override { return exported_.bytes; }
  SegmentKind kind() const noexcept override { return SegmentKind::ascend_key; }

 private:
  ExportedMemory do_export(Access access) const override;

  const ExportedKeys exported_;
  void* const base_;
};

/// Exports the owner's key, which opens the memory for other processes as well.
ExportedMemory OpenedByKey::do_export(Access access) const {
  ExportedKeys again = exported_;
  again.access = access;
  return describe(again);
}

}  // namespace

std::unique_ptr<DeviceMemory> AscendBackend::create_by_key(int ordinal, std::size_t bytes) {
  const UseDevice use(ordinal);
  return std::make_unique<KeyMemory>(allocate(ordinal, bytes));
}

std::unique_ptr<DeviceMemory> AscendBackend::open_by_key(int ordinal, const ExportedMemory& memory,
                                                         Access access) {
  ExportedKeys exported = decode(memory);
  const int owner = prepare_to_open(ordinal, exported, access);
  if (ParkedMemory::get().is_ours(exported.key)) {
    Backend& npu = ascend_backend();
    npu.admit(memory, npu.borrower_number());
  }
  return std::make_unique<OpenedByKey>(ordinal, owner, std::move(exported), access);
}

}  // namespace onecopy::ascend
