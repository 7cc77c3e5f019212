// SPDX-License-Identifier: Apache-2.0
// These probes use captured graphs on CUDA devices.
#include <string>

#include <fmt/format.h>

#include "device/backend.h"
#include "device/graphs.h"
#include "device/reservation.h"
#include "onecopy/core/error.h"
#include "probe.h"
#include "probe_devices.h"

namespace onecopy::cli {
namespace {

/// Returns whether a value that is written at one address of a memory is read at another.
bool try_windows(Backend& vendor, Device device) {
  const std::size_t bytes = vendor.granularity();
  const auto memory = vendor.create_chunk(device.index, bytes);
  const auto addresses = vendor.reserve(device.index, 2 * bytes);
  addresses->map(0, *memory, 0, bytes);
  addresses->map(bytes, *memory, 0, bytes);
  addresses->allow(device.index, 0, 2 * bytes, Access::read_write);
  char there = 7;
  char back = 0;
  copy_bytes_and_wait({addresses->base(), device, &there, kCpu, 1});
  copy_bytes_and_wait({&back, kCpu, addresses->base() + bytes, device, 1});
  return back == there;
}

/// Returns the calls that the driver lacks; empty if it has all.
std::string missing_calls(Backend& vendor, Device device) {
  try {
    vendor.graphs()->prepare(device.index);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

Finding try_cuda_graphs() {
  Backend& vendor = backend(DeviceType::cuda);
  for (const DeviceInfo& info : vendor.devices()) {
    try {
      if (!try_windows(vendor, info.device))
        return slower(fmt::format("{} maps other memory at the second address", info.device.str()),
                      "Captured graphs would overwrite each other; run them eagerly.");
    } catch (const Error& error) {
      return slower(
          fmt::format("{}: {}", info.device.str(), error.what()),
          "Captured graphs cannot share memory there; use torch.compile(mode=\"reduce-overhead\").");
    }
    if (const std::string lacks = missing_calls(vendor, info.device); !lacks.empty())
      return slower(fmt::format("graphs share memory; {}: {}", info.device.str(), lacks),
                    "Inputs are copied apart from graphs.");
  }
  return works("graphs share memory, copies are nodes");
}

}  // namespace onecopy::cli
