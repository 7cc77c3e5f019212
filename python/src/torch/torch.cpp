// SPDX-License-Identifier: Apache-2.0
#include "torch/torch.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "array/exports.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/holds.h"
#include "binding/kept.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/store/store.h"
#include "os/fork_hook.h"
#include "share/session.h"
#include "torch/torch_api.h"
#include "torch/torch_files.h"
#include "torch/torch_storages.h"

namespace onecopy::python::torch {
namespace {

/// Counts how storages came into shared memory.
struct Counters {
  std::uint64_t moved = 0;           ///< copied once and exchanged in place
  std::uint64_t moved_by_torch = 0;  ///< torch made a file for it, which we adopted: a descriptor each
  std::uint64_t adopted = 0;         ///< torch had it in shared memory already
};
Counters counters;

const TorchSymbols& api() {
  const TorchSymbols* found = TorchSymbols::get();
  if (!found) throw Error(ErrorCode::unsupported, "this needs torch; import it first");
  found->require_names();
  return *found;
}

Storages& storages() { return Storages::instance(); }

Layout row_of_bytes(std::size_t count) { return Layout(DType::u8, {static_cast<std::int64_t>(count)}); }

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
  StorageMove(const StorageMove&) = delete;
  StorageMove& operator=(const StorageMove&) = delete;
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

/// Returns a new storage on a whole block. REQUIRES: `bytes` is u8[size].
nb::object new_storage(const TorchSymbols& torch, const Tensor& bytes) {
  nb::object storage = torch.storage_of(storages().wrap(torch, bytes));
  storages().bind(torch, storage, onecopy::storage(bytes).data());
  return storage;
}

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

/// The current memory of a storage, or of the elements of a tensor.
struct Range {
  std::byte* begin;
  std::size_t size;
  bool operator==(const Range&) const = default;
};

Range range_of(const TorchSymbols& torch, nb::handle storage) {
  return {torch.data(storage), torch.nbytes(storage)};
}

/// Returns the block at the beginning of the range, if torch uses it or its memory was shared in place.
std::optional<Tensor> known_at(const TorchSymbols& torch, const Range& range, Device device) {
  auto block = storages().block_at(torch, range.begin);
  if (!block && device != kCpu) block = storages().adopted_at(range.begin, range.size, device);
  return block;
}

/// Returns the block of a storage that torch made on memory of onecopy through numpy or DLPack; it may cover only a
/// part.
std::optional<Tensor> lent_elsewhere(const Range& range, Device device) {
  return find_exported({range.begin, row_of_bytes(range.size), device, Access::read_write});
}

/// Returns the block of a storage on the CPU, which this thread or a faster one moves.
Tensor moved_block(const TorchSymbols& torch, nb::handle storage, Range range) {
  for (;;) {
    if (!range.begin) refuse_no_memory();
    if (auto moved = move(torch, storage, range.begin, range.size)) return *std::move(moved);
    range.begin = torch.data(storage);
    if (auto known = storages().block_at(torch, range.begin)) return *std::move(known);
  }
}

/// Shares memory of a device in place. The memory is kept while any process holds it.
Tensor adopted_block(Device device, const TorchSymbols& torch, nb::handle storage, const Range& range) {
  const TensorView view{range.begin, row_of_bytes(range.size), device, Access::read_write};
  Tensor bytes = adopt(view, keep_object(nb::borrow(storage)));
  storages().note_adopted(torch, storage, bytes);
  return bytes;
}

/// Returns the block that a storage lies in, and shares it first if needed. `looked_at`: no block is known there.
Tensor block_of(const TorchSymbols& torch, nb::handle storage, Device device,
                std::optional<Range> looked_at = {}) {
  if (device == kCpu) storages().keep_in_place();
  const Range range = range_of(torch, storage);
  if (range != looked_at)
    if (auto known = known_at(torch, range, device)) return *std::move(known);
  if (auto lent = lent_elsewhere(range, device)) return *std::move(lent);
  if (range.size == 0) return onecopy::empty(row_of_bytes(0), device);  // empty storages share nothing
  return device == kCpu ? moved_block(torch, storage, range) : adopted_block(device, torch, storage, range);
}

bool is_in_graph(nb::handle tensor) { return !nb::cast<bool>(tensor.attr("is_leaf")); }

[[noreturn]] void refuse_graph() {
  throw Error(
      ErrorCode::invalid_argument,
      "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not support "
      "crossing process boundaries.  If you just want to transfer the data, call detach() on the tensor "
      "before serializing (e.g., putting it on the queue).");
}

/// Returns the flags of a tensor that is lazily conjugated or negated; 0 for others.
std::uint32_t lazy_bits(const TorchSymbols& torch, nb::handle tensor, DType dtype) {
  const bool is_conj = (dtype == DType::c64 || dtype == DType::c128) && torch.is_conj(tensor);
  return (is_conj ? kConj : 0u) | (torch.is_neg(tensor) ? kNeg : 0u);
}

/// Returns the flags of a tensor. Empty if it has hooks, which flags cannot express.
std::optional<std::uint32_t> flags_of(const TorchSymbols& torch, nb::handle tensor, DType dtype) {
  std::uint32_t flags = kTorch;
  if (torch.is_parameter(tensor.ptr())) flags |= kParameter;
  if (torch.requires_grad(tensor)) {
    if (is_in_graph(tensor)) refuse_graph();
    if (!nb::getattr(tensor, "_backward_hooks", nb::none()).is_none()) return std::nullopt;
    flags |= kRequiresGrad;
  }
  return flags | lazy_bits(torch, tensor, dtype);
}

/// Returns the storage of this process for the block at this address. A block that is used on two devices may have the
/// same address on both, and has one storage for each.
nb::object storage_on(Device device, const TorchSymbols& torch, const std::byte* begin) {
  nb::object storage = storages().storage_at(torch, begin);
  if (device == kCpu || !storage.is_valid()) return storage;
  return torch.device_of_storage(storage) == device ? storage : nb::object();
}

/// Returns a tensor of a card on memory of the host. The block's own storage belongs to the host.
nb::object view_of_host(const TorchSymbols& torch, const Tensor& tensor) {
  if (!TorchSymbols::can_import(tensor.layout().dtype()))
    throw Error(ErrorCode::unsupported, "this torch cannot make tensors of this dtype on foreign memory");
  return torch.import(to_dlpack_versioned(tensor));
}

[[noreturn]] void refuse_view(Device device) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("this is {}'s view of memory of the host, and stays in this process; share the "
                          "tensor that it is a view of",
                          device.str()));
}

