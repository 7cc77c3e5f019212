// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "extra_calls.h"
#include "pinned_pages.h"
#include "settings.h"

#define SIM_CALL extern "C" __attribute__((visibility("default"))) onecopy::cuda::CUresult

namespace sim {

using namespace onecopy::cuda;

struct Stream;

/// Physical memory of a device: a memfd, with a page at its end that describes it, so that another process can import
/// the descriptor. The simulator reads and writes it through `bytes`; programs cannot access the addresses that they
/// get, as on a machine with a real device.
class Memory {
 public:
  /// Null when the system has none left.
  static std::shared_ptr<Memory> create(int device, std::size_t size, bool exportable);
  /// Null when the descriptor is not one of ours.
  static std::shared_ptr<Memory> import(int fd);
  ~Memory();

  int fd = -1;
  std::size_t size = 0;
  int device = 0;  ///< physical
  bool exportable = false;
  bool imported = false;
  bool counted = false;  ///< against this process's share of the device
  std::uint64_t id = 0;  ///< unique on the host, as good as
  std::byte* bytes = nullptr;

 private:
  Memory() = default;
  bool map();
};

enum class RangeKind { allocation, ipc, managed, vmm, host, registered };

/// Addresses that have memory behind them.
struct Range {
  CUdeviceptr base = 0;
  std::size_t size = 0;
  RangeKind kind = RangeKind::allocation;
  std::shared_ptr<Memory> memory;  // null for host memory, which is where its address says
  int device = 0;                  ///< physical: the memory's device, or for ipc the opener
  CUcontext context = nullptr;
  std::uint64_t buffer_id = 0;
  std::map<int, int> access;  ///< of vmm: flags by physical device
  int opened = 1;             ///< of ipc: how often
  std::shared_ptr<PinnedPages>
      pinned;  ///< of registered, for copies: the pages that a card reads; null: the present ones
  bool is_leaving = false;  ///< of registered: another thread unregisters it now

  std::byte* host(CUdeviceptr at) const {
    return memory ? memory->bytes + (at - base) : reinterpret_cast<std::byte*>(at);
  }
};

struct Context {
  int device = 0;  ///< physical
  std::set<int> peers;
  Stream* legacy = nullptr;        ///< the default stream
  std::atomic<CUresult> failed{};  ///< an error after which nothing works in it and its streams do nothing
};

/// The state of the process, behind one lock. Never destroyed.
struct State {
  std::mutex mutex;
  std::atomic<bool> initialized{false};
  std::atomic<bool> forked{false};     ///< this is a child of a process that had called cuInit
  std::atomic<bool> has_ended{false};  ///< as once the driver's own handlers of the process's exit have run
  std::map<int, CUcontext> primary;
  std::map<int, int> primary_uses;
  std::map<CUdeviceptr, Range> ranges;
  std::map<CUdeviceptr, std::size_t> reservations;
  struct Handle {
    std::shared_ptr<Memory> memory;
    int references = 1;
  };
  std::map<CUmemGenericAllocationHandle, Handle> handles;
  std::uint64_t last_id = 0;
  std::array<std::atomic<std::size_t>, 64> used{};  ///< bytes by physical device
  std::set<Stream*> streams;
  std::set<CUevent> events;

  Range* find(CUdeviceptr at);
};

State& state();

/// Faults, forks, cuInit: every call asks this first. 0 when it may go on.
CUresult enter(const char* symbol);
/// Calls begin(), and returns the error of the current context if it has failed. All calls use it except the calls that
/// change the current context.
CUresult enter_context(const char* symbol);
/// The error of a context that failed while the caller waited.
CUresult result_in(const Context* context) noexcept;
/// The current context of this thread; null when there is none.
Context* current() noexcept;
std::vector<CUcontext>& context_stack() noexcept;
/// Returns the physical number of an ordinal, or -1.
int physical(CUdevice ordinal) noexcept;
/// The number by which this process knows a physical device; -1 when it is not visible.
CUdevice ordinal(int physical) noexcept;

/// While a capture is under way, fails calls that allocate or wait, as the capture mode says.
CUresult forbid_in_capture();

inline Context* of(CUcontext context) noexcept { return reinterpret_cast<Context*>(context); }
inline CUcontext handle_of(Context* context) noexcept { return reinterpret_cast<CUcontext>(context); }

}  // namespace sim

#define SIM_ENTER(symbol) \
  if (const int refused = sim::enter_context(#symbol); refused != 0) return refused
#define SIM_ENTER_ANYWAY(symbol) \
  if (const int refused = sim::enter(#symbol); refused != 0) return refused
