// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include "device/vmm_segment.h"
#include "devices.h"
#include "exported.h"
#include "onecopy/core/error.h"

namespace onecopy {
namespace ascend {
namespace {

constexpr std::size_t kAscendPage = std::size_t{2} << 20;
constexpr std::size_t kAscendAlignment = 64;  // of aclrtMalloc

}  // namespace

BackendTraits AscendBackend::traits() const noexcept {
  const Driver* driver = Driver::try_get();
  const bool by_key = driver && !driver->has_virtual_memory();
  return {by_key ? SegmentKind::ascend_key : SegmentKind::ascend_vmm, kAscendAlignment, true, false,
          "ASCEND_RT_VISIBLE_DEVICES"};
}

bool AscendBackend::is_in_process() const noexcept { return Driver::is_in_process(); }

/// Returns the devices. Without a runtime or a device the list is empty, which is not an error.
std::vector<DeviceInfo> AscendBackend::devices() const {
  std::vector<DeviceInfo> infos;
  if (!Driver::try_get()) return infos;
  Devices& devices = Devices::get();
  for (std::size_t i = 0; i < devices.size(); ++i) infos.push_back(devices.at(static_cast<int>(i)).info);
  return infos;
}

/// Returns the size of huge pages, although the runtime takes smaller units: keys exist for whole pages only.
std::size_t AscendBackend::granularity() const noexcept { return kAscendPage; }

std::unique_ptr<DeviceMemory> AscendBackend::create(int ordinal, std::size_t bytes, SegmentKind kind,
                                                    const std::string&, std::uint32_t) {
  if (kind != SegmentKind::ascend_vmm && kind != SegmentKind::ascend_key) refuse(kind);
  Devices::get().at(ordinal);
  check_size(bytes);
  if (kind == SegmentKind::ascend_key) return create_by_key(ordinal, bytes);
  return std::make_unique<VmmSegment>(*this, kind, ordinal, bytes);
}

/// Opens through the device that holds the memory, because it is unknown how a real device behaves if only another one
/// imports.
std::unique_ptr<DeviceMemory> AscendBackend::open(int home, ExportedMemory memory, Access access,
                                                  int user) {
  std::unique_ptr<DeviceMemory> opened;
  if (memory.kind == SegmentKind::ascend_key) opened = open_by_key(home, memory, access);
  else if (memory.kind != SegmentKind::ascend_vmm) refuse(memory.kind);
  else {
    const int owner = prepare_to_open(home, decode(memory), access);
    opened = std::make_unique<VmmSegment>(*this, owner, home, std::move(memory), access);
  }
  if (user != home) opened->allow(user);
  return opened;
}

ExportedMemory AscendBackend::duplicate(const ExportedMemory& memory, Access access) const {
  ExportedMemory copy{memory.kind, memory.size, {}, memory.blob, memory.device};
  if (access == Access::read_only) {
    ExportedKeys exported = decode(memory);
    exported.access = access;
    copy.blob = encode(exported);
  }
  return copy;
}

}  // namespace ascend

Backend& ascend_backend() {
  static auto* const instance = new ascend::AscendBackend;
  return *instance;
}

}  // namespace onecopy
