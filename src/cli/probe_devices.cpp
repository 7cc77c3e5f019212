// SPDX-License-Identifier: Apache-2.0
// These probes use a vendor's devices through the interface that sharing uses.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "device/backend.h"
#include "onecopy/core/error.h"
#include "os/mapping.h"
#include "probe.h"
#include "probe_devices.h"
#include "text.h"

namespace onecopy::cli {
namespace {

Backend& cuda() { return backend(DeviceType::cuda); }

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

Finding list_devices(DeviceType type) {
  std::vector<std::string> lines;
  for (const DeviceInfo& info : backend(type).devices())
    lines.push_back(fmt::format("{} {}, {}, {}", info.device.str(), info.name,
                                format_bytes(info.total_bytes), info.uuid.str()));
  return works(joined(lines));
}

/// Returns nothing if a read-only mapping could be written.
std::string try_read_only(Device device, const DeviceMemory& memory) {
  const auto mapped = cuda().open(device.index, memory.export_memory(Access::read_only), Access::read_only);
  char byte = 1;
  try {
    copy_bytes_and_wait({mapped->data(), device, &byte, kCpu, 1});
  } catch (const Error&) {
    return "read-only holds";
  }
  return {};
}

/// Allocates, exports, imports, maps and reads memory.
Finding try_descriptors() {
  std::vector<std::string> lines;
  bool all = true;
  for (const DeviceInfo& info : cuda().devices()) {
    try {
      const auto memory = new_memory(info.device);
      const auto mapped =
          cuda().open(info.device.index, memory->export_memory(Access::read_write), Access::read_write);
      char there = 7;
      char back = 0;
      copy_bytes_and_wait({memory->data(), info.device, &there, kCpu, 1});
      copy_bytes_and_wait({&back, kCpu, mapped->data(), info.device, 1});
      const std::string read_only = try_read_only(info.device, *memory);
      all = all && back == there && !read_only.empty();
      lines.push_back(fmt::format("{} {}, {}", info.device.str(), back == there ? "shared" : "NOT the same",
                                  read_only.empty() ? "read-only does NOT hold" : read_only));
    } catch (const Error& error) {
      all = false;
      lines.push_back(fmt::format("{}: {}", info.device.str(), error.what()));
    }
  }
  if (all) return works(joined(lines));
  return slower(joined(lines), "Share memory of cudaMalloc there, which ends with its process.");
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
  auto& word = *words.as<std::atomic<std::uint64_t>>();
  std::vector<std::string> lines;
  bool all = true;
  for (const DeviceInfo& info : cuda().devices()) {
    const int ordinal = info.device.index;
    const bool can = cuda().register_words(ordinal, words.data(), 1 << 16);
    if (can) {
      cuda().write_word(ordinal, {}, word, static_cast<std::uint64_t>(ordinal) + 1);
      cuda().wait_for_word(ordinal, {}, word, static_cast<std::uint64_t>(ordinal) + 1);
      cuda().synchronize(ordinal, {});
    }
    all = all && can;
    lines.push_back(fmt::format("{} {}", info.device.str(),
                                can ? "waits for and writes words" : "has no stream memory operations"));
  }
  if (all) return works(joined(lines));
  return slower(joined(lines),
                "Hosts wait in place of streams that open tensors; `onecopy ls` counts how often.");
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

std::unique_ptr<DeviceMemory> new_memory(Device device, SegmentKind kind) {
  Backend& vendor = backend(device.type);
  auto memory = vendor.create(device.index, vendor.granularity(), kind, "doctor", 0);
  memory->commit(0, memory->size());
  return memory;
}

std::unique_ptr<DeviceMemory> new_memory(Device device) {
  return new_memory(device, backend(device.type).kind_on(device.index));
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
  if (!backend(DeviceType::npu).devices().empty()) {
    probes.push_back({"Ascend devices", list_ascend_devices});
    probes.push_back({"Ascend peers", try_ascend_peers});
  }
  return probes;
}

}  // namespace onecopy::cli