/// Returns a tensor on the block's storage in this process, which it makes at the first call.
nb::object plain(const TorchSymbols& torch, const Tensor& tensor) {
  if (is_view(tensor)) return view_of_host(torch, tensor);
  const std::span<std::byte> block = onecopy::storage(tensor);
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(tensor.data()) - block.data());
  const Layout& layout = tensor.layout();
  const Device device = tensor.device();
  if (nb::object storage = storage_on(device, torch, block.data()); storage.is_valid()) {
    if (device != kCpu) storages().record_stream(block.data(), current_stream(device), tensor);
    return torch.on_storage(storage, layout, offset, device);
  }
  const bool whole = offset == 0 && layout.nbytes() == block.size() && layout.is_contiguous();
  if (!whole || block.empty() || !TorchSymbols::can_import(layout.dtype()))
    return torch.on_storage(new_storage(torch, all_of_block(tensor)), layout, offset, device);
  nb::object opened = storages().wrap(torch, tensor);
  storages().bind(torch, torch.storage_of(opened), block.data());
  return opened;
}

/// Returns a plain tensor, or nothing in inference mode and in functorch's transforms, where torch makes others.
nb::object twin_of(const TorchSymbols& torch, const Tensor& tensor) {
  try {
    nb::object twin = plain(torch, tensor);
    const auto placed = torch.placed(twin.ptr());
    const bool is_there =
        placed && placed->data == tensor.as<std::byte>() && placed->layout == tensor.layout();
    return is_there && torch.is_tensor(twin.ptr()) && torch.is_ordinary(twin) ? twin : nb::object();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    return {};
  }
}

/// Returns whether this thread may copy the storage and leave it, and no block is known for its memory.
bool is_to_be_moved_alone(const TorchSymbols& torch, nb::handle tensor, const nb::object& storage,
                          const Range& range) {
  return !torch.is_shared_by_torch(storage) && torch.is_ordinary(tensor) && !known_at(torch, range, kCpu) &&
         !lent_elsewhere(range, kCpu) && torch.is_alone(storage) && range_of(torch, storage) == range;
}

