// SPDX-License-Identifier: Apache-2.0
#include "devices.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/throw_error.h"

namespace onecopy::cuda {

namespace {

bool has(const Driver& driver, CUdevice device, int attribute) {
  int value = 0;
  return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

std::unique_ptr<DeviceEntry> describe(const Driver& driver, int ordinal) {
  auto entry = std::make_unique<DeviceEntry>();
  driver.cuDeviceGet.must(&entry->device, ordinal);
  entry->info.device = {DeviceType::cuda, static_cast<std::int16_t>(ordinal)};
  CUuuid uuid{};
  driver.cuDeviceGetUuid.must(&uuid, entry->device);
  std::memcpy(entry->info.uuid.bytes.data(), uuid.bytes, sizeof uuid.bytes);
  std::array<char, 256> name{};
  driver.cuDeviceGetName.must(name.data(), static_cast<int>(name.size()) - 1, entry->device);
  entry->info.name = name.data();
  std::size_t total = 0;
  driver.cuDeviceTotalMem.must(&total, entry->device);
  entry->info.total_bytes = total;
  entry->exports_descriptors =
      has(driver, entry->device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
      has(driver, entry->device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  entry->has_stream_words = driver.cuStreamWaitValue64 && driver.cuStreamWriteValue64 &&
                            has(driver, entry->device, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
  entry->has_host_addresses =
      has(driver, entry->device, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
  return entry;
}

}  // namespace

void require_exports(const DeviceEntry& device) {
  if (device.exports_descriptors) return;
  throw_error(ErrorCode::unsupported,
              "{} cannot give memory to other processes as descriptors (a Tegra, a virtual "
              "GPU or an old driver); share memory made by cudaMalloc instead",
              device.info.device.str());
}

CUmemAllocationProp exportable_on(const DeviceEntry& device) noexcept {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.device};
  return prop;
}

Devices& Devices::get() {
  Driver::get();
  static Devices& devices = *new Devices;  // never destroyed, like the driver
  return devices;
}

Devices::Devices() {
  const Driver& driver = Driver::get();
  int count = 0;
  driver.cuDeviceGetCount.must(&count);
  for (int i = 0; i < count; ++i) {
    entries_.push_back(describe(driver, i));
    if (!entries_.back()->exports_descriptors) continue;
    std::size_t unit = 0;
    const CUmemAllocationProp prop = exportable_on(*entries_.back());
    driver.cuMemGetAllocationGranularity.must(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    granularity_ = std::max(granularity_, unit);
  }
}

DeviceEntry& Devices::at(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= entries_.size())
    throw_error(ErrorCode::invalid_argument,
                "there is no cuda:{}: this process sees {} CUDA devices (CUDA_VISIBLE_DEVICES "
                "may hide others)",
                ordinal, entries_.size());
  return *entries_[static_cast<std::size_t>(ordinal)];
}

CUcontext Devices::context(int ordinal) {
  DeviceEntry& entry = at(ordinal);
  std::call_once(entry.retained,
                 [&] { Driver::get().cuDevicePrimaryCtxRetain.must(&entry.context, entry.device); });
  return entry.context;
}

bool is_in_use(int ordinal) {
  unsigned flags = 0;
  int active = 0;
  const CUresult result =
      Driver::get().cuDevicePrimaryCtxGetState(Devices::get().at(ordinal).device, &flags, &active);
  return result == CUDA_SUCCESS && active != 0;
}

UseContext::UseContext(int ordinal) : driver_(Driver::get()) {
  const CUcontext wanted = Devices::get().context(ordinal);
  CUcontext current = nullptr;
  if (driver_.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == wanted) return;
  driver_.cuCtxPushCurrent.must(wanted);
  pushed_ = true;
}

UseContext::~UseContext() {
  CUcontext ignored = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent(&ignored);
}

RelaxedCapture::RelaxedCapture(const Driver& driver) : driver_(driver) {
  if (driver_.cuThreadExchangeStreamCaptureMode) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

RelaxedCapture::~RelaxedCapture() {
  if (driver_.cuThreadExchangeStreamCaptureMode) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

}  // namespace onecopy::cuda
