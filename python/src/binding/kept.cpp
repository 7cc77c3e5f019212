// SPDX-License-Identifier: Apache-2.0
#include "binding/kept.h"

#include <atomic>
#include <new>
#include <utility>

#include "os/fork_hook.h"
#include "os/mutex.h"

namespace onecopy::python {
namespace {

/// An element of the DropQueue: a reference to release. The element is allocated when the reference is taken, so that
/// releasing the reference needs no memory.
struct DropNode {
  PyObject* object;
  DropNode* next = nullptr;
};

/// The references that wait to be released with the GIL. Thread safety: all members may be called concurrently; drop()
/// needs the GIL. Works after fork. Never destroyed.
class DropQueue {
 public:
  static DropQueue& instance() {
    static DropQueue* const unneeded = new DropQueue;
    return *unneeded;
  }
  // Called around a fork.
  static void lock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.lock(); }
  static void unlock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.unlock(); }

  /// Takes over a reference without the GIL and without an allocation. After the interpreter has ended, it is leaked.
  void add(DropNode* dropped) noexcept {
    const LockGuard lock(mutex_);
    dropped->next = std::exchange(first_, dropped);
    is_due_ = true;
    if (is_over_ || is_asked_) return;
    is_asked_ = Py_AddPendingCall([](void*) { return instance().drop(), 0; }, nullptr) == 0;
  }

  void drop() {
    DropNode* next = nullptr;
    {
      const LockGuard lock(mutex_);
      next = std::exchange(first_, nullptr);
      is_due_ = false;
      is_asked_ = false;
    }
    while (next) {
      const std::unique_ptr<DropNode> one(next);
      next = one->next;
      Py_DECREF(one->object);
    }
  }

  bool is_due() const noexcept { return is_due_; }

  void end() noexcept {
    const LockGuard lock(mutex_);
    is_over_ = true;
  }

 private:
  DropQueue() = default;

  Mutex mutex_;
  DropNode* first_ GUARDED_BY(mutex_) = nullptr;
  std::atomic<bool> is_due_ = false;          ///< whether objects are queued; read without the lock
  bool is_asked_ GUARDED_BY(mutex_) = false;  ///< whether the interpreter will call drop()
  bool is_over_ GUARDED_BY(mutex_) = false;   ///< whether the interpreter is ending
};

const ForkHook kDropsAtFork{ForkRank::leaves, {&DropQueue::lock, &DropQueue::unlock, &DropQueue::unlock}};

}  // namespace

void decref_later(PyObject* object) noexcept {
  if (auto* const node = new (std::nothrow) DropNode{object}) DropQueue::instance().add(node);
}

void drain_decrefs() {
  if (DropQueue::instance().is_due()) DropQueue::instance().drop();
}

std::shared_ptr<const void> keep_object(nb::object object) {
  drain_decrefs();
  auto node = std::make_unique<DropNode>(DropNode{object.ptr()});
  object.release();  // the deleter releases the reference, even if the next line throws
  DropNode* const dropped = node.release();
  return {dropped->object, [dropped](const void*) { DropQueue::instance().add(dropped); }};
}

void init_kept(nb::module_& m) {
  DropQueue::instance();  // registers its handlers for fork() first, so that its lock is taken last
  m.def("_end_of_interpreter", [] { DropQueue::instance().end(); });
  nb::module_::import_("atexit").attr("register")(m.attr("_end_of_interpreter"));
}

}  // namespace onecopy::python