/// Moves a tensor that is the only user of its storage to a new storage in memory of onecopy, for torch before 2.12,
/// which cannot exchange memory. Empty if other code may use the storage or changes it during the copy, since many of
/// torch's methods let other threads run. Once `moving` exists, other threads that share this tensor wait. A thread
/// that moved it earlier may make torch free the memory, so this thread must not read it then.
std::optional<Tensor> move_alone(const TorchSymbols& torch, nb::handle tensor, const nb::object& storage,
                                 const Layout& layout) {
  const Range range = range_of(torch, storage);
  if (range.size == 0 || !torch.is_alone(storage)) return std::nullopt;
  StorageMove moving(range.begin);
  if (moving.is_beside_another() || !is_to_be_moved_alone(torch, tensor, storage, range))
    return std::nullopt;
  const std::size_t offset = torch.offset(tensor) * size_of(layout.dtype());
  const Tensor bytes = copy_of(range.begin, range.size);
  Tensor moved(bytes.block(), bytes.as<std::byte>() + offset, layout, kCpu, Access::read_write);
  const nb::object twin = twin_of(torch, moved);
  if (!twin.is_valid()) return std::nullopt;
  const auto now = torch.placed(tensor.ptr());
  if (!torch.is_alone(storage) || !now || now->data != range.begin + offset || now->layout != layout)
    return std::nullopt;
  if (!torch.try_put_on_storage_of(tensor, twin)) return std::nullopt;
  if (!torch.is_resizable(storage))  // the memory belongs to numpy or another library
    storages().bind(torch, torch.storage_of(twin), bytes.as<std::byte>(), storage);
  else Session::current().keep_for_a_moment(keep_object(storage), bytes.nbytes(), !UserShares::here());
  moving.leave(storage);
  ++counters.moved;
  return moved;
}

void check(DType dtype, std::uint32_t flags) {
  if ((flags & ~kKnownFlags) != 0 || (flags & kTorch) == 0)
    throw Error(ErrorCode::bad_handle,
                "this says things about a torch tensor that this version does not know");
  const bool differentiable = dtype >= DType::f16;
  if ((flags & kRequiresGrad) != 0 && !differentiable)
    throw Error(ErrorCode::bad_handle, "a tensor of integers cannot require a gradient");
}

}  // namespace

bool is_loaded() { return TorchSymbols::get() != nullptr; }

bool is_tensor(PyObject* object) {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch && torch->is_tensor(object);
}

bool is_any_tensor(PyObject* object) {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch && PyObject_TypeCheck(object, torch->tensor_type) != 0;
}

std::optional<Placement> copyable(PyObject* object) {
  const TorchSymbols& torch = api();
  auto placed = torch.placed(object);
  if (!placed || !placed->layout.is_contiguous()) return std::nullopt;
  if (lazy_bits(torch, object, placed->layout.dtype()) != 0) return std::nullopt;
  return placed;
}

nb::object contiguous(PyObject* tensor) {
  const nb::object given = nb::borrow(tensor);
  if (!given.attr("layout").is(nb::module_::import_("torch").attr("strided"))) return given;
  nb::object copy = given.attr("detach")();
  for (const char* const step : {"resolve_conj", "resolve_neg", "contiguous"}) copy = copy.attr(step)();
  return copy;
}

namespace {

/// Releases copies that other processes no longer hold, without waiting for the next timer.
void take_back_copies() {
  if (Session* const session = Session::existing()) without_gil([&] { session->take_back(); });
  drain_decrefs();
}

Tensor with_room(const Layout& layout, Device home) {
  const std::size_t bytes = std::max(layout.nbytes(), Backend::kAsideRoom);
  const Tensor made = empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes)}), home);
  return {made.block(), made.data(), layout, home, made.access()};
}

/// Returns whether the error means that a card is unreachable, full or missing.
bool is_no_room(ErrorCode code) {
  return code == ErrorCode::unsupported || code == ErrorCode::out_of_memory ||
         code == ErrorCode::out_of_mappings || code == ErrorCode::invalid_argument;
}

/// Copies a tensor to memory of the card `home`. Avoids the processors of the card if possible, since
/// a copy by them would wait until the card switches to this process.
Tensor written_to(Device home, const Placement& from) {
  const Stream stream = current_stream(from.device);
  return without_gil([&] {
    Tensor made = record_stream(use_on(with_room(from.layout, home), from.device), stream);
    const Transfer transfer{made.data(), from.device, from.data, from.device, made.nbytes()};
    if (home == from.device) backend(home.type).copy_aside(transfer, stream);
    else copy_bytes(transfer, stream);
    return made;
  });
}

}  // namespace

