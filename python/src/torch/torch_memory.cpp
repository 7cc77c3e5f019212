// SPDX-License-Identifier: Apache-2.0
// Serves torch's CUDA allocator from memory of onecopy. torch finds the two functions by name, and calls them on any
// thread, with or without the GIL; see onecopy/torch.py.
#include <sys/types.h>

#include <exception>
#include <unordered_map>
#include <utility>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/log.h"
#include "os/mutex.h"

namespace onecopy::python {
namespace {

/// The memory that torch has allocated, by address. Thread safety: all members may be called concurrently. Never
/// destroyed, since torch frees memory until the end.
class LentToTorch {
 public:
  static LentToTorch& instance() {
    static LentToTorch* const lent = new LentToTorch;
    return *lent;
  }

  void* add(Tensor tensor) {
    void* const begin = tensor.data();
    const LockGuard lock(mutex_);
    blocks_.insert_or_assign(begin, std::move(tensor));
    return begin;
  }

  /// Removes and returns the memory at this address. Returns nothing for other memory.
  Tensor take(void* begin) {
    const LockGuard lock(mutex_);
    auto node = blocks_.extract(begin);
    return node ? std::move(node.mapped()) : Tensor{};
  }

 private:
  Mutex mutex_;
  std::unordered_map<void*, Tensor> blocks_ GUARDED_BY(mutex_);
};

/// Allocates memory for torch. On failure torch frees cached memory and retries, or raises its own out-of-memory error.
void* allocate(ssize_t size, int device) noexcept {
  try {
    const Layout bytes(DType::u8, {static_cast<std::int64_t>(size)});
    return LentToTorch::instance().add(empty(bytes, {DeviceType::cuda, static_cast<std::int16_t>(device)}));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory)
      log_warning("no memory for torch on cuda:{}: {}", device, error.what());
  } catch (const std::exception& error) {
    log_warning("no memory for torch on cuda:{}: {}", device, error.what());
  }
  return nullptr;
}

/// Frees the block once the stream has passed this point and no other process holds the block.
void give_back(void* begin, void* stream) noexcept {
  try {
    const Tensor ordered = record_stream(LentToTorch::instance().take(begin), {stream});
  } catch (const std::exception& error) {
    log_warning("torch's memory at {} was given back out of order: {}", begin, error.what());
  }
}

}  // namespace
}  // namespace onecopy::python

extern "C" {

[[gnu::visibility("default")]] void* onecopy_cuda_allocate(ssize_t size, int device, void*) noexcept {
  return onecopy::python::allocate(size, device);
}

[[gnu::visibility("default")]] void onecopy_cuda_free(void* begin, ssize_t, int, void* stream) noexcept {
  onecopy::python::give_back(begin, stream);
}
}
