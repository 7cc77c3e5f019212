// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/bundle.h"

#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/bundle_codec.h"
#include "share/process.h"

namespace onecopy {

Handle share_bundle(std::span<const NamedTensor> tensors, ByteSpan structure) {
  Process& process = Process::current();
  BundleWriter writer;
  writer.reserve(tensors.size());
  std::vector<BlockRef> kept;
  kept.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    writer.add(name, process.share(tensor).fields());
    kept.push_back(tensor.block());
  }
  const auto bytes = static_cast<std::int64_t>(writer.finished_size(structure.size()));
  const Tensor table = empty(Layout(DType::u8, {bytes}));
  writer.finish(structure, {table.as<std::byte>(), static_cast<std::size_t>(bytes)});
  process.ledger().keep_with(table.block().number(), std::move(kept));
  return process.share(table, kHandleIsBundle);
}

struct Bundle::State {
  State(Tensor t, Access a)
      : table(std::move(t)), access(a), reader({table.as<std::byte>(), table.nbytes()}) {}

  Tensor table;
  Access access;
  BundleReader reader;
};

Bundle Bundle::open(const Handle& handle, Access access) {
  if (!handle.is_bundle())
    throw Error(ErrorCode::bad_handle, "this handle names a single tensor; open it with open()");
  HandleFields fields = handle.fields();
  if (!fields.layout.is_contiguous() || fields.layout.dtype() != DType::u8)
    throw Error(ErrorCode::bad_handle, "a bundle's table is a row of bytes, not " + fields.layout.str());
  Tensor table = Process::current().open(fields, access);
  return Bundle(std::make_unique<State>(std::move(table), access));
}

Bundle::Bundle(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Bundle::Bundle(Bundle&&) noexcept = default;
Bundle& Bundle::operator=(Bundle&&) noexcept = default;
Bundle::~Bundle() = default;

std::size_t Bundle::size() const noexcept { return state_->reader.size(); }
std::string_view Bundle::name(std::size_t row) const { return state_->reader.name(row); }
Layout Bundle::layout(std::size_t row) const { return state_->reader.row(row).layout; }
Tensor Bundle::tensor(std::size_t row) const {
  return Process::current().open(state_->reader.fields(row), state_->access);
}
std::optional<std::size_t> Bundle::find(std::string_view name) const { return state_->reader.find(name); }
ByteSpan Bundle::structure() const noexcept { return state_->reader.structure(); }

}  // namespace onecopy
