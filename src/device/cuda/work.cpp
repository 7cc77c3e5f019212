// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "backend.h"
#include "devices.h"
#include "onecopy/core/error.h"

namespace onecopy::cuda {

namespace {

std::vector<int> devices_in_use() {
  std::vector<int> found;
  for (int i = 0; i < static_cast<int>(Devices::get().size()); ++i)
    if (is_in_use(i)) found.push_back(i);
  return found;
}

/// An event of one context.
class ContextEvent {
 public:
  ContextEvent(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {
    const UseDevice use(ordinal);
    driver.cuEventCreate.must(&event_, CU_EVENT_DISABLE_TIMING);
    const CUresult result = driver.cuCtxRecordEvent(Devices::get().context(ordinal), event_);
    if (result == CUDA_SUCCESS) return;
    driver.cuEventDestroy(event_);
    check(result, "cuCtxRecordEvent");
  }
  ContextEvent(ContextEvent&& other) noexcept
      : driver_(other.driver_), ordinal_(other.ordinal_), event_(std::exchange(other.event_, nullptr)) {}
  ContextEvent& operator=(ContextEvent&&) = delete;
  ~ContextEvent() {
    if (event_) driver_.cuEventDestroy(event_);
  }

  WorkPoint::Progress poll() const noexcept {
    try {
      const UseDevice use(ordinal_);
      const CUresult result = driver_.cuEventQuery(event_);
      if (result == CUDA_SUCCESS) return WorkPoint::Progress::yes;
      return result == CUDA_ERROR_NOT_READY ? WorkPoint::Progress::no : WorkPoint::Progress::never;
    } catch (const Error&) {  // a failed device, or a forked child
      return WorkPoint::Progress::never;
    }
  }

 private:
  const Driver& driver_;
  const int ordinal_;
  CUevent event_ = nullptr;
};

/// The events of all contexts. An event that has passed is not queried again.
class Events final : public WorkPoint {
 public:
  explicit Events(std::vector<ContextEvent> events) : left_(std::move(events)) {}

  Progress poll() noexcept override {
    for (; !left_.empty(); left_.pop_back())
      if (const Progress passed = left_.back().poll(); passed != Progress::yes) return passed;
    return Progress::yes;
  }

 private:
  std::vector<ContextEvent> left_;
};

}  // namespace

void CudaBackend::create_context(int ordinal) { Devices::get().context(ordinal); }

int CudaBackend::device_in_use() const noexcept {
  try {
    const Driver* const driver = Driver::try_get();
    const std::vector<int> found = driver ? devices_in_use() : std::vector<int>();
    return found.empty() ? -1 : found.front();
  } catch (const std::exception&) {
    return -1;
  }
}

std::unique_ptr<WorkPoint> CudaBackend::mark_work() {
  const Driver& driver = Driver::get();
  if (!driver.cuCtxRecordEvent)
    throw Error(ErrorCode::unsupported,
                "the CUDA driver does not have cuCtxRecordEvent, which came with 12.5");
  std::vector<ContextEvent> events;
  for (const int ordinal : devices_in_use()) events.emplace_back(driver, ordinal);
  if (events.empty()) return nullptr;
  return std::make_unique<Events>(std::move(events));
}

bool CudaBackend::finish_work() noexcept {
  try {
    const Driver& driver = Driver::get();
    for (const int ordinal : devices_in_use()) {
      const UseDevice use(ordinal);
      driver.cuCtxSynchronize.must();
    }
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace onecopy::cuda
