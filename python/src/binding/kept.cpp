// SPDX-License-Identifier: Apache-2.0
#include "binding/kept.h"

#include <atomic>
#include <utility>
#include <vector>

#include "os/fork_hook.h"
#include "os/mutex.h"

namespace onecopy::python {
namespace {

/// Objects that are not needed any more. Thread safety: all members may be called concurrently; drop() needs the GIL.
/// Survives fork. Never destroyed.
class DropQueue {
 public:
  static DropQueue& instance() {
    static DropQueue* const unneeded = new DropQueue;
    return *unneeded;
  }
  // Around a fork.
  static void lock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.lock(); }
  static void unlock() NO_THREAD_SAFETY_ANALYSIS { instance().mutex_.unlock(); }

  /// Without the GIL. At the end of the interpreter they stay where they are.
  void add(PyObject* object) noexcept {
    const LockGuard lock(mutex_);
    objects_.push_back(object);
    is_due_ = true;
    if (is_over_ || is_asked_) return;
    is_asked_ = Py_AddPendingCall([](void*) { return instance().drop(), 0; }, nullptr) == 0;
  }

  void drop() {
    std::vector<PyObject*> objects;
    {
      const LockGuard lock(mutex_);
      if (objects_.empty() && !is_asked_) return;
      objects.swap(objects_);
      is_due_ = false;
      is_asked_ = false;
    }
    for (PyObject* object : objects) Py_DECREF(object);
  }

  bool is_due() const noexcept { return is_due_; }

  void end() noexcept {
    const LockGuard lock(mutex_);
    is_over_ = true;
  }

 private:
  DropQueue() = default;

  Mutex mutex_;
  std::vector<PyObject*> objects_ GUARDED_BY(mutex_);
  std::atomic<bool> is_due_ = false;          ///< are there objects? read without the lock
  bool is_asked_ GUARDED_BY(mutex_) = false;  ///< the interpreter will call drop()
  bool is_over_ GUARDED_BY(mutex_) = false;   ///< it is about to go
};

const ForkHook kDropsAtFork{ForkRank::leaves, {&DropQueue::lock, &DropQueue::unlock, &DropQueue::unlock}};

}  // namespace

void drop_soon(PyObject* object) noexcept { DropQueue::instance().add(object); }

void drop_unneeded() {
  if (DropQueue::instance().is_due()) DropQueue::instance().drop();
}

std::shared_ptr<const void> kept(nb::object object) {
  drop_unneeded();
  PyObject* const raw = object.ptr();
  std::shared_ptr<const void> group(
      raw, [](const void* dropped) { drop_soon(static_cast<PyObject*>(const_cast<void*>(dropped))); });
  object.release();
  return group;
}

void init_kept(nb::module_& m) {
  DropQueue::instance();  // before any other lock's handlers for fork(), so that it is taken after those
  m.def("_end_of_interpreter", [] { DropQueue::instance().end(); });
  nb::module_::import_("atexit").attr("register")(m.attr("_end_of_interpreter"));
}

}  // namespace onecopy::python
