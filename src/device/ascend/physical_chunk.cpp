// SPDX-License-Identifier: Apache-2.0
#include "physical_chunk.h"

#include <fmt/format.h>

#include <map>

#include "backend.h"
#include "core/throw_error.h"
#include "exported.h"
#include "os/mutex.h"

namespace onecopy::ascend {

namespace {

constexpr int kMade = -1;

/// A record of a memory by its number, with the device that imported it, or kMade. A process must not import one memory
/// twice, nor import its own exports.
struct CachedChunk {
  Mutex mutex;
  std::map<std::pair<std::uint64_t, int>, std::weak_ptr<Physical>> by_number GUARDED_BY(mutex);

  void forget(std::uint64_t number, int imported_at) REQUIRES(mutex) {
    const auto at = by_number.find({number, imported_at});
    if (at != by_number.end() && at->second.expired()) by_number.erase(at);
  }
};

CachedChunk& known() {
  static CachedChunk& all = *new CachedChunk;  // used until the very end
  return all;
}

}  // namespace

/// A physical memory, which all its mappings in this process share.
class Physical {
 public:
  Physical(int ordinal, int imported_at, aclrtDrvMemHandle handle, std::uint64_t number) noexcept
      : ordinal_(ordinal), imported_at_(imported_at), handle_(handle), number_(number) {}
  Physical& operator=(Physical&&) = delete;
  ~Physical() {
    {
      const LockGuard lock(known().mutex);
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
  /// Returns the number, and exports the memory at the first call: a second export would fail.
  static std::uint64_t number_of(const std::shared_ptr<Physical>& memory) {
    const LockGuard lock(known().mutex);
    if (memory->number_ != 0) return memory->number_;
    std::uint64_t number = 0;
    Driver::get().aclrtMemExportToShareableHandle.must(memory->handle_, ACL_MEM_HANDLE_TYPE_NONE, 0,
                                                       &number);
    known().by_number[{number, kMade}] = memory;
    return memory->number_ = number;
  }

 private:
  const int ordinal_;
  const int imported_at_;  ///< the device that imported the memory, or kMade
  const aclrtDrvMemHandle handle_;
  std::uint64_t number_;
};

aclrtDrvMemHandle AscendChunk::handle() const noexcept { return memory_->handle(); }
std::uint64_t AscendChunk::number() const { return Physical::number_of(memory_); }

namespace {

std::shared_ptr<Physical> find_known(std::uint64_t number, int imported_at) REQUIRES(known().mutex) {
  const auto at = known().by_number.find({number, imported_at});
  return at == known().by_number.end() ? nullptr : at->second.lock();
}

[[noreturn]] void throw_not_imported(const Driver& driver, aclError result) {
  if (result != ACL_ERROR_RT_DRV_INTERNAL_ERROR && result != ACL_ERROR_RT_PARAM_INVALID &&
      result != ACL_ERROR_RT_INVALID_HANDLE)
    throw_result(result, "aclrtMemImportFromShareableHandle");
  throw Error(ErrorCode::owner_died,
              fmt::format("this Ascend memory is gone, or it was not lent to this "
                          "process: the driver frees it with the last process that has it open, so keep "
                          "the owner until the tensor is open ({})",
                          driver.describe(result)),
              result, ErrorDomain::ascend);
}

std::shared_ptr<Physical> import_physical(const Driver& driver, int ordinal, std::uint64_t number) {
  const LockGuard lock(known().mutex);
  for (const int where : {kMade, ordinal})
    if (auto memory = find_known(number, where)) return memory;
  aclrtDrvMemHandle handle = nullptr;
  const aclError result = driver.aclrtMemImportFromShareableHandle(number, ordinal, &handle);
  if (result != ACL_SUCCESS) throw_not_imported(driver, result);
  auto memory = std::make_shared<Physical>(ordinal, ordinal, handle, number);
  known().by_number[{number, ordinal}] = memory;
  return memory;
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

std::unique_ptr<PhysicalChunk> AscendBackend::create_chunk(int ordinal, std::size_t bytes) {
  const UseDevice use(ordinal);
  const aclrtPhysicalMemProp prop = memory_on(ordinal);
  aclrtDrvMemHandle handle = nullptr;
  const aclError result = Driver::get().aclrtMallocPhysical(&handle, bytes, &prop, 0);
  check_room(result, "aclrtMallocPhysical", "reserve", ordinal, bytes);
  auto memory = std::make_shared<Physical>(ordinal, kMade, handle, 0);
  return std::make_unique<AscendChunk>(ordinal, bytes, std::move(memory));
}

std::vector<std::unique_ptr<PhysicalChunk>> AscendBackend::import_chunks(int home, ExportedMemory memory,
                                                                         int user) {
  const ExportedKeys exported = decode(memory);
  const UseDevice use(user);
  std::vector<std::unique_ptr<PhysicalChunk>> chunks;
  chunks.push_back(std::make_unique<AscendChunk>(home, exported.bytes,
                                                 import_physical(Driver::get(), user, exported.shareable)));
  return chunks;
}

ExportedMemory AscendBackend::export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                                            Access access) const {
  if (chunks.size() != 1)
    throw_error(ErrorCode::unsupported, "an Ascend segment has one chunk, not {}; export them one by one",
                chunks.size());
  const auto& memory = static_cast<const AscendChunk&>(*chunks.front());
  const UseDevice use(memory.ordinal());
  const Uuid& device = Devices::get().at(memory.ordinal()).info.uuid;
  return describe({access, memory.size(), device, memory.number(), {}});
}

}  // namespace onecopy::ascend