std::optional<Tensor> copy_on_card(PyObject* object, const Placement& from, Device home) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  constexpr std::size_t kScarce = std::size_t{256} << 20;
  const std::size_t bytes = from.layout.nbytes();
  if (bytes >= kScarce) take_back_copies();
  try {
    Tensor made = written_to(home, from);
    if (bytes >= kLarge && bytes < kScarce) take_back_copies();  // while the card copies
    return made;
  } catch (const Error& error) {
    if (!is_no_room(error.code())) throw;
  }
  const nb::object copy = nb::handle(object).attr("detach")().attr("clone")();
  auto shared = share(copy.ptr());
  if (!shared) return std::nullopt;
  return std::move(shared->tensor);
}

std::uint32_t leaf_flags(PyObject* tensor) {
  const TorchSymbols& torch = api();
  return kTorch | (torch.is_parameter(tensor) ? kParameter : 0u) |
         (torch.requires_grad(tensor) ? kRequiresGrad : 0u);
}

nb::object as_leaf(nb::object tensor, std::uint32_t flags) {
  return api().as_leaf(std::move(tensor), (flags & kParameter) != 0, (flags & kRequiresGrad) != 0);
}

nb::object copy_of(const Layout& layout, ByteSpan elements, std::uint32_t flags) {
  check(layout.dtype(), flags);
  const TorchSymbols& torch = api();
  nb::object made = torch.make_again(layout);
  if (elements.empty()) return as_leaf(std::move(made), flags);
  const auto placed = torch.placed(made.ptr());
  if (!placed || placed->layout.nbytes() != elements.size())
    throw Error(ErrorCode::unsupported, "torch returned a tensor with another layout than requested");
  std::memcpy(placed->data, elements.data(), elements.size());
  return as_leaf(std::move(made), flags);
}

/// Returns another layout on the tensor's block, `offset` bytes after its element 0.
static Tensor with_block_of(Tensor&& bytes, std::size_t offset, Layout&& layout, Device device) {
  std::byte* const data = bytes.as<std::byte>() + offset;
  const Access access = bytes.access();
  return {bytes.take_block(), data, std::move(layout), device, access};
}

/// Returns what other processes open in place of the tensor: nearly always its own block. A stored version that cannot be
/// lent is copied.
static Tensor sent(Tensor&& tensor) {
  if (is_sendable(tensor)) [[likely]]
    return std::move(tensor);
  return without_gil([&] {
    Tensor other = sendable(tensor);
    return is_shareable(other) ? other : copy(tensor.view());
  });
}

std::optional<FlaggedTensor> share(PyObject* object) {
  const TorchSymbols& torch = api();
  const nb::handle tensor(object);
  auto placed = torch.placed(object);
  if (!placed) return std::nullopt;
  Layout& layout = placed->layout;
  const Device device = placed->device;
  std::byte* const data = placed->data;
  if (PinnedRanges::is_view(device, data)) refuse_view(device);
  const auto flags = flags_of(torch, tensor, layout.dtype());
  if (!flags) return std::nullopt;
  if (store::is_stored(data)) return FlaggedTensor{sent(store::stored_tensor(data, layout)), *flags};
  std::optional<Range> elements;
  if (layout.numel() != 0) {  // most tensors begin a block, so the address finds the block
    elements = Range{data, layout.extent_bytes()};
    if (auto block =
            known_at(torch, *elements, device))  // the block's address may differ from torch's mapping
      return FlaggedTensor{sent(with_block_of(*std::move(block), 0, std::move(layout), device)), *flags};
  }
  const nb::object storage = torch.storage_of(tensor);
  if (device == kCpu && !torch.can_exchange() && (*flags & (kConj | kNeg)) == 0)
    if (auto moved = move_alone(torch, tensor, storage, layout))
      return FlaggedTensor{*std::move(moved), *flags};
  Tensor bytes = block_of(torch, storage, device, elements);
  const std::size_t offset = layout.numel() == 0 ? 0 : torch.offset(tensor) * size_of(layout.dtype());
  return FlaggedTensor{sent(with_block_of(std::move(bytes), offset, std::move(layout), device)), *flags};
}

