// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "onecopy/memory/dlpack.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/share.h"
#include "os/fork_hook.h"
#include "os/mutex.h"
#include "torch/torch_api.h"

namespace onecopy::python::torch {

/// The torch storages of this process that lie in memory of onecopy, by the address of their block.
///
/// An entry lives as long as torch uses the memory. The thread that frees the storage, with or without the GIL, calls
/// the DLPack deleter, which removes the entry and releases the block. The weak reference to the storage is freed by
/// the next call with the GIL.
///
/// Thread safety: all members may be called concurrently; members with nb types need the GIL. A forked child may call
/// them. Never destroyed, since storages may outlive everything else.
class Storages {
 public:
  static Storages& instance();

  /// Makes torch keep storages that lie in memory of onecopy in place (onecopy.torch._storages). Has no effect after the
  /// first call. REQUIRES: called before another process may hold a handle of one of these storages.
  void keep_in_place() {
    if (!are_kept_in_place_) [[unlikely]]
      make_torch_keep();
  }
  void set_kept_in_place(bool are_kept) noexcept { are_kept_in_place_ = are_kept; }
  /// Returns a new torch storage on the tensor's memory. REQUIRES: the tensor is its whole block, as a row.
  nb::object wrap(const TorchSymbols& api, const Tensor& tensor);
  /// Records that `storage` now has the memory of the block at `begin`, after an exchange. Keeps `former` alive with
  /// the storage unless it is none.
  void bind(const TorchSymbols& api, nb::handle storage, const std::byte* begin, nb::object former = {});
  /// Returns the block at this address if a torch storage uses it.
  std::optional<Tensor> block_at(const TorchSymbols& api, const std::byte* begin);
  /// Records a storage in torch's own mapping of the memory of `bytes`.
  void alias(const TorchSymbols& api, nb::handle storage, const Tensor& bytes);
  /// Returns whether enough aliases exist to look for expired ones.
  bool is_full() const;
  /// Releases blocks whose storage torch has freed without reporting it.
  void drop_expired(const TorchSymbols& api);
  /// Records a storage in torch's own memory on a device, which is shared as the block of `bytes`.
  void note_adopted(const TorchSymbols& api, nb::handle storage, const Tensor& bytes);
  /// Returns the block of a recorded storage at this address, if any process still holds the block.
  std::optional<Tensor> adopted_at(const std::byte* begin, std::size_t size, Device device);
  /// Records that the block at `begin` is used in this stream, too: `bytes` is released in the stream's order. Returns
  /// false if torch does not use a block there.
  bool record_stream(const std::byte* begin, Stream stream, const Tensor& bytes);
  /// Returns the storage on the block at `begin`, or none.
  nb::object storage_at(const TorchSymbols& api, const std::byte* begin);

 private:
  /// A block that torch uses. The Loan owns itself until torch calls the deleter.
  struct Loan {
    explicit Loan(const Tensor& tensor) : bytes(tensor), begin(storage(tensor).data()) {}

    DLManagedTensorVersioned managed{};
    Tensor bytes;
    std::byte* begin;
    std::uintptr_t weak = 0;             ///< of the storage; guarded by the mutex
    std::shared_ptr<const void> former;  ///< a storage kept alive, keep_object(); guarded by the mutex
    std::vector<std::pair<void*, Tensor>> streams;  ///< besides the one of `bytes`; guarded by the mutex
  };

  /// A storage that was not exchanged. torch does not report that it frees the storage, so it is checked from time to
  /// time.
  struct StoragePair {
    Tensor bytes;
    std::uintptr_t weak;
  };

  /// A weak reference to a block of torch's memory. Its sharer owns the block.
  struct Adoption {
    std::uint32_t block;
    std::uint64_t generation;
    std::size_t size;
    std::uintptr_t weak;
  };

  Storages() = default;
  void make_torch_keep();
  void drop_expired_adopted(const TorchSymbols& api);
  std::vector<const std::byte*> paired_keys() const;
  std::uintptr_t paired_weak_at(const std::byte* begin) const;
  Tensor take_paired(const std::byte* begin, std::uintptr_t weak);
  std::uintptr_t weak_at(const std::byte* begin) const;
  std::optional<Tensor> paired_block_at(const TorchSymbols& api, const std::byte* begin);
  static void give_back(DLManagedTensorVersioned* managed);
  void remove(Loan& lent) noexcept;
  void drop_due(const TorchSymbols& api) {
    if (is_due_.load(std::memory_order_relaxed)) [[unlikely]]
      drop_all_due(api);
  }
  void drop_all_due(const TorchSymbols& api);
  void free_later(std::uintptr_t weak) REQUIRES(mutex_) {
    reserve_due(1);
    due_weak_.push_back(weak);
    is_due_ = true;
  }
  /// Reserves room in due_weak_ for all loans and `more`, since a deleter must not fail.
  void reserve_due(std::size_t more) REQUIRES(mutex_);

  // Called around a fork.
  static void lock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.lock(); }
  static void unlock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.unlock(); }

  static const ForkHook kForkHook;

  mutable Mutex mutex_;
  std::unordered_map<const std::byte*, Loan*> lent_ GUARDED_BY(mutex_);
  std::unordered_map<const std::byte*, StoragePair> paired_
      GUARDED_BY(mutex_);  ///< by the address in torch's mapping
  std::unordered_map<const std::byte*, const std::byte*> ours_
      GUARDED_BY(mutex_);                                   ///< paired_ by the address of the block
  std::unordered_map<const std::byte*, Adoption> adopted_;  ///< used with the GIL only
  std::size_t adopted_limit_ = 64;
  bool are_kept_in_place_ = false;                    ///< used with the GIL only
  std::size_t paired_limit_ GUARDED_BY(mutex_) = 64;  ///< the size at which expired aliases are removed
  std::size_t loans_ GUARDED_BY(mutex_) = 0;          ///< including loans replaced in lent_
  std::vector<std::uintptr_t> due_weak_ GUARDED_BY(mutex_);  ///< to be freed with the GIL
  std::atomic<bool> is_due_ = false;                         ///< whether due_weak_ may have entries
};

inline Storages& storages() { return Storages::instance(); }

}  // namespace onecopy::python::torch
