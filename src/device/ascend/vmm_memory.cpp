// SPDX-License-Identifier: Apache-2.0
#include "vmm_memory.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "exported.h"
#include "known_ranges.h"
#include "onecopy/core/error.h"

namespace onecopy::ascend {

namespace {

class Physical;

constexpr int kMade = -1;

/// Memory that has a number, and where it was imported, or that it was made here: this process may not import
/// the same memory again, nor what it exported itself.
struct Known {
  std::mutex mutex;
  std::map<std::pair<std::uint64_t, int>, std::weak_ptr<Physical>> by_number;

  void forget(std::uint64_t number, int imported_at) {
    const auto at = by_number.find({number, imported_at});
    if (at != by_number.end() && at->second.expired()) by_number.erase(at);
  }
};

Known& known() {
  static Known& all = *new Known;  // used until the very end
  return all;
}

/// Physical memory, which all mappings of it in this process share.
class Physical {
 public:
  Physical(int ordinal, int imported_at, aclrtDrvMemHandle handle, std::uint64_t number) noexcept
      : ordinal_(ordinal), imported_at_(imported_at), handle_(handle), number_(number) {}
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical() {
    {
      const std::lock_guard lock(known().mutex);
      known().forget(number_, imported_at_);
    }
    const Driver* driver = Driver::try_get();
    if (!driver) return;
    try {
      const UseDevice use(ordinal_);
      driver->aclrtFreePhysical(handle_);
    } catch (const Error&) {
      // The device is gone, and the memory with it.
    }
  }

  aclrtDrvMemHandle handle() const noexcept { return handle_; }
  /// Exported at the first call: a second time is an error.
  static std::uint64_t number_of(const std::shared_ptr<Physical>& memory) {
    const std::lock_guard lock(known().mutex);
    if (memory->number_ != 0) return memory->number_;
    std::uint64_t number = 0;
    Driver::get().aclrtMemExportToShareableHandle.must(memory->handle_, ACL_MEM_HANDLE_TYPE_NONE, 0,
                                                       &number);
    known().by_number[{number, kMade}] = memory;
    return memory->number_ = number;
  }

 private:
  const int ordinal_;
  const int imported_at_;  ///< or kMade
  const aclrtDrvMemHandle handle_;
  std::uint64_t number_;
};

/// REQUIRES: known().mutex.
std::shared_ptr<Physical> find_known(std::uint64_t number, int imported_at) {
  const auto at = known().by_number.find({number, imported_at});
  return at == known().by_number.end() ? nullptr : at->second.lock();
}

/// Addresses, and what is mapped to them.
class Addresses {
 public:
  Addresses(const Driver& driver, std::size_t bytes) : bytes_(bytes) {
    const aclError result = driver.aclrtReserveMemAddress(&base_, bytes, 0, nullptr, 0);
    if (result != ACL_SUCCESS)
      throw Error(ErrorCode::out_of_mappings,
                  fmt::format("cannot reserve {} bytes of addresses for an Ascend segment: {}", bytes,
                              driver.describe(result)),
                  result, ErrorDomain::ascend);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() {
    const Driver* driver = Driver::try_get();  // none at the end of the process, or in a forked child
    if (!driver) return;
    unmap(*driver);
    driver->aclrtReleaseMemAddress(base_);
  }

  void* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }
  void map(const Driver& driver, const Physical& memory) {
    driver.aclrtMapMem.must(base_, bytes_, 0, memory.handle(), 0);
    mapped_ = true;
  }
  void allow(const Driver& driver, int ordinal, Access access) const {
    const int flags =
        access == Access::read_only ? ACL_RT_MEM_ACCESS_FLAGS_READ : ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
    aclrtMemAccessDesc wanted{
        flags, {static_cast<std::uint32_t>(ordinal), ACL_MEM_LOCATION_TYPE_DEVICE}, {}};
    driver.aclrtMemSetAccess.must(base_, bytes_, &wanted, 1);
  }
  void unmap(const Driver& driver) noexcept {
    if (mapped_) driver.aclrtUnmapMem(base_);
    mapped_ = false;
  }

