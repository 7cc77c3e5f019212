// SPDX-License-Identifier: Apache-2.0
#include "torch/storage_move.h"

#include <map>
#include <thread>
#include <utility>

#include "array/exports.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/fork_hook.h"
#include "share/session.h"
#include "torch/torch_files.h"
#include "torch/torch_storages.h"

namespace onecopy::python::torch {
namespace {

Tensor copy_of(std::byte* begin, std::size_t size) {
  const TensorView view{begin, row_of_bytes(size), kCpu, Access::read_only};
  if (size < kLargeCopy) return copy(view);
  return without_gil([&] { return copy(view); });
}

/// Keeps memory that is copied without the GIL from being freed during the copy. If several threads move a storage at
/// once, the fastest thread leaves the previous memory here, and the last thread releases the memory. Thread safety:
/// used with the GIL held. A forked child does not wait for its parent's threads.
class StorageMove {
 public:
  explicit StorageMove(const std::byte* begin) : entries_(*all()), at_(entries_.try_emplace(begin).first) {
    if (at_->second.threads++ == 0) at_->second.first = std::this_thread::get_id();
  }
  StorageMove& operator=(StorageMove&&) = delete;
  ~StorageMove() {
    if (--at_->second.threads != 0) return;
    const nb::object former = std::move(at_->second.former);  // released after the entry is erased
    entries_.erase(at_);
  }

  /// Returns whether another thread moves the storage, too, and may free the memory when torch moves it.
  bool is_beside_another() const { return at_->second.threads > 1; }
  /// Keeps the storage's former memory until all threads that move it are done.
  void leave(nb::object former) { at_->second.former = std::move(former); }
  /// Returns whether a thread moves the storage at this address.
  static bool is_under_way(const std::byte* begin) {
    const auto at = all()->find(begin);
    return at != all()->end() && at->second.first != std::this_thread::get_id();
  }

 private:
  struct Entry {
    int threads = 0;
    std::thread::id first;
    nb::object former;  ///< a storage
  };
  using Entries = std::map<const std::byte*, Entry>;

  static Entries*& all() {
    static Entries* entries = new Entries;
    return entries;
  }
  static const ForkHook kForkHook;

