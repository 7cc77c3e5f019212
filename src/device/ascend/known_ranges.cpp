// SPDX-License-Identifier: Apache-2.0
#include "known_ranges.h"

#include <map>

#include "os/mutex.h"

namespace onecopy::ascend {

namespace {

struct Facts {
  std::size_t bytes = 0;
  bool read_only = false;
  int owner = -1;
};

struct Ranges {
  SharedMutex mutex;
  std::map<const std::byte*, Facts> by_base GUARDED_BY(mutex);
};

Ranges& ranges() {
  static Ranges& all = *new Ranges;  // used until the very end
  return all;
}

Facts facts_of(const void* pointer) {
  Ranges& all = ranges();
  const auto* at = static_cast<const std::byte*>(pointer);
  const ReaderLock lock(all.mutex);
  const auto after = all.by_base.upper_bound(at);
  if (after == all.by_base.begin()) return {};
  const auto& [base, facts] = *std::prev(after);
  return static_cast<std::size_t>(at - base) < facts.bytes ? facts : Facts{};
}

}  // namespace

KnownRange::KnownRange(const void* base, std::size_t bytes, Access access, int owner) : base_(base) {
  Ranges& all = ranges();
  const WriterLock lock(all.mutex);
  all.by_base[static_cast<const std::byte*>(base)] = {bytes, access == Access::read_only, owner};
}

KnownRange::~KnownRange() {
  Ranges& all = ranges();
  const WriterLock lock(all.mutex);
  all.by_base.erase(static_cast<const std::byte*>(base_));
}

bool is_another_cards(const void* at, int card) {
  const int owner = facts_of(at).owner;
  return owner >= 0 && owner != card;
}
bool is_read_only(const void* at) { return facts_of(at).read_only; }

}  // namespace onecopy::ascend
