// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "extra_calls.h"
#include "settings.h"

#define SIM_CALL extern "C" __attribute__((visibility("default"))) onecopy::ascend::aclError

namespace sim {

using namespace onecopy::ascend;

struct Stream;

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// The state of physical memory that all processes share: the end of its memfd.
struct Facts {
  static constexpr std::size_t kMaxAdmitted = 32768;  // as the driver's
  static constexpr std::size_t kMaxImporters = 400;

  char magic[16];
  std::uint64_t id;
  std::uint64_t size;
  std::int32_t device;                  ///< physical
  std::atomic<std::int32_t> unchecked;  ///< exported without a whitelist
  std::atomic<std::int32_t>
      admitted[kMaxAdmitted];  ///< the whitelist; each at its number or behind, 0 = free
  std::atomic<std::int32_t> importers[kMaxImporters];  ///< pids that have it open by key; 0 = free

  bool is_admitted(std::int32_t number) const;
  bool admit(std::int32_t number);
  void add_importer(std::int32_t pid);
  void remove_importer(std::int32_t pid);
  bool has_importers() const;  ///< that live
};

/// The physical memory of a device, a memfd. The simulator reads and writes it through `bytes`; the addresses that
/// programs get are not accessible to them, as on a machine with a real device.
class Memory {
 public:
  /// Null when the system has none left.
  static std::shared_ptr<Memory> create(int device, std::size_t size);
  /// Another process's memory by its number: its pid, its descriptor, and a check that it is unchanged.
  static std::shared_ptr<Memory> import(std::uint64_t number);
  ~Memory();

  /// Names it for other processes while this one lives and has it.
  std::uint64_t number() const;

  int fd = -1;
  std::size_t size = 0;
  int device = 0;  ///< physical
  bool imported = false;
  bool counted = false;            ///< against this process's share of the device
  std::atomic<bool> freed{false};  ///< work that still comes to it fails
  std::byte* bytes = nullptr;
  Facts* facts = nullptr;

 private:
  Memory() = default;
  bool map();
};

enum class RangeKind { allocation, key, vmm, host };

/// Addresses that have memory behind them.
struct Range {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  RangeKind kind = RangeKind::allocation;
  std::shared_ptr<Memory> memory;  // null for host memory, which is where its address says
  int device = 0;                  ///< physical: whose addresses these are
  std::string key;                 ///< that it was exported under, or opened by
  std::map<int, int> access;       ///< of vmm: flags by physical device
  void* handle = nullptr;          ///< of vmm
  bool registered = false;         ///< of host: pages of the program's own

  std::byte* host(std::uintptr_t at) const {
    return memory ? memory->bytes + (at - base) : reinterpret_cast<std::byte*>(at);
  }
};

/// Reserved addresses. All memory mapped there is of one card, and is either imported or the process's own.
struct Reservation {
  std::size_t size = 0;
  int device = -1;
  bool imported = false;
};

struct Handle {
  std::shared_ptr<Memory> memory;
  int device = 0;         ///< physical: processes that may see it at once
  bool exported = false;  ///< once only
};

struct Context {
  int device = 0;  ///< physical
  Stream* stream = nullptr;
};

/// The state of the process, behind one lock. Never destroyed.
struct State {
  std::mutex mutex;
  std::atomic<bool> initialized{false};
  std::atomic<bool> forked{false};  ///< this is a child of a process that had called aclInit
  std::map<int, Context*> contexts;
  std::set<std::pair<int, int>> peers;  ///< enabled: from, to
  std::map<std::uintptr_t, Range> ranges;
  std::map<std::uintptr_t, Reservation> reservations;
  std::map<void*, Handle> handles;
  std::set<std::uint64_t> exported;                           ///< numbers of this process
  std::map<std::string, std::deque<std::uintptr_t>> imports;  ///< addresses by key, in their order
  std::uintptr_t last_handle = 0;
  std::array<std::atomic<std::size_t>, 64> used{};  ///< bytes by physical device
  std::set<Stream*> streams;
  std::set<void*> events;

  Range* find(std::uintptr_t at);
};

State& state();

/// Faults, forks, aclInit: every call asks this first. 0 when it may go on.
aclError enter(const char* symbol);
/// The current context of this thread; null when there is none.
Context*& current() noexcept;
/// Returns the error for a handle that is not a stream.
inline aclError no_stream() { return current() ? ACL_ERROR_RT_STREAM_CONTEXT : ACL_ERROR_RT_CONTEXT_NULL; }
/// Returns the physical number of an ordinal, or -1.
int physical(int ordinal) noexcept;
/// The driver's number of this process.
std::int32_t own_number();
/// From one device to another's memory; equal, or enabled.
bool reaches(int from, int to);

// All of these want state().mutex held.

/// Null when the device's memory is used up.
std::shared_ptr<Memory> allocate(int device, std::size_t size);
/// Addresses without access, on a huge page's boundary; 0 when there are none.
std::uintptr_t reserve_addresses(std::size_t size);
void free_addresses(std::uintptr_t at, std::size_t size);
Range& add_range(std::uintptr_t base, std::size_t size, RangeKind kind, std::shared_ptr<Memory> memory,
                 int device);

inline std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
constexpr std::size_t whole_pages(std::size_t size) { return (size + kPage - 1) / kPage * kPage; }
inline constexpr std::size_t kFactsBytes = whole_pages(sizeof(Facts));

}  // namespace sim

#define SIM_ENTER(symbol) \
  if (const int refused = sim::enter(#symbol); refused != 0) return refused
