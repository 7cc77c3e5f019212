// SPDX-License-Identifier: Apache-2.0
#include "torch/torch_storages.h"

#include <algorithm>
#include <utility>

#include "binding/kept.h"
#include "memory/dlpack_dtype.h"
#include "share/session.h"

namespace onecopy::python::torch {
namespace {

template <class Map>
std::vector<typename Map::key_type> keys_of(const Map& map) {
  std::vector<typename Map::key_type> keys;
  keys.reserve(map.size());
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

}  // namespace

Storages& Storages::instance() {
  static Storages* storages = new Storages();
  return *storages;
}

const ForkHook Storages::kForkHook{ForkRank::storages, {&lock, &unlock, &unlock}};

/// Sets the flag first, since the Python function may share tensors.
void Storages::make_torch_keep() {
  are_kept_in_place_ = true;
  nb::module_::import_("onecopy.torch._storages").attr("keep_in_place")();
}

nb::object Storages::wrap(const TorchSymbols& api, const Tensor& tensor) {
  keep_in_place();
  drop_due(api);
  auto lent = std::make_unique<Loan>(tensor);
  // torch only reads shape and strides, which live as long as `lent`. A 0-d tensor needs the pointers, too.
  const Layout& layout = lent->bytes.layout();
  lent->managed.version = {1, 1};
  lent->managed.manager_ctx = lent.get();
  lent->managed.deleter = &Storages::give_back;
  lent->managed.dl_tensor = {lent->begin,
                             to_dl(tensor.device()),
                             static_cast<std::int32_t>(layout.ndim()),
                             to_dl(layout.dtype()),
                             const_cast<std::int64_t*>(layout.shape().data()),
                             const_cast<std::int64_t*>(layout.strides().data()),
                             0};
  {
    const LockGuard lock(mutex_);
    reserve_due(1);
    lent_[lent->begin] = lent.get();  // replaces an entry whose storage is being freed
    ++loans_;
  }
  return api.import(&lent.release()->managed);
}

void Storages::bind(const TorchSymbols& api, nb::handle storage, const std::byte* begin,
                    nb::object former) {
  const std::uintptr_t weak = api.weak(storage);
  auto former_kept = former.is_valid() ? keep_object(std::move(former)) : nullptr;
  const LockGuard lock(mutex_);
  const auto at = lent_.find(begin);
  if (at == lent_.end()) {
    free_later(weak);
    return;
  }
  if (at->second->weak != 0) free_later(at->second->weak);
  at->second->weak = weak;
  if (former_kept) at->second->former.swap(former_kept);
}

std::optional<Tensor> Storages::block_at(const TorchSymbols& api, const std::byte* begin) {
  {
    const LockGuard lock(mutex_);
    if (const auto at = lent_.find(begin); at != lent_.end()) return at->second->bytes;
    if (!paired_.contains(begin)) return std::nullopt;
  }
  return paired_block_at(api, begin);
}

/// Returns the block of an aliased storage. Empty if torch has freed the storage and mapped another at its address.
std::optional<Tensor> Storages::paired_block_at(const TorchSymbols& api, const std::byte* begin) {
  std::uintptr_t weak = 0;
  std::optional<Tensor> bytes;
  {
    const LockGuard lock(mutex_);
    const StoragePair& paired =
        paired_.at(begin);  // entries are erased with the GIL only, which this thread holds
    weak = paired.weak;
    bytes = paired.bytes;
  }
  if (api.upgrade(weak).is_none()) bytes.reset();
  return bytes;
}

std::uintptr_t Storages::weak_at(const std::byte* begin) const {
  const LockGuard lock(mutex_);
  if (const auto at = lent_.find(begin); at != lent_.end()) return at->second->weak;
  if (const auto at = ours_.find(begin); at != ours_.end()) return paired_.at(at->second).weak;
  if (const auto at = adopted_.find(begin); at != adopted_.end()) return at->second.weak;
  return 0;
}

nb::object Storages::storage_at(const TorchSymbols& api, const std::byte* begin) {
  const std::uintptr_t weak = weak_at(begin);
  // The weak reference stays valid: it is freed with the GIL only, which this thread holds.
  if (weak == 0) return {};
  nb::object storage = api.upgrade(weak);
  return storage.is_none() ? nb::object() : storage;
}

bool Storages::is_full() const {
  const LockGuard lock(mutex_);
  return paired_.size() >= paired_limit_;
}

void Storages::alias(const TorchSymbols& api, nb::handle storage, const Tensor& bytes) {
  if (is_full()) drop_expired(api);
  const std::byte* theirs = api.data(storage);
  const std::uintptr_t weak = api.weak(storage);
  const LockGuard lock(mutex_);
  if (const auto at = paired_.find(theirs);
      at != paired_.end()) {  // an expired storage was at the same address
    ours_.erase(onecopy::storage(at->second.bytes).data());
    free_later(at->second.weak);
    paired_.erase(at);
  }
  paired_.insert({theirs, {bytes, weak}});
  ours_[onecopy::storage(bytes).data()] = theirs;
}

void Storages::note_adopted(const TorchSymbols& api, nb::handle storage, const Tensor& bytes) {
  if (adopted_.size() >= adopted_limit_) drop_expired_adopted(api);
  const BlockInfo info = Session::current().locate(bytes, "adopt").spot.info;
  const Adoption adopted{info.number, info.generation, bytes.nbytes(), api.weak(storage)};
  const auto [at, is_new] = adopted_.try_emplace(bytes.as<std::byte>(), adopted);
  if (!is_new) api.free_weak(std::exchange(at->second, adopted).weak);
}

std::optional<Tensor> Storages::adopted_at(const std::byte* begin, std::size_t size, Device device) {
  const auto at = adopted_.find(begin);
  if (at == adopted_.end() || at->second.size != size) return std::nullopt;
  BlockRef block = Session::current().try_reference({at->second.block, at->second.generation});
  if (!block) return std::nullopt;
  return Tensor(std::move(block), const_cast<std::byte*>(begin),
                Layout(DType::u8, {static_cast<std::int64_t>(size)}), device, Access::read_write);
}

/// Holds keys, not iterators, across upgrade(), which runs Python code, perhaps finalizers that share and drop other
/// storages.
void Storages::drop_expired_adopted(const TorchSymbols& api) {
  for (const std::byte* begin : keys_of(adopted_)) {
    const std::uintptr_t weak = adopted_.contains(begin) ? adopted_.at(begin).weak : 0;
    if (weak == 0 || !api.upgrade(weak).is_none()) continue;
    const auto at = adopted_.find(begin);
    if (at == adopted_.end() || at->second.weak != weak) continue;
    adopted_.erase(at);
    api.free_weak(weak);
  }
  adopted_limit_ = std::max<std::size_t>(64, adopted_.size() * 2);
}

void collect() {
  if (const TorchSymbols* torch = TorchSymbols::get()) storages().drop_expired(*torch);
}

bool Storages::record_stream(const std::byte* begin, Stream stream, const Tensor& bytes) {
  const LockGuard lock(mutex_);
  const auto at = lent_.find(begin);
  if (at == lent_.end()) return false;
  auto& streams = at->second->streams;
  const bool known = std::any_of(streams.begin(), streams.end(),
                                 [&](const auto& entry) { return entry.first == stream.native; });
  if (!known) streams.emplace_back(stream.native, bytes);
  return true;
}

void Storages::drop_expired(const TorchSymbols& api) {
  drop_due(api);
  drop_expired_adopted(api);
  for (const std::byte* begin : paired_keys()) {
    const std::uintptr_t weak = paired_weak_at(begin);
    if (weak != 0 && api.upgrade(weak).is_none()) take_paired(begin, weak);
  }
  const LockGuard lock(mutex_);
  paired_limit_ = std::max<std::size_t>(64, paired_.size() * 2);
}

std::vector<const std::byte*> Storages::paired_keys() const {
  const LockGuard lock(mutex_);
  return keys_of(paired_);
}

std::uintptr_t Storages::paired_weak_at(const std::byte* begin) const {
  const LockGuard lock(mutex_);
  const auto at = paired_.find(begin);
  return at == paired_.end() ? 0 : at->second.weak;
}

/// Removes an alias and returns its block, which the caller releases without the lock. Empty if another storage is at
/// the address now.
Tensor Storages::take_paired(const std::byte* begin, std::uintptr_t weak) {
  const LockGuard lock(mutex_);
  const auto at = paired_.find(begin);
  if (at == paired_.end() || at->second.weak != weak) return {};
  Tensor bytes = std::move(at->second.bytes);
  ours_.erase(onecopy::storage(bytes).data());
  free_later(weak);
  paired_.erase(at);
  return bytes;
}

void Storages::give_back(DLManagedTensorVersioned* managed) {
  const std::unique_ptr<Loan> lent(static_cast<Loan*>(managed->manager_ctx));
  instance().remove(*lent);
}  // releases the block without the lock

void Storages::remove(Loan& lent) noexcept {
  const LockGuard lock(mutex_);
  --loans_;
  const auto at = lent_.find(lent.begin);
  if (at != lent_.end() && at->second == &lent) lent_.erase(at);
  if (lent.weak == 0) return;
  due_weak_.push_back(lent.weak);  // reserve_due() has reserved the room
  is_due_ = true;
}

void Storages::reserve_due(std::size_t more) {
  const std::size_t wanted = due_weak_.size() + loans_ + more;
  if (due_weak_.capacity() < wanted) due_weak_.reserve(2 * wanted);
}

void Storages::drop_all_due(const TorchSymbols& api) {
  std::vector<std::uintptr_t> weak;
  {
    const LockGuard lock(mutex_);
    weak = due_weak_;
    due_weak_.clear();  // which keeps the capacity
    is_due_ = false;
  }
  for (const std::uintptr_t number : weak) api.free_weak(number);
}

}  // namespace onecopy::python::torch