 private:
  void* base_ = nullptr;
  std::size_t bytes_;
  bool mapped_ = false;
};

/// A segment of kind ascend_vmm, of the owner or of a borrower.
class VirtualMemory final : public DeviceMemory {
 public:
  VirtualMemory(int ordinal, int owner, std::size_t bytes, Access access)
      : ordinal_(ordinal),
        owner_(owner),
        access_(access),
        addresses_(Driver::get(), bytes),
        known_(addresses_.base(), bytes, access, owner) {}
  ~VirtualMemory() override;

  std::byte* data() const noexcept override { return static_cast<std::byte*>(addresses_.base()); }
  std::size_t size() const noexcept override { return addresses_.bytes(); }
  SegmentKind kind() const noexcept override { return SegmentKind::ascend_vmm; }
  void commit(std::size_t offset, std::size_t bytes) override;
  void decommit(std::size_t offset, std::size_t bytes) noexcept override;
  ExportedMemory export_memory(Access access) const override;
  std::byte* allow(int ordinal) override;

  void import(std::uint64_t number);

 private:
  void create_memory();

  const int ordinal_;  ///< who sees it here
  const int owner_;    ///< whose memory it is
  const Access access_;
  mutable std::mutex mutex_;
  std::set<int> allowed_;             ///< other devices
  std::shared_ptr<Physical> memory_;  // shared with other mappings of it; before addresses_: unmapped first
  Addresses addresses_;
  const KnownRange known_;
};

[[noreturn]] void throw_no_memory(const Driver& driver, int ordinal, std::size_t bytes, aclError result) {
  std::size_t free = 0;
  std::size_t total = 0;
  driver.aclrtGetMemInfo(ACL_HBM_MEM, &free, &total);
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot reserve {} bytes ({} MiB) on npu:{}: {} of its {} bytes are free ({})",
                          bytes, bytes >> 20, ordinal, free, total, driver.describe(result)),
              result, ErrorDomain::ascend);
}

bool is_out_of_memory(aclError result) noexcept {
  return result == ACL_ERROR_RT_MEMORY_ALLOCATION || result == ACL_ERROR_RT_DEVICE_OOM;
}

VirtualMemory::~VirtualMemory() {
  if (!Driver::try_get()) return;
  try {
    const UseDevice use(ordinal_);
    addresses_.unmap(Driver::get());
  } catch (const Error&) {
    // The device is gone, and the mapping with it.
  }
}

void VirtualMemory::create_memory() {
  const Driver& driver = Driver::get();
  const UseDevice use(ordinal_);
  const aclrtPhysicalMemProp prop = memory_on(ordinal_);
  aclrtDrvMemHandle handle = nullptr;
  const aclError result = driver.aclrtMallocPhysical(&handle, size(), &prop, 0);
  if (is_out_of_memory(result)) throw_no_memory(driver, ordinal_, size(), result);
  check(result, "aclrtMallocPhysical");
  auto memory = std::make_shared<Physical>(ordinal_, kMade, handle, 0);
  addresses_.map(driver, *memory);
  memory_ = std::move(memory);
}

void VirtualMemory::commit(std::size_t offset, std::size_t bytes) {
  if (access_ == Access::read_only)
    throw Error(ErrorCode::read_only, "cannot reserve memory in a segment that was opened read-only");
  if (offset > size() || bytes > size() - offset)
    throw Error(ErrorCode::invalid_argument, fmt::format("bytes {} to {} are outside of a segment of {}",
                                                         offset, offset + bytes, size()));
  const std::lock_guard lock(mutex_);
  if (!memory_) create_memory();
}

/// All or nothing: the memory is one allocation.
void VirtualMemory::decommit(std::size_t offset, std::size_t bytes) noexcept {
  if (offset != 0 || bytes != size() || !Driver::try_get()) return;
  const std::lock_guard lock(mutex_);
  try {
    const UseDevice use(ordinal_);
    addresses_.unmap(Driver::get());
  } catch (const Error&) {
    return;  // the device is gone
  }
  allowed_.clear();
  memory_.reset();
}