nb::object open(const Tensor& tensor, std::uint32_t flags) {
  check(tensor.dtype(), flags);
  const TorchSymbols& torch = api();
  torch.use(tensor.device());
  nb::object opened = plain(torch, tensor);
  if ((flags & kConj) != 0) opened = opened.attr("conj")();
  if ((flags & kNeg) != 0) opened = torch.neg_view(opened);
  return as_leaf(std::move(opened), flags);
}

Tensor all_of_block(const Tensor& tensor) {
  const std::span<std::byte> block = onecopy::storage(tensor);
  return {tensor.block(), block.data(), row_of_bytes(block.size()), tensor.device(), tensor.access()};
}

std::pair<Tensor, std::size_t> share_block_of(PyObject* storage) {
  const TorchSymbols& torch = api();
  const Tensor bytes = block_of(torch, storage, torch.device_of_storage(storage));
  const auto offset = static_cast<std::size_t>(bytes.as<std::byte>() - onecopy::storage(bytes).data());
  return {all_of_block(bytes), offset};
}

Tensor share_storage(PyObject* storage) {
  auto [block, offset] = share_block_of(storage);
  if (offset == 0 && block.nbytes() == api().nbytes(storage)) return std::move(block);
  throw Error(
      ErrorCode::unsupported,
      "this storage covers only a part of a block of onecopy, and only whole blocks can be shared as a "
      "storage; share the tensor with onecopy.share(), or send it through a queue");
}

nb::object open_storage(const Tensor& bytes) {
  const TorchSymbols& torch = api();
  torch.use(bytes.device());
  const std::span<std::byte> block = onecopy::storage(bytes);
  if (nb::object storage = storage_on(bytes.device(), torch, block.data()); storage.is_valid()) {
    if (!is_on_host(bytes)) storages().record_stream(block.data(), current_stream(bytes.device()), bytes);
    return storage;
  }
  return new_storage(torch, all_of_block(bytes));
}

void collect() {
  if (const TorchSymbols* torch = TorchSymbols::get()) storages().drop_expired(*torch);
}

bool is_shared(PyObject* storage) {
  const TorchSymbols* torch = TorchSymbols::get();
  const auto device = torch ? device_of(storage) : std::nullopt;
  if (!device) return false;
  try {
    const Range range = range_of(*torch, storage);
    return storages().block_at(*torch, range.begin) || lent_elsewhere(range, *device);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return false;  // the storage has no memory
  }
}

bool is_private(PyObject* storage) {
  const TorchSymbols& torch = api();
  const Device device = torch.device_of_storage(storage);
  const Range range = range_of(torch, storage);
  if (range.size == 0 || PinnedRanges::is_view(device, range.begin) || store::is_stored(range.begin))
    return false;
  return !known_at(torch, range, device) && !lent_elsewhere(range, device);
}

std::optional<Tensor> find_shared(PyObject* tensor) {
  const TorchSymbols* torch = TorchSymbols::get();
  if (!torch || PyObject_TypeCheck(tensor, torch->tensor_type) == 0 || device_of(tensor) != kCpu) return {};
  try {
    const nb::object storage = torch->storage_of(tensor);
    return storages().block_at(*torch, range_of(*torch, storage).begin);
  } catch (const std::exception&) {
    PyErr_Clear();
    return {};  // the storage has no memory
  }
}

std::int16_t current_ordinal(DeviceType type) {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch ? torch->current_ordinal(type) : std::int16_t{0};
}

Stream current_stream(Device device) {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch ? torch->current_stream(device) : Stream{};
}

Stream captured_stream() {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch ? torch->captured_stream() : Stream{};
}

bool record_stream(PyObject* tensor, Stream stream) {
  const TorchSymbols& torch = api();
  const nb::object storage = torch.storage_of(tensor);
  const std::byte* begin = torch.data(storage);
  const auto bytes = storages().block_at(torch, begin);
  return bytes && storages().record_stream(begin, stream, onecopy::record_stream(*bytes, stream));
}

}  // namespace onecopy::python::torch

