// SPDX-License-Identifier: Apache-2.0
#include "key_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <utility>

#include "exported.h"
#include "onecopy/core/error.h"
#include "opened_keys.h"
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

[[noreturn]] void throw_no_room(const Driver& driver, int ordinal, std::size_t bytes, aclError result) {
  std::size_t free = 0;
  std::size_t total = 0;
  driver.aclrtGetMemInfo(ACL_HBM_MEM, &free, &total);
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot allocate {} bytes ({} MiB) on npu:{}: {} of its {} bytes are free ({})",
                          bytes, bytes >> 20, ordinal, free, total, driver.describe(result)),
              result, ErrorDomain::ascend);
}

KeyMapping allocate(int ordinal, std::size_t bytes) {
  KeyMapping memory{ordinal, nullptr, bytes, {}};
  if (ParkedMemory::get().take(ordinal, bytes, memory)) return memory;
  const Driver& driver = Driver::get();
  const aclError result = driver.aclrtMalloc(&memory.base, bytes, ACL_MEM_MALLOC_HUGE_ONLY);
  if (result == ACL_ERROR_RT_MEMORY_ALLOCATION || result == ACL_ERROR_RT_DEVICE_OOM)
    throw_no_room(driver, ordinal, bytes, result);
  check(result, "aclrtMalloc");
  return memory;
}

/// A segment of kind ascend_key, in its owner.
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
  ExportedMemory memory;
  memory.device = Devices::get().at(memory_.ordinal).info.uuid;
  memory.blob = encode({access, size(), memory.device, 0, memory_.key});
  return memory;
}

/// An allocation of another process, opened by its key.
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
  ExportedMemory memory;
  memory.device = exported_.device;
  memory.blob = encode(again);
  return memory;
}

}  // namespace

std::unique_ptr<DeviceMemory> create_key_memory(int ordinal, std::size_t bytes) {
  const UseDevice use(ordinal);
  return std::make_unique<KeyMemory>(allocate(ordinal, bytes));
}

std::unique_ptr<DeviceMemory> open_key_memory(int ordinal, const ExportedMemory& memory, Access access) {
  ExportedKeys exported = decode(memory);
  const int owner = prepare_to_open(ordinal, exported, access);
  if (ParkedMemory::get().is_ours(exported.key)) {
    Backend& npu = ascend_backend();
    npu.admit(memory, npu.borrower_number());
  }
  return std::make_unique<OpenedByKey>(ordinal, owner, std::move(exported), access);
}

}  // namespace onecopy::ascend
