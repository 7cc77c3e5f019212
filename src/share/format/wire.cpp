// SPDX-License-Identifier: Apache-2.0
#include "share/format/wire.h"

#include <utility>

namespace onecopy::wire {

Described::Described(const ExportedMemory& memory)
    : size(memory.size),
      kind(memory.kind),
      device(memory.device),
      missing(static_cast<std::uint32_t>(memory.missing)),
      blob(memory.blob) {}

ExportedMemory Described::with(std::vector<Fd> fds) && {
  return {kind, size, std::move(fds), std::move(blob), device, missing};
}

bool is_answered(Type type) noexcept {
  switch (type) {
    case Type::acknowledge:
    case Type::adopt_child:
    case Type::child_hello:
    case Type::leave_queue:
    case Type::detach:
    case Type::forget:
    case Type::release: return false;
    default: return true;
  }
}

std::vector<int> descriptors(const ExportedMemory& memory, const Fd& table) {
  std::vector<int> numbers = numbers_of(memory.fds);
  if (table) numbers.insert(numbers.begin(), table.get());
  return numbers;
}

Fd take_table(std::vector<Fd>& fds) {
  if (fds.empty()) throw Error(ErrorCode::protocol, "a segment came without its block table");
  Fd table = std::move(fds.front());
  fds.erase(fds.begin());
  return table;
}

}  // namespace onecopy::wire
