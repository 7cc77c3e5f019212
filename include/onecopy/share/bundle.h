// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/device/stream.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"
#include "onecopy/share/share.h"

ONECOPY_API_BEGIN
namespace onecopy {

using NamedTensor = std::pair<std::string, Tensor>;

/// Returns one handle for many tensors, e.g. a state_dict. The bundle's table lives in a shared block that keeps the
/// tensors alive while any process holds it. `structure` is any data of the caller and comes back unchanged. With a
/// stream, shares in the order of the stream, as share() does: tensors of one device or, with the default stream, of
/// several. Throws invalid_argument for several devices with another stream, and for an empty name or two equal names.
Handle share_bundle(std::span<const NamedTensor> tensors, ByteSpan structure = {},
                    std::optional<Stream> stream = {});

/// A bundle that was opened: a table whose rows are read one at a time. A tensor keeps only its own block alive, the
/// Bundle keeps all blocks alive. Thread safety: const members may be called concurrently. Move-only; the members of a
/// Bundle that was moved from throw closed.
class Bundle {
 public:
  /// Opens a bundle. Throws what open() throws, and bad_handle if the handle does not name a bundle or its table is
  /// inconsistent.
  static Bundle open(const Handle& handle, Access access = Access::read_write);
  /// Opens a bundle whose tensors all open on the device and in the order of the stream, as open(handle, options) does.
  static Bundle open(const Handle& handle, const OpenOptions& options);
  Bundle(Bundle&&) noexcept;
  Bundle& operator=(Bundle&&) noexcept;
  ~Bundle();

  std::size_t size() const;
  std::string_view name(std::size_t row) const;
  Layout layout(std::size_t row) const;
  Tensor tensor(std::size_t row) const;
  /// Returns the first `count` rows. The first call is faster than opening the rows one by one, because the owner is
  /// asked for all segments at once. Throws what tensor() throws, and invalid_argument if there are fewer rows.
  std::vector<Tensor> tensors(std::size_t count) const;
  /// Returns the first row of that name.
  std::optional<std::size_t> find(std::string_view name) const;
  ByteSpan structure() const;

 private:
  struct State;
  explicit Bundle(std::unique_ptr<State> state) noexcept;
  State& state() const;
  std::unique_ptr<State> state_;
};

}  // namespace onecopy
ONECOPY_API_END
