// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "backend.h"
#include "devices.h"
#include "known_ranges.h"
#include "onecopy/core/error.h"

namespace onecopy::ascend {

namespace {

constexpr std::size_t kPiece = std::size_t{16} << 20;  // of copies that go in pieces

bool is_host(Device device) { return device.type == DeviceType::cpu; }

int kind_of(const Transfer& t) {
  if (is_host(t.from_device)) return ACL_MEMCPY_HOST_TO_DEVICE;
  return is_host(t.to_device) ? ACL_MEMCPY_DEVICE_TO_HOST : ACL_MEMCPY_DEVICE_TO_DEVICE;
}

[[noreturn]] void throw_not_copied(const Driver& driver, const Transfer& t, aclError result) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("cannot copy {} bytes from {} to {}: one side is not memory of that device, is "
                          "too short, or was opened for reading only ({})",
                          t.bytes, t.from_device.str(), t.to_device.str(), driver.describe(result)),
              result, ErrorDomain::ascend);
}

/// Returns whether the stream is being captured; default streams never are. REQUIRES: the stream's device is current.
bool is_capturing(const Driver& driver, aclrtStream stream) {
  int status = ACL_MODEL_RI_CAPTURE_STATUS_NONE;
  aclmdlRI model = nullptr;
  return stream && driver.aclmdlRICaptureGetInfo &&
         driver.aclmdlRICaptureGetInfo(stream, &status, &model) == ACL_SUCCESS &&
         status != ACL_MODEL_RI_CAPTURE_STATUS_NONE;
}

/// Waits for the stream. Throws during a capture, where waiting would fail and spoil the capture. REQUIRES: the
/// stream's device is current.
void wait_for(const Driver& driver, aclrtStream stream) {
  if (is_capturing(driver, stream))
    throw Error(ErrorCode::unsupported,
                "this stream is being captured, and cannot be waited for, which is how Ascend tensors are "
                "ordered with other processes; share, open and copy before the capture begins");
  driver.aclrtSynchronizeStream.must(stream);
}

void start(const Driver& driver, const Transfer& t, aclrtStream stream) {
  const aclError result = driver.aclrtMemcpyAsync(t.to, t.bytes, t.from, t.bytes, kind_of(t), stream);
  if (result == ACL_ERROR_INVALID_PARAM || result == ACL_ERROR_RT_PARAM_INVALID)
    throw_not_copied(driver, t, result);
  check(result, "copying");
}

/// An allocation on the current device for a scope. The destructor waits until the stream has done the scope's work,
/// because aclrtFree does not wait. Thread safety: none.
class Staging {
 public:
  Staging(const Driver& driver, std::size_t bytes, aclrtStream stream) : driver_(driver), stream_(stream) {
    driver_.aclrtMalloc.must(&at_, bytes, ACL_MEM_MALLOC_HUGE_FIRST);
  }
  Staging& operator=(Staging&&) = delete;
  ~Staging() {
    // A copy may still be running when the next one fails.
    if (driver_.aclrtSynchronizeStream) driver_.aclrtSynchronizeStream(stream_);
    driver_.aclrtFree(at_);
  }
  std::byte* at() const noexcept { return static_cast<std::byte*>(at_); }

 private:
  const Driver& driver_;
  const aclrtStream stream_;
  void* at_ = nullptr;
};

Transfer part(const Transfer& t, std::size_t offset, std::size_t bytes) {
  return {static_cast<std::byte*>(t.to) + offset, t.to_device,
          static_cast<const std::byte*>(t.from) + offset, t.from_device, bytes};
}

/// Copies through memory of this process's own card: the runtime copies between the host and own memory, and between
/// cards, but not between the host and another process's card. REQUIRES: the device is current.
void by_way_of_own_card(const Driver& driver, const Transfer& t, Device card, aclrtStream stream) {
  wait_for(driver, stream);  // a graph would use the staging memory after it is freed
  const Staging staging(driver, std::min(t.bytes, kPiece), stream);
  for (std::size_t done = 0; done < t.bytes;) {
    const Transfer piece = part(t, done, std::min(kPiece, t.bytes - done));
    start(driver, {staging.at(), card, piece.from, piece.from_device, piece.bytes}, stream);
    start(driver, {piece.to, piece.to_device, staging.at(), card, piece.bytes}, stream);
    driver.aclrtSynchronizeStream.must(stream);
    done += piece.bytes;
  }
}

/// Copies through the host. REQUIRES: the device that is written to is current.
void by_way_of_the_host(const Driver& driver, const Transfer& t, aclrtStream stream) {
  wait_for(driver, stream);
  std::vector<std::byte> host(std::min(t.bytes, kPiece));
  for (std::size_t done = 0; done < t.bytes;) {
    const Transfer piece = part(t, done, std::min(kPiece, t.bytes - done));
    {
      const UseDevice source(t.from_device.index);
      start(driver, {host.data(), kCpu, piece.from, piece.from_device, piece.bytes}, nullptr);
      driver.aclrtSynchronizeStream.must(nullptr);
    }
    start(driver, {piece.to, piece.to_device, host.data(), kCpu, piece.bytes}, stream);
    driver.aclrtSynchronizeStream.must(stream);
    done += piece.bytes;
  }
}

}  // namespace

void AscendBackend::copy(const Transfer& transfer, Stream stream) {
  if (transfer.bytes == 0) return;
  if (is_read_only(transfer.to))
    throw Error(ErrorCode::read_only, "cannot copy into memory that was opened for reading only");
  const Device card = is_host(transfer.to_device) ? transfer.from_device : transfer.to_device;
  const Driver& driver = Driver::get();
  Devices& devices = Devices::get();
  const UseDevice use(card.index);
  const bool with_host = is_host(transfer.to_device) || is_host(transfer.from_device);
  if (with_host &&
      (is_another_cards(transfer.to, card.index) || is_another_cards(transfer.from, card.index)))
    return by_way_of_own_card(driver, transfer, card, stream.native);
  if (!with_host && !devices.reach(card.index, transfer.from_device.index))
    return by_way_of_the_host(driver, transfer, stream.native);
  start(driver, transfer, stream.native);
}

/// Waits, and keeps the error of a lost device, which only a waiting call reports.
void AscendBackend::synchronize(int ordinal, Stream stream) {
  const Driver& driver = Driver::get();
  const UseDevice use(ordinal);
  try {
    wait_for(driver, stream.native);
  } catch (const Error& error) {
    if (is_final(error.vendor_code())) Devices::get().at(ordinal).failed = error.vendor_code();
    throw;
  }
}

std::optional<Error> AscendBackend::failure(int ordinal) {
  const aclError failed = Devices::get().at(ordinal).failed;
  if (failed == ACL_SUCCESS) return {};
  return Error(ErrorCode::system,
               fmt::format("ACL error {}; this process can no longer use the device: restart it", failed),
               failed, ErrorDomain::ascend);
}

bool AscendBackend::is_captured(int ordinal, Stream stream) {
  const UseDevice use(ordinal);
  return is_capturing(Driver::get(), stream.native);
}

}  // namespace onecopy::ascend
