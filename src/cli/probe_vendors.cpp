// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include <fmt/ranges.h>

#include "device/backend.h"
#include "onecopy/core/error.h"
#include "os/shared_library.h"
#include "probe.h"
#include "probe_devices.h"
#include "text.h"
#include "transport/fabric.h"

namespace onecopy::cli {
namespace {

constexpr const char* kOnlyCpu = "Only tensors in the CPU's memory can be shared; that works without it.";

template <class Function>
Function* symbol(const SharedLibrary& library, const char* name) {
  return reinterpret_cast<Function*>(library.symbol(name));
}

/// The few calls of the CUDA driver that this page makes. The types are the same as in cuda.h.
struct CudaDriver {
  explicit CudaDriver(const SharedLibrary& library)
      : init(symbol<int(unsigned)>(library, "cuInit")),
        version(symbol<int(int*)>(library, "cuDriverGetVersion")),
        device_count(symbol<int(int*)>(library, "cuDeviceGetCount")),
        device(symbol<int(int*, int)>(library, "cuDeviceGet")),
        device_name(symbol<int(char*, int, int)>(library, "cuDeviceGetName")),
        attribute(symbol<int(int*, int, int)>(library, "cuDeviceGetAttribute")),
        error_string(symbol<int(int, const char**)>(library, "cuGetErrorString")) {}

  bool complete() const {
    return init && version && device_count && device && device_name && attribute && error_string;
  }
  std::string message(int error) const {
    const char* text = nullptr;
    error_string(error, &text);
    return fmt::format("error {}: {}", error, text ? text : "unknown");
  }

  int (*init)(unsigned);
  int (*version)(int*);
  int (*device_count)(int*);
  int (*device)(int*, int);
  int (*device_name)(char*, int, int);
  int (*attribute)(int*, int, int);
  int (*error_string)(int, const char**);
};

constexpr int kAttributeVirtualMemory = 102;
constexpr int kAttributePosixDescriptor = 103;

bool can_export_descriptors(const CudaDriver& cuda, int device) {
  int has_virtual = 0;
  int has_posix = 0;
  cuda.attribute(&has_virtual, kAttributeVirtualMemory, device);
  cuda.attribute(&has_posix, kAttributePosixDescriptor, device);
  return has_virtual != 0 && has_posix != 0;
}

Finding describe_cuda_devices(const CudaDriver& cuda, const std::string& driver) {
  int count = 0;
  if (const int error = cuda.device_count(&count); error != 0 || count == 0)
    return missing(fmt::format("{}, but no device ({})", driver, cuda.message(error)), kOnlyCpu);
  std::array<char, 256> name{};
  int device = 0;
  cuda.device(&device, 0);
  cuda.device_name(name.data(), static_cast<int>(name.size()) - 1, device);
  const std::string detail = fmt::format("{}, {}, first: {}", driver,
                                         plural(static_cast<std::uint64_t>(count), "device"), name.data());
  if (!can_export_descriptors(cuda, device))
    return slower(detail, "Its memory cannot be exported as a descriptor: only legacy handles work.");
  return works(detail + ", memory can be exported as descriptors");
}

Finding probe_cuda() {
  std::string why;
  const char* chosen = std::getenv("ONECOPY_CUDA_DRIVER");  // as the library does
  const std::vector<std::string> usual{"libcuda.so.1"};
  const auto library =
      SharedLibrary::open(chosen && *chosen ? std::vector<std::string>{chosen} : usual, &why);
  if (!library) return missing("tried " + why, kOnlyCpu);
  const CudaDriver cuda(*library);
  if (!cuda.complete())
    return missing(fmt::format("{} lacks calls of the driver interface: a stub?", library->name()),
                   kOnlyCpu);
  if (const int error = cuda.init(0); error != 0)
    return missing(fmt::format("{} loaded, cuInit failed with {}", library->name(), cuda.message(error)),
                   fmt::format("{} Check with nvidia-smi that the driver runs.", kOnlyCpu));
  int version = 0;
  cuda.version(&version);
  return describe_cuda_devices(
      cuda, fmt::format("{} (CUDA {}.{})", library->name(), version / 1000, version % 1000 / 10));
}

/// Finds out how the memory of each device is exported, as a sharing process would. The error names the part that is
/// missing, too old or refused.
Finding probe_ascend() {
  if (!is_built(DeviceType::npu)) return missing("this onecopy was built without Ascend", kOnlyCpu);
  Backend& npu = backend(DeviceType::npu);
  const auto devices = npu.devices();
  try {
    std::string by_key;
    npu.kind_on(0);  // its error gives the reason
    for (const DeviceInfo& info : devices)
      if (npu.kind_on(info.device.index) == SegmentKind::ascend_key) by_key += " " + info.device.str();
    const std::string detail =
        fmt::format("{}, first: {}", plural(devices.size(), "device"), devices.at(0).name);
    if (by_key.empty()) return works(detail + ", memory leaves by shareable handle");
    return slower(fmt::format("{}, memory leaves by key only of{}", detail, by_key),
                  "It is gone with the process that allocated it; a newer CANN and driver can do better, "
                  "unless the device is a virtual one.");
  } catch (const Error& e) {
    return missing(e.what(),
                   devices.empty() ? kOnlyCpu : fmt::format("{} Check with npu-smi info.", kOnlyCpu));
  }
}

Finding probe_openssl() {
  constexpr const char* kAdvice =
      "Calls to other hosts need it: install libssl3 (Debian, Ubuntu) or openssl-libs (Fedora). All else "
      "works without it.";
  std::string why;
  const auto library = SharedLibrary::open({"libssl.so.3"}, &why);
  if (!library) return missing("tried " + why, kAdvice);
  auto* const version = symbol<const char*(int)>(*library, "OpenSSL_version");
  if (!version) return missing(library->name() + " has no OpenSSL_version", kAdvice);
  return works(fmt::format("{}: {}, for calls to other hosts", library->name(), version(0)));
}

Finding probe_ucx() {
  try {
    const transport::FoundFabric found = transport::find_fabric("ucx");
    return works(fmt::format(
        "{}: UCX {} with {}, for ONECOPY_RPC_FABRIC=ucx and ONECOPY_STORE_FABRIC=ucx. What goes over it "
        "between hosts is not encrypted",
        found.path, found.version, fmt::join(found.devices, ", ")));
  } catch (const Error& error) {
    return missing(error.what(), "Calls and versions go between hosts over TLS without it.");
  }
}

}  // namespace

std::vector<Probe> vendor_probes() {
  return {{"CUDA", probe_cuda}, {"Ascend", probe_ascend}, {"OpenSSL", probe_openssl}, {"UCX", probe_ucx}};
}

}  // namespace onecopy::cli
