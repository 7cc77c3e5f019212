// SPDX-License-Identifier: Apache-2.0
#include "exported.h"

#include <fmt/format.h>
#include <unistd.h>

#include "backend.h"
#include "core/throw_error.h"
#include "devices.h"

namespace onecopy::ascend {

namespace {

/// The head of the blob, which is written and read on one host only.
struct Head {
  std::uint32_t version;
  std::uint32_t read_only;
  std::uint64_t bytes;
  Uuid device;
  std::uint64_t shareable;
  char key[kKeyBytes + 7];
};

constexpr std::uint32_t kVersion = 1;

[[noreturn]] void throw_not_admitted(const Driver& driver, aclError result) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format("the Ascend driver does not let another process open this memory ({}): the process that "
                  "allocated it is gone, and only those that opened it before keep it; copy it to "
                  "lend it on",
                  driver.describe(result)),
      result, ErrorDomain::ascend);
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::bad_handle, "the description of an Ascend segment " + why);
}

}  // namespace

Bytes encode(const ExportedKeys& exported) {
  Head head{kVersion,           exported.access == Access::read_only,
            exported.bytes,     exported.device,
            exported.shareable, {}};
  exported.key.copy(head.key, kKeyBytes - 1);
  Bytes bytes(sizeof head);
  write_value(bytes.data(), head);
  return bytes;
}

ExportedMemory describe(const ExportedKeys& exported) {
  ExportedMemory memory;
  memory.device = exported.device;
  memory.blob = encode(exported);
  return memory;
}

ExportedKeys decode(const ExportedMemory& memory) {
  if (memory.blob.size() != sizeof(Head)) refuse(fmt::format("has {} bytes", memory.blob.size()));
  const Head head = load<Head>(memory.blob.data());
  if (head.version != kVersion) refuse(fmt::format("has version {}", head.version));
  if (head.bytes != memory.size || head.bytes == 0)
    refuse(fmt::format("says {} bytes where {} were announced", head.bytes, memory.size));
  if (head.key[kKeyBytes - 1] != '\0') refuse("has a key without an end");
  ExportedKeys exported{head.read_only != 0 ? Access::read_only : Access::read_write, head.bytes,
                        head.device, head.shareable, head.key};
  const bool named =
      memory.kind == SegmentKind::ascend_key ? !exported.key.empty() : exported.shareable != 0;
  if (!named) refuse("names no memory");
  return exported;
}

/// Returns the driver's number, which differs from getpid() in a container.
std::int32_t AscendBackend::borrower_number() {
  const Driver& driver = Driver::get();
  if (!driver.aclrtDeviceGetBareTgid) return ::getpid();
  std::int32_t number = 0;
  driver.aclrtDeviceGetBareTgid.must(&number);
  return number;
}

void AscendBackend::admit(const ExportedMemory& memory, std::int32_t process) {
  const ExportedKeys exported = decode(memory);
  if (!Driver::if_loaded())  // for example a queue's creator, which holds only a name of the memory
    throw Error(ErrorCode::owner_died,
                "this process does not have the Ascend memory open that it was asked for");
  const Driver& driver = Driver::get();
  const int ordinal = Devices::get().find(exported.device);
  const UseDevice use(ordinal < 0 ? 0 : ordinal);
  const aclError result = memory.kind == SegmentKind::ascend_key
                              ? driver.aclrtIpcMemSetImportPid(exported.key.c_str(), &process, 1)
                              : driver.aclrtMemSetPidToShareableHandle(exported.shareable, &process, 1);
  if (result != ACL_SUCCESS) throw_not_admitted(driver, result);
}

int prepare_to_open(int ordinal, const ExportedKeys& exported, Access access) {
  require_lent(exported.access, access);
  Devices& devices = Devices::get();
  devices.at(ordinal);
  const int owner = devices.find(exported.device);
  if (owner < 0)
    throw_error(ErrorCode::unsupported,
                "the memory is on the Ascend device with the UUID {}, which this process does not "
                "see: check ASCEND_RT_VISIBLE_DEVICES",
                exported.device.str());
  devices.require_reach(ordinal, owner);
  return owner;
}

}  // namespace onecopy::ascend