ExportedMemory VirtualMemory::export_memory(Access access) const {
  if (access == Access::read_write && access_ == Access::read_only)
    throw Error(ErrorCode::read_only, "a segment that was opened read-only cannot be lent for writing");
  const std::lock_guard lock(mutex_);
  if (!memory_) throw Error(ErrorCode::invalid_argument, "the segment has no memory yet: commit it first");
  const UseDevice use(owner_);
  ExportedMemory memory;
  memory.kind = kind();
  memory.size = size();
  memory.device = Devices::get().at(owner_).info.uuid;
  memory.blob = encode({access, size(), memory.device, Physical::number_of(memory_), {}});
  return memory;
}

std::byte* VirtualMemory::allow(int ordinal) {
  const std::lock_guard lock(mutex_);
  if (ordinal == ordinal_ || allowed_.contains(ordinal)) return data();
  Devices::get().require_reach(ordinal, owner_);
  const UseDevice use(ordinal_);
  addresses_.allow(Driver::get(), ordinal, access_);
  allowed_.insert(ordinal);
  return data();
}

[[noreturn]] void throw_not_imported(const Driver& driver, aclError result) {
  if (result != ACL_ERROR_RT_DRV_INTERNAL_ERROR && result != ACL_ERROR_RT_PARAM_INVALID &&
      result != ACL_ERROR_RT_INVALID_HANDLE)
    throw_result(result, "aclrtMemImportFromShareableHandle");
  throw Error(ErrorCode::owner_died,
              fmt::format("no process has this Ascend memory open any more, or it was not lent to this "
                          "process: its driver gives it up with the last process that has it open, so keep "
                          "the owner until the tensor was opened ({})",
                          driver.describe(result)),
              result, ErrorDomain::ascend);
}

std::shared_ptr<Physical> import_physical(const Driver& driver, int ordinal, std::uint64_t number) {
  const std::lock_guard lock(known().mutex);
  for (const int where : {kMade, ordinal})
    if (auto memory = find_known(number, where)) return memory;
  aclrtDrvMemHandle handle = nullptr;
  const aclError result = driver.aclrtMemImportFromShareableHandle(number, ordinal, &handle);
  if (result != ACL_SUCCESS) throw_not_imported(driver, result);
  auto memory = std::make_shared<Physical>(ordinal, ordinal, handle, number);
  known().by_number[{number, ordinal}] = memory;
  return memory;
}

void VirtualMemory::import(std::uint64_t number) {
  const Driver& driver = Driver::get();
  auto memory = import_physical(driver, ordinal_, number);
  addresses_.map(driver, *memory);
  memory_ = std::move(memory);
  if (ordinal_ != owner_ || access_ == Access::read_only) addresses_.allow(driver, ordinal_, access_);
}

}  // namespace

aclrtPhysicalMemProp memory_on(int ordinal) noexcept {
  aclrtPhysicalMemProp prop{};
  prop.handleType = ACL_MEM_HANDLE_TYPE_NONE;
  prop.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
  prop.memAttr = ACL_HBM_MEM_HUGE;
  prop.location = {static_cast<std::uint32_t>(ordinal), ACL_MEM_LOCATION_TYPE_DEVICE};
  return prop;
}

std::unique_ptr<DeviceMemory> create_vmm_memory(int ordinal, std::size_t bytes) {
  const UseDevice use(ordinal);
  return std::make_unique<VirtualMemory>(ordinal, ordinal, bytes, Access::read_write);
}

std::unique_ptr<DeviceMemory> open_vmm_memory(int ordinal, const ExportedMemory& memory, Access access) {
  const Exported exported = decode(memory);
  const int owner = prepare_to_open(ordinal, exported, access);
  const UseDevice use(ordinal);
  auto opened = std::make_unique<VirtualMemory>(ordinal, owner, memory.size, access);
  opened->import(exported.shareable);
  return opened;
}

}  // namespace onecopy::ascend
