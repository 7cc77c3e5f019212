// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include <fmt/format.h>

#include <cstring>

#include "core/throw_error.h"

namespace onecopy::ascend {

namespace {

/// Returns the UUID. A runtime without UUIDs still knows the physical number, which is the same in all processes.
Uuid identify(const Driver& driver, int ordinal) {
  aclrtUuid found{};
  Uuid uuid{};
  if (driver.aclrtDeviceGetUuid && driver.aclrtDeviceGetUuid(ordinal, &found) == ACL_SUCCESS) {
    std::memcpy(uuid.bytes.data(), found.bytes, sizeof found.bytes);
    if (uuid != Uuid{}) return uuid;
  }
  std::int32_t physical = 0;
  driver.aclrtGetPhyDevIdByLogicDevId.must(ordinal, &physical);
  std::memcpy(uuid.bytes.data(), "Ascend chip ", 12);
  std::memcpy(uuid.bytes.data() + 12, &physical, sizeof physical);
  return uuid;
}

aclrtContext current(const Driver& driver) {
  aclrtContext context = nullptr;
  return driver.aclrtGetCurrentContext(&context) == ACL_SUCCESS ? context : nullptr;
}

/// Returns whether access is enabled already, perhaps by another library such as a framework.
bool is_enabled(const Driver& driver, int from, int to) {
  std::int32_t status = 0;
  return driver.aclrtDevicePeerAccessStatus &&
         driver.aclrtDevicePeerAccessStatus(from, to, &status) == ACL_SUCCESS && status == 1;
}

}  // namespace

Devices& Devices::get() {
  Driver::get();
  static Devices& devices = *new Devices;  // never destroyed, like the driver
  return devices;
}

Devices::Devices() {
  const Driver& driver = Driver::get();
  std::uint32_t count = 0;
  const aclError result = driver.aclrtGetDeviceCount(&count);
  if (result != ACL_ERROR_RT_NO_DEVICE) check(result, "aclrtGetDeviceCount");
  const std::string chip = driver.chip();
  for (std::uint32_t i = 0; i < count; ++i) {
    auto entry = std::make_unique<DeviceEntry>();
    entry->info.device = {DeviceType::npu, static_cast<std::int16_t>(i)};
    entry->info.uuid = identify(driver, static_cast<int>(i));
    entry->info.name = chip.empty() ? "Ascend" : chip;
    entries_.push_back(std::move(entry));
  }
}

DeviceEntry& Devices::at(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= entries_.size())
    throw_error(ErrorCode::invalid_argument,
                "there is no npu:{}: this process sees {} Ascend devices "
                "(ASCEND_RT_VISIBLE_DEVICES may hide others)",
                ordinal, entries_.size());
  return *entries_[static_cast<std::size_t>(ordinal)];
}

aclrtContext Devices::context(int ordinal) {
  DeviceEntry& entry = at(ordinal);
  std::call_once(entry.opened, [&] {
    const Driver& driver = Driver::get();
    const aclrtContext before = current(driver);
    driver.aclrtSetDevice.must(ordinal);
    driver.aclrtGetCurrentContext.must(&entry.context);
    std::size_t free = 0;
    std::size_t total = 0;
    if (driver.aclrtGetMemInfo(ACL_HBM_MEM, &free, &total) == ACL_SUCCESS) entry.info.total_bytes = total;
    if (before) driver.aclrtSetCurrentContext(before);
    entry.is_open = true;
  });
  return entry.context;
}

int Devices::find(const Uuid& uuid) const noexcept {
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i]->info.uuid == uuid) return static_cast<int>(i);
  return -1;
}

bool Devices::reach(int from, int to) {
  if (from == to) return true;
  at(to);
  const UseDevice use(from);
  const LockGuard lock(mutex_);
  DeviceEntry& entry = at(from);
  if (entry.peers.contains(to)) return true;
  const Driver& driver = Driver::get();
  std::int32_t can = 0;
  driver.aclrtDeviceCanAccessPeer.must(&can, from, to);
  if (can == 0) return false;
  const aclError result = driver.aclrtDeviceEnablePeerAccess(to, 0);
  if (result != ACL_SUCCESS && !is_enabled(driver, from, to))
    throw_result(result, "aclrtDeviceEnablePeerAccess");
  entry.peers.insert(to);
  return true;
}

void Devices::require_reach(int from, int to) {
  if (!reach(from, to))
    throw_error(ErrorCode::unsupported,
                "npu:{} has no path to the memory of npu:{}: open the tensor on npu:{} and copy it", from,
                to, to);
}

void check_room(aclError result, const char* call, const char* verb, int ordinal, std::size_t bytes) {
  if (result != ACL_ERROR_RT_MEMORY_ALLOCATION && result != ACL_ERROR_RT_DEVICE_OOM)
    return check(result, call);
  const Driver& driver = Driver::get();
  std::size_t free = 0;
  std::size_t total = 0;
  driver.aclrtGetMemInfo(ACL_HBM_MEM, &free, &total);
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot {} {} bytes ({} MiB) on npu:{}: {} of its {} bytes are free ({})", verb,
                          bytes, bytes >> 20, ordinal, free, total, driver.describe(result)),
              result, ErrorDomain::ascend);
}

UseDevice::UseDevice(int ordinal) : driver_(Driver::get()), before_(current(driver_)) {
  const aclrtContext wanted = Devices::get().context(ordinal);
  if (wanted == before_) before_ = nullptr;
  else driver_.aclrtSetCurrentContext.must(wanted);
}

UseDevice::~UseDevice() {
  if (before_) driver_.aclrtSetCurrentContext(before_);
}

}  // namespace onecopy::ascend
