// SPDX-License-Identifier: Apache-2.0
// These probes try the ways in which devices share memory between two processes: Ascend's memory, handles of other
// allocators' memory, and keys. Each is created here and used by another process of this program.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "child.h"
#include "commands.h"
#include "core/throw_error.h"
#include "device/backend.h"
#include "os/shared_library.h"
#include "probe.h"
#include "probe_devices.h"

namespace onecopy::cli {
namespace {

using Json = nlohmann::json;
using ByteList = std::vector<std::uint8_t>;

constexpr std::chrono::seconds kFirstUse{30};  // a device's first use takes seconds on large machines
constexpr int kSeen = 42;

const char* const kLegacyAdvice =
    "Tensors in memory of cudaMalloc, which is torch's default, cannot be shared in place: allocate "
    "them with "
    "onecopy.torch.memory() or in expandable segments.";
const char* const kAscendAdvice =
    "Tensors on these devices cannot be shared: npu-smi info says whether they run, "
    "docs/design/ascend.md which driver they need.";
const char* const kKeyAdvice = "onecopy needs keys only where memory has no shareable handle.";

// ---- the other process

ExportedMemory exported_in(const Json& question) {
  ExportedMemory memory;
  memory.kind = static_cast<SegmentKind>(question.at("kind").get<int>());
  memory.size = question.at("size");
  for (const std::uint8_t number : question.at("blob").get<ByteList>())
    memory.blob.push_back(std::byte{number});
  return memory;
}

Json read_first_byte(const Json& question) {
  const Device device = Device::parse(question.at("device").get<std::string>());
  const auto memory = backend(device.type).open(device.index, exported_in(question), Access::read_write);
  unsigned char byte = 0;
  copy_bytes_and_wait({&byte, kCpu, memory->data(), device, 1});
  return {{"byte", byte}};
}

DeviceType type_in(const Json& question) {
  return Device::parse(question.at("device").get<std::string>()).type;
}

Json answer_doctor(const Json& question) {
  const auto what = question.at("do").get<std::string>();
  if (what == "number") return {{"number", backend(type_in(question)).borrower_number()}};
  if (what == "read") return read_first_byte(question);
  throw Error(ErrorCode::protocol, "unknown question: " + what);
}

// ---- this one

ByteList byte_list(const Bytes& bytes) {
  ByteList all;
  for (const std::byte byte : bytes) all.push_back(std::to_integer<std::uint8_t>(byte));
  return all;
}

/// Writes memory in this process, and opens and reads it in the peer.
void share_with(Child& peer, Device device, const DeviceMemory& memory) {
  const unsigned char byte = kSeen;
  copy_bytes_and_wait({memory.data(), device, &byte, kCpu, 1});
  const ExportedMemory exported = memory.export_memory(Access::read_write);
  const Json who = peer.ask({{"do", "number"}, {"device", device.str()}}, kFirstUse);
  backend(device.type).admit(exported, who.at("number"));
  const Json seen = peer.ask({{"do", "read"},
                              {"device", device.str()},
                              {"kind", static_cast<int>(exported.kind)},
                              {"size", exported.size},
                              {"blob", byte_list(exported.blob)}},
                             kFirstUse);
  if (seen.at("byte") != kSeen) throw Error(ErrorCode::system, "the other process reads different data");
}

using MakeMemory = std::unique_ptr<DeviceMemory> (*)(Device device);

/// Lets another process read memory of each device of the vendor; if one fails, the finding is `otherwise`.
Finding try_memory(DeviceType type, MakeMemory make, MakeFinding otherwise, const char* advice) {
  Child peer({"doctor-peer"});
  return try_each(type, otherwise, advice, [&](Device device) {
    share_with(peer, device, *make(device));
    return device.str() + " read by another process";
  });
}

/// Calls a function of the driver by its name. The parameters match cuda.h except for the names of pointer
/// types, which clang's sanitizer distinguishes.
template <class... Parameters>
#if defined(__clang__)
__attribute__((no_sanitize("function")))
#endif
void call_cuda(const SharedLibrary& driver, const char* name, Parameters... parameters) {
  auto* call = reinterpret_cast<int (*)(Parameters...)>(driver.symbol(name));
  if (!call) throw_error(ErrorCode::unsupported, "{} has no {}", driver.name(), name);
  if (const int error = call(parameters...); error != 0)
    throw_error(ErrorCode::unsupported, "{} failed with error {}", name, error);
}

/// Allocates memory with cudaMalloc, as frameworks do. The memory is freed when this process ends.
void* allocate_by_cuda(int ordinal, std::size_t bytes) {
  const char* chosen = std::getenv("ONECOPY_CUDA_DRIVER");
  std::string why;
  const auto driver = SharedLibrary::open({chosen && *chosen ? chosen : "libcuda.so.1"}, &why);
  if (!driver) throw Error(ErrorCode::unsupported, "tried " + why);
  void* context = nullptr;
  unsigned long long address = 0;
  call_cuda(*driver, "cuInit", 0U);
  call_cuda(*driver, "cuDevicePrimaryCtxRetain", &context, ordinal);
  call_cuda(*driver, "cuCtxSetCurrent", context);
  call_cuda(*driver, "cuMemAlloc_v2", &address, bytes);
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

std::unique_ptr<DeviceMemory> memory_of_cuda_malloc(Device device) {
  Backend& cuda = backend(DeviceType::cuda);
  const std::size_t bytes = cuda.granularity();
  return cuda.adopt(cuda.find_foreign(allocate_by_cuda(device.index, bytes), bytes));
}

std::unique_ptr<DeviceMemory> memory_with_key(Device device) {
  return new_memory(device, SegmentKind::ascend_key);
}

Finding try_legacy_handles() {
  return try_memory(DeviceType::cuda, memory_of_cuda_malloc, slower, kLegacyAdvice);
}
Finding try_ascend_memory() { return try_memory(DeviceType::npu, new_memory, missing, kAscendAdvice); }
Finding try_keys() { return try_memory(DeviceType::npu, memory_with_key, slower, kKeyAdvice); }

}  // namespace

std::vector<Probe> probes_between_processes() {
  std::vector<Probe> probes;
  if (!backend(DeviceType::cuda).devices().empty())
    probes.push_back({"CUDA legacy handles", try_legacy_handles});
  if (is_built(DeviceType::npu) && !backend(DeviceType::npu).devices().empty()) {
    probes.push_back({"Ascend memory between processes", try_ascend_memory});
    probes.push_back({"Ascend IPC keys", try_keys});
  }
  return probes;
}

void add_doctor_peer(CLI::App& app, Command& command) {
  auto* sub = app.add_subcommand("doctor-peer", "The other process of onecopy doctor");
  sub->group("");  // hidden from users
  sub->callback([&command] { command = [] { return serve_questions(answer_doctor); }; });
}

}  // namespace onecopy::cli
