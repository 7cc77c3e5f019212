// SPDX-License-Identifier: Apache-2.0
#include "array/exports.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "onecopy/share/share.h"
#include "os/fork_hook.h"
#include "os/mutex.h"
#include "share/session.h"

namespace onecopy::python {
namespace {

/// REQUIRES: is_shareable(tensor).
std::vector<Stream> order_of(const Tensor& tensor) { return as_shared(*tensor.block().group()).order(); }

/// An exported block, which its exports own together. The block stays in the order of the streams of all exports until
/// the last export is released, which then waits for all these streams.
class Export final : public BlockGroup {
 public:
  explicit Export(const Tensor& tensor)
      : BlockGroup(false),
        block_(tensor.block()),
        orders_{order_of(tensor)},
        memory_(storage(tensor)),
        access_(tensor.access()) {}

  void add_reference(std::uint32_t) noexcept override;
  void release(std::uint32_t) noexcept override;

 private:
  friend class Exports;

  bool has(const std::vector<Stream>& order) const {
    return std::any_of(orders_.begin(), orders_.end(), [&](const auto& known) {
      return std::equal(known.begin(), known.end(), order.begin(), order.end(),
                        [](Stream a, Stream b) { return a.native == b.native; });
    });
  }
  void keep(BlockRef block, std::vector<Stream> order) {
    orders_.push_back(std::move(order));
    others_.push_back(std::move(block));
  }

  const BlockRef block_;
  std::vector<BlockRef> others_;             ///< the block in the order of other streams
  std::vector<std::vector<Stream>> orders_;  ///< of all of them
  const std::span<std::byte> memory_;
  Access access_;  ///< the highest access that was exported
  std::uint64_t references_ = 0;
};

/// The exported blocks by address. Lock order: no other lock is taken while its mutex is held. Never destroyed, since
/// arrays may outlive the module.
class Exports {
 public:
  static Exports& instance() {
    static Exports* const exports = new Exports;
    return *exports;
  }
  // Called around a fork.
  static void lock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.lock(); }
  static void unlock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.unlock(); }

  BlockRef add(const Tensor& tensor) {
    auto made = std::make_unique<Export>(tensor);
    BlockRef block = tensor.block();
    auto order = order_of(tensor);
    const LockGuard lock(mutex_);
    auto& entry = by_address_[made->memory_.data()];
    if (!entry) entry = made.release();  // its last reference deletes it
    else if (!entry->has(order)) entry->keep(std::move(block), std::move(order));
    if (tensor.access() == Access::read_write) entry->access_ = Access::read_write;
    ++entry->references_;
    return {entry, 0};
  }

  void add_reference(Export& entry) noexcept {
    const LockGuard lock(mutex_);
    ++entry.references_;
  }

  void release(Export& entry) noexcept {
    std::unique_ptr<Export> last;  // goes after the lock
    const LockGuard lock(mutex_);
    if (--entry.references_ != 0) return;
    by_address_.erase(entry.memory_.data());
    last.reset(&entry);
  }

  /// Returns the block that contains all of [begin, begin + bytes), and its access.
  std::optional<std::pair<BlockRef, Access>> find(const std::byte* begin, std::size_t bytes) {
    ReleasableLock lock(mutex_);
    auto after = by_address_.upper_bound(begin);
    if (after == by_address_.begin()) return std::nullopt;
    Export& entry = *std::prev(after)->second;
    const auto offset = static_cast<std::size_t>(begin - entry.memory_.data());
    if (offset > entry.memory_.size() || bytes > entry.memory_.size() - offset) return std::nullopt;
    const Access access = entry.access_;
    ++entry.references_;
    lock.unlock();
    const BlockRef keep(&entry, 0);
    return std::pair(entry.block_, access);
  }

 private:
  Exports() = default;

  Mutex mutex_;
  std::map<const std::byte*, Export*, std::less<>> by_address_
      GUARDED_BY(mutex_);  ///< by where the block begins
};

const ForkHook kExportsAtFork{ForkRank::leaves, {&Exports::lock, &Exports::unlock, &Exports::unlock}};

void Export::add_reference(std::uint32_t) noexcept { Exports::instance().add_reference(*this); }
void Export::release(std::uint32_t) noexcept { Exports::instance().release(*this); }

}  // namespace

Tensor exported(const Tensor& tensor) {
  if (!is_shareable(tensor)) return tensor;
  return {Exports::instance().add(tensor), tensor.data(), tensor.layout(), tensor.device(),
          tensor.access()};
}

std::optional<Tensor> find_exported(const TensorView& view) {
  if (!view.data) return std::nullopt;
  const auto found =
      Exports::instance().find(static_cast<const std::byte*>(view.data), view.layout.extent_bytes());
  if (!found) return std::nullopt;
  const auto& [block, may] = *found;
  const Access access = may == Access::read_only ? may : view.access;
  return Tensor(block, view.data, view.layout, view.device, access);
}

}  // namespace onecopy::python
