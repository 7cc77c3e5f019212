// SPDX-License-Identifier: Apache-2.0
// These probes use a vendor's devices through the interface that sharing uses.
#include <algorithm>
#include <atomic>
#include <vector>

#include <fmt/ranges.h>

#include "onecopy/core/error.h"
#include "os/mapping.h"
#include "probe_devices.h"
#include "text.h"

namespace onecopy::cli {
namespace {

Backend& cuda() { return backend(DeviceType::cuda); }

std::string joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, "; "));
}

Finding list_devices(DeviceType type) {
  std::vector<std::string> lines;
  for (const DeviceInfo& info : backend(type).devices())
    lines.push_back(fmt::format("{} {}, {}, {}", info.device.str(), info.name,
                                format_bytes(info.total_bytes), info.uuid.str()));
  return works(joined(lines));
}

/// Throws if a read-only mapping can be written.
void check_read_only(Device device, const DeviceMemory& memory) {
  const auto mapped = cuda().open(device.index, memory.export_memory(Access::read_only), Access::read_only);
  char byte = 1;
  try {
    copy_bytes_and_wait({mapped->data(), device, &byte, kCpu, 1});
  } catch (const Error&) {
    return;
  }
  throw Error(ErrorCode::system, "read-only does NOT hold");
}

/// Allocates, exports, imports, maps and reads memory.
Finding try_descriptors() {
  constexpr const char* kAdvice = "Share memory of cudaMalloc there, which ends with its process.";
  return try_each(DeviceType::cuda, slower, kAdvice, [](Device device) {
    const auto memory = new_memory(device);
    const auto mapped =
        cuda().open(device.index, memory->export_memory(Access::read_write), Access::read_write);
    char there = 7;
    char back = 0;
    copy_bytes_and_wait({memory->data(), device, &there, kCpu, 1});
    copy_bytes_and_wait({&back, kCpu, mapped->data(), device, 1});
    if (back != there) throw Error(ErrorCode::system, "NOT the same");
    check_read_only(device, *memory);
    return device.str() + " shared, read-only holds";
  });
}

Finding try_peers(DeviceType type, const char* advice) {
  std::vector<std::string> pairs;
  bool all = true;
  const auto devices = backend(type).devices();
  for (const DeviceInfo& owner : devices) {
    const auto memory = new_memory(owner.device);
    for (const DeviceInfo& user : devices) {
      if (user.device == owner.device) continue;
      try {
        memory->allow(user.device.index);
        pairs.push_back(fmt::format("{} uses {}", user.device.str(), owner.device.str()));
      } catch (const Error&) {
        all = false;
        pairs.push_back(fmt::format("{} cannot reach {}", user.device.str(), owner.device.str()));
      }
    }
  }
  if (pairs.empty()) return works("one device only");
  if (all) return works(joined(pairs));
  return slower(joined(pairs), advice);
}

/// Lets one stream write a word, and another wait for it.
Finding try_stream_words() {
  static auto& words = *new Mapping(Mapping::anonymous(1 << 16));  // the driver keeps it
  constexpr const char* kAdvice =
      "Hosts wait in place of streams that open tensors; `onecopy ls` counts how often.";
  return try_each(DeviceType::cuda, slower, kAdvice, [](Device device) {
    auto& word = *words.as<std::atomic<std::uint64_t>>();
    const std::uint64_t value = static_cast<std::uint64_t>(device.index) + 1;
    if (!cuda().register_words(device.index, words.data(), 1 << 16))
      throw Error(ErrorCode::unsupported, "has no stream memory operations");
    cuda().write_word(device.index, {}, word, value);
    cuda().wait_for_word(device.index, {}, word, value);
    cuda().synchronize(device.index, {});
    return device.str() + " waits for and writes words";
  });
}

Finding list_cuda_devices() { return list_devices(DeviceType::cuda); }
Finding list_ascend_devices() { return list_devices(DeviceType::npu); }
Finding try_cuda_peers() {
  return try_peers(DeviceType::cuda,
                   "Copies go through the host there; nvidia-smi topo -m shows how cards are linked.");
}
Finding try_ascend_peers() {
  return try_peers(DeviceType::npu,
                   "Copies go through the host there; npu-smi info -t topo shows how cards are linked.");
}

}  // namespace

bool is_built(DeviceType type) {
  const auto built = backend_types();
  return std::ranges::find(built, type) != built.end();
}

std::unique_ptr<DeviceMemory> new_memory(Device device, SegmentKind kind) {
  Backend& vendor = backend(device.type);
  auto memory = vendor.create(device.index, vendor.granularity(), kind, "doctor", 0);
  memory->commit(0, memory->size());
  return memory;
}

std::unique_ptr<DeviceMemory> new_memory(Device device) {
  return new_memory(device, backend(device.type).kind_on(device.index));
}

Finding try_each(DeviceType type, MakeFinding otherwise, const char* advice,
                 const std::function<std::string(Device)>& attempt) {
  std::vector<std::string> lines;
  bool all = true;
  for (const DeviceInfo& info : backend(type).devices()) {
    try {
      lines.push_back(attempt(info.device));
    } catch (const Error& error) {
      all = false;
      lines.push_back(fmt::format("{}: {}", info.device.str(), error.what()));
    }
  }
  return all ? works(joined(lines)) : otherwise(joined(lines), advice);
}

/// Returns the probes. If there are no devices, the line about the driver gives the reason.
std::vector<Probe> device_probes() {
  std::vector<Probe> probes;
  if (!cuda().devices().empty())
    probes = {{"CUDA devices", list_cuda_devices},
              {"CUDA memory as a descriptor", try_descriptors},
              {"CUDA peers", try_cuda_peers},
              {"CUDA order of streams", try_stream_words},
              {"CUDA captured graphs", try_cuda_graphs}};
  if (is_built(DeviceType::npu) && !backend(DeviceType::npu).devices().empty()) {
    probes.push_back({"Ascend devices", list_ascend_devices});
    probes.push_back({"Ascend peers", try_ascend_peers});
  }
  return probes;
}

}  // namespace onecopy::cli