  Entries& entries_;
  Entries::iterator at_;
};

const ForkHook StorageMove::kForkHook{ForkRank::leaves, {.in_child = [] { all() = new Entries; }}};

/// Gives `storage` the memory of `bytes`. The former memory is freed a moment later, or is kept if a caller may have a
/// bare pointer to it: torch marks storages whose memory was given to numpy as not resizable. Returns false if another
/// thread was faster, so that the storage no longer begins at `before`.
bool give(const TorchSymbols& torch, nb::handle storage, const std::byte* before, const Tensor& bytes,
          StorageMove& moving) {
  nb::object lent = torch.storage_of(storages().wrap(torch, bytes));
  if (torch.data(storage) != before) return false;  // this thread holds the GIL from here to the exchange
  const bool keep = !torch.is_resizable(storage);
  torch.exchange(storage, lent);
  storages().bind(torch, storage, onecopy::storage(bytes).data(), keep ? lent : nb::object());
  if (!keep) Session::current().keep_for_a_moment(keep_object(lent), bytes.nbytes(), !UserShares::here());
  moving.leave(std::move(lent));
  return true;
}

/// Leaves the storage in torch's own mapping of the memory of `bytes`.
Tensor leave_to_torch(const TorchSymbols& torch, nb::handle storage, Tensor bytes, std::uint64_t& counter) {
  storages().alias(torch, storage, bytes);
  ++counter;
  return bytes;
}

/// Makes torch move the storage. Empty if another thread moves it, since torch frees memory that others may copy.
std::optional<Tensor> move_by_torch(const TorchSymbols& torch, nb::handle storage, std::byte* begin) {
  if (StorageMove::is_under_way(begin)) {
    without_gil([] { std::this_thread::yield(); });
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    return std::nullopt;
  }
  const StorageMove moving(begin);
  if (!torch.is_shared_by_torch(storage))
    return leave_to_torch(torch, storage, move_into_file(torch, storage), counters.moved_by_torch);
  if (auto file = adopt_file_of(torch, storage))
    return leave_to_torch(torch, storage, std::move(file->bytes), counters.adopted);
  throw Error(ErrorCode::unsupported,
              "torch before 2.12 cannot move memory that torch.from_file() mapped; share a clone() of the "
              "tensor");
}

/// Moves a storage into memory of onecopy; empty if another thread was faster.
std::optional<Tensor> move(const TorchSymbols& torch, nb::handle storage, std::byte* begin,
                           std::size_t size) {
  if (!torch.can_exchange()) return move_by_torch(torch, storage, begin);
  StorageMove moving(begin);
  if (torch.data(storage) != begin) return std::nullopt;
  std::optional<SharedFile> file;
  if (torch.is_shared_by_torch(storage)) file = adopt_file_of(torch, storage);
  if (file && file->has_name)
    return leave_to_torch(torch, storage, std::move(file->bytes), counters.adopted);
  Tensor bytes = file ? std::move(file->bytes) : copy_of(begin, size);
  if (!give(torch, storage, begin, bytes, moving)) return std::nullopt;
  ++(file ? counters.adopted : counters.moved);
  return bytes;
}

/// Returns a plain tensor, or nothing in inference mode and in functorch's transforms, where torch makes others.
nb::object twin_of(const TorchSymbols& torch, const Tensor& tensor) {
  try {
    nb::object twin = open(tensor, kTorch);
    const auto placed = TorchTensor::of(twin.ptr());
    const bool is_there =
        placed && placed->data == tensor.as<std::byte>() && placed->layout == tensor.layout();
    return is_there && torch.is_ordinary(twin) ? twin : nb::object();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return {};
  }
}

/// Returns whether this thread may copy the storage and leave it, and no block is known for its memory.
bool is_to_be_moved_alone(const TorchTensor& tensor, const nb::object& storage, const Range& range) {
  const TorchSymbols& torch = *tensor.torch;
  const TensorView bytes{range.begin, row_of_bytes(range.size), kCpu, Access::read_write};
  return !torch.is_shared_by_torch(storage) && torch.is_ordinary(tensor.object) &&
         !storages().block_at(torch, range.begin) && !find_exported(bytes) && torch.is_alone(storage) &&
         range_of(torch, storage) == range;
}

}  // namespace

Tensor moved_block(const TorchSymbols& torch, nb::handle storage, Range range) {
  for (;;) {
    if (!range.begin) refuse_no_memory();
    if (auto moved = move(torch, storage, range.begin, range.size)) return *std::move(moved);
    range.begin = torch.data(storage);
    if (auto known = storages().block_at(torch, range.begin)) return *std::move(known);
  }
}

/// Makes other threads that share this tensor wait once `moving` exists. A thread that moved it earlier may make torch free
/// the memory, so this thread must not read it then.
std::optional<Tensor> move_alone(const TorchTensor& tensor) {
  const TorchSymbols& torch = *tensor.torch;
  const nb::object storage = tensor.storage();
  const Range range = range_of(torch, storage);
  if (range.size == 0 || !torch.is_alone(storage)) return std::nullopt;
  StorageMove moving(range.begin);
  if (moving.is_beside_another() || !is_to_be_moved_alone(tensor, storage, range)) return std::nullopt;
  const std::size_t offset = tensor.offset_bytes();
  const Tensor bytes = copy_of(range.begin, range.size);
  Tensor moved(bytes.block(), bytes.as<std::byte>() + offset, tensor.layout, kCpu, Access::read_write);
  const nb::object twin = twin_of(torch, moved);
  if (!twin.is_valid()) return std::nullopt;
  const auto now = TorchTensor::of(tensor.object.ptr());
  if (!torch.is_alone(storage) || !now || now->data != range.begin + offset || now->layout != tensor.layout)
    return std::nullopt;
  if (!torch.try_put_on_storage_of(tensor.object, twin)) return std::nullopt;
  if (!torch.is_resizable(storage))  // the memory belongs to numpy or another library
    storages().bind(torch, torch.storage_of(twin), bytes.as<std::byte>(), storage);
  else Session::current().keep_for_a_moment(keep_object(storage), bytes.nbytes(), !UserShares::here());
  moving.leave(storage);
  ++counters.moved;
  return moved;
}

}  // namespace onecopy::python::torch
