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

/// The torch storages of this process that lie in our memory, by the address where their block begins.
///
/// An entry lives as long as the memory is lent to torch. The thread that frees the storage, with or without the GIL,
/// calls the DLPack deleter, which takes the entry out and releases the block. Numbers of storages that are then due
/// wait for the next call with the GIL.
///
/// Thread safety: all members may be called concurrently; those with nb types need the GIL. Survives fork. Never
/// destroyed: storages may outlive everything.
class Storages {
 public:
  static Storages& instance();

  /// Makes torch leave storages in our memory where they are (onecopy._torch_storages), the first time. REQUIRES: before
  /// a process that may have a handle of such a storage relies on it.
  void keep_in_place() {
    if (!are_kept_in_place_) [[unlikely]]
      make_torch_keep();
  }
  void set_kept_in_place(bool are_kept) noexcept { are_kept_in_place_ = are_kept; }
  /// Lends the tensor to torch, on a storage of its own. REQUIRES: the tensor is all of its block, in a row.
  nb::object lend(const Api& api, const Tensor& tensor);
  /// Note that this storage has the block's memory (lent before, and exchanged since). `former` is kept
  /// alive with it when not none.
  void assign(const Api& api, nb::handle storage, const std::byte* begin, nb::object former = {});
  /// The block whose memory begins there, if it is lent to torch.
  std::optional<Tensor> block_at(const Api& api, const std::byte* begin);
  /// A storage in memory that torch mapped itself, which is the memory of `bytes`, mapped once more.
  void pair(const Api& api, nb::handle storage, const Tensor& bytes);
  /// Drops blocks whose storage torch has freed without telling us.
  bool is_full() const;
  void drop_expired(const Api& api);
  /// torch's own memory on a device, which is the block of `bytes` since it was shared.
  void note_adopted(const Api& api, nb::handle storage, const Tensor& bytes);
  /// That block, if any process still has it.
  std::optional<Tensor> adopted_at(const std::byte* begin, std::size_t size, Device device);
  /// The block that is lent to torch there is used in this stream, too: `bytes` is released in its order. Returns
  /// false if none is lent there.
  bool also_in(const std::byte* begin, Stream stream, const Tensor& bytes);
  /// The storage that has the block at `begin`, or none.
  nb::object storage_at(const Api& api, const std::byte* begin);

 private:
  /// A block on loan; it owns itself until torch gives it back.
  struct Loan {
    explicit Loan(const Tensor& tensor) : bytes(tensor), begin(storage(tensor).data()) {}

    DLManagedTensorVersioned managed{};
    Tensor bytes;
    std::byte* begin;
    std::uintptr_t weak = 0;                        ///< of the storage; guarded by the mutex
    std::shared_ptr<const void> former;             ///< a storage kept alive, kept(); guarded by the mutex
    std::vector<std::pair<void*, Tensor>> streams;  ///< besides the one of `bytes`; guarded by the mutex
  };

  /// Without an exchange, torch does not report that it frees the storage: it is looked at from time to time.
  struct StoragePair {
    Tensor bytes;
    std::uintptr_t weak;
  };

  /// The block is named and not kept: its sharer releases it some time.
  struct Adoption {
    std::uint32_t block;
    std::uint64_t generation;
    std::size_t size;
    std::uintptr_t weak;
  };

  Storages() = default;
  void make_torch_keep();
  void drop_expired_adopted(const Api& api);
  std::vector<const std::byte*> paired_keys() const;
  std::uintptr_t paired_weak_at(const std::byte* begin) const;
  Tensor take_paired(const std::byte* begin, std::uintptr_t weak);
  std::uintptr_t weak_at(const std::byte* begin) const;
  std::optional<Tensor> paired_block_at(const Api& api, const std::byte* begin);
  static void give_back(DLManagedTensorVersioned* managed);
  void remove(Loan& lent) noexcept;
  void drop_due(const Api& api) {
    if (is_due_.load(std::memory_order_relaxed)) [[unlikely]]
      drop_all_due(api);
  }
  void drop_all_due(const Api& api);
  void free_later(std::uintptr_t weak) REQUIRES(mutex_) {
    reserve_due(1);
    due_weak_.push_back(weak);
    is_due_ = true;
  }
  /// Keeps room in due_weak_ for each loan besides `more`: torch gives a loan back where nothing may fail.
  void reserve_due(std::size_t more) REQUIRES(mutex_);

  // Around a fork.
  static void lock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.lock(); }
  static void unlock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.unlock(); }

  static const ForkHook kForkHook;

  mutable Mutex mutex_;
  std::unordered_map<const std::byte*, Loan*> lent_ GUARDED_BY(mutex_);
  std::unordered_map<const std::byte*, StoragePair> paired_
      GUARDED_BY(mutex_);  ///< by the address in torch's mapping
  std::unordered_map<const std::byte*, const std::byte*> ours_
      GUARDED_BY(mutex_);                                   ///< paired_ by the address in ours
  std::unordered_map<const std::byte*, Adoption> adopted_;  ///< used with the GIL only
  std::size_t adopted_limit_ = 64;
  bool are_kept_in_place_ = false;                           ///< used with the GIL only
  std::size_t paired_limit_ GUARDED_BY(mutex_) = 64;         ///< when to look for expired ones
  std::size_t loans_ GUARDED_BY(mutex_) = 0;                 ///< also those replaced in lent_
  std::vector<std::uintptr_t> due_weak_ GUARDED_BY(mutex_);  ///< to be freed with the GIL
  std::atomic<bool> is_due_ = false;                         ///< there may be some
};

}  // namespace onecopy::python::torch