namespace onecopy::python {
namespace {

/// Returns whether the tensor's offset in its block is a multiple of the element size: the opener's torch storage
/// covers the whole block, and counts elements from its beginning. Returns false for a tensor without elements.
bool begins_with_an_element(const Tensor& tensor) {
  if (tensor.layout().numel() == 0) return false;
  const auto offset = static_cast<std::size_t>(tensor.as<std::byte>() - onecopy::storage(tensor).data());
  return offset % size_of(tensor.dtype()) == 0;
}

/// Reduces a plain tensor to a handle, which describes the whole tensor.
nb::object reduce_shared(nb::handle tensor) {
  if (!torch::is_tensor(tensor.ptr()) || !nb::cast<bool>(tensor.attr("is_cpu"))) return nb::none();
  auto shared = torch::share(tensor.ptr());
  if (!shared || !begins_with_an_element(shared->tensor)) return nb::none();
  return nb::make_tuple(nb::borrow(tensor.type()), share_held(shared->tensor), shared->flags);
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): a list of definitions with their docstrings
void init_torch(nb::module_& m) {
  m.def(
      "torch_share",
      [](nb::handle tensor) -> std::optional<std::pair<Tensor, std::uint32_t>> {
        if (!torch::is_tensor(tensor.ptr())) return std::nullopt;
        auto shared = torch::share(tensor.ptr());
        if (!shared) return std::nullopt;
        return std::pair(std::move(shared->tensor), shared->flags);
      },
      nb::arg("tensor"),
      "Shares the memory of a plain torch tensor. Moves a tensor of the CPU into shared memory in place, "
      "unless "
      "it lies\n"
      "there already; shares a tensor of CUDA where it is. Returns the memory and flags for torch_open(). "
      "None for other\n"
      "objects and for tensors that flags do not describe.");
  m.def("_torch_reduce", &reduce_shared, nb::arg("tensor"),
        "Shares a plain tensor of the CPU like torch_share(). Returns its class, the bytes of a handle "
        "that can "
        "be opened\n"
        "once, and flags for torch_open(). None for other tensors.");
  m.def("torch_open", &torch::open, nb::arg("tensor"), nb::arg("flags") = std::uint32_t{torch::kTorch},
        "Returns a torch tensor on the memory of an onecopy tensor. One block is one torch storage in this "
        "process.");
  m.def(
      "torch_share_storage", [](nb::handle storage) { return torch::share_storage(storage.ptr()); },
      nb::arg("storage"),
      "Shares a torch.UntypedStorage and returns its memory as uint8[nbytes]. Moves a storage of the CPU "
      "into "
      "shared memory if needed.");
  m.def(
      "torch_share_block", [](nb::handle storage) { return torch::share_block_of(storage.ptr()); },
      nb::arg("storage"),
      "Shares the block that a torch.UntypedStorage lies in. Returns the whole block as uint8[nbytes], and "
      "the "
      "offset of\n"
      "the storage in bytes: not 0 if torch got a part of a block through numpy or DLPack.");
  m.def("torch_open_storage", &torch::open_storage, nb::arg("tensor"),
        "Returns the torch.UntypedStorage on the tensor's whole block in this process.");
  m.def(
      "torch_is_shared", [](nb::handle storage) { return torch::is_shared(storage.ptr()); },
      nb::arg("storage"), "Returns whether this torch.UntypedStorage lies in memory of onecopy.");
  m.def(
      "torch_is_private", [](nb::handle storage) { return torch::is_private(storage.ptr()); },
      nb::arg("storage"),
      "Returns whether this torch.UntypedStorage has memory that onecopy did not make and never shared.");
  m.def(
      "_set_torch_keeps_storages", [](bool keeps) { torch::storages().set_kept_in_place(keeps); },
      nb::arg("keeps"), "Sets whether torch keeps storages that lie in memory of onecopy in place.");
  m.def(
      "torch_new_shared",
      [](std::size_t nbytes) {
        return torch::open_storage(onecopy::empty(Layout(DType::u8, {static_cast<std::int64_t>(nbytes)})));
      },
      nb::arg("nbytes"),
      "Returns a new, uninitialised torch.UntypedStorage of that many bytes in memory of onecopy.");
  m.def(
      "torch_counters",
      []() -> nb::typed<nb::dict, nb::str, nb::int_> {
        nb::dict result;
        result["moved"] = torch::counters.moved;
        result["moved_by_torch"] = torch::counters.moved_by_torch;
        result["adopted"] = torch::counters.adopted;
        return result;
      },
      "Counts how torch storages came into shared memory. moved: copied and exchanged in place; "
      "moved_by_torch: "
      "moved by\n"
      "torch's own, slower way; adopted: torch had shared them already.");
}

}  // namespace onecopy::python
