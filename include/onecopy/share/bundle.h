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

#include "onecopy/device/stream.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"
#include "onecopy/share/share.h"

namespace onecopy {

using NamedTensor = std::pair<std::string, Tensor>;

/// Returns one handle for many tensors, e.g. a state_dict. Its table lives in a shared block, which keeps the
/// tensors alive while any process holds it. `structure` is the caller's own and comes back as is.
/// With a stream, shares in its order, as share() does: tensors of one device, or, with the default stream, of several.
/// Throws invalid_argument for several devices with another stream.
Handle share_bundle(std::span<const NamedTensor> tensors, ByteSpan structure = {},
                    std::optional<Stream> stream = {});

/// A bundle as its opener sees it: a table that is read row by row. Tensors keep only their own block
/// alive, the Bundle keeps all.
/// Thread safety: const members may be called concurrently. Move-only.
class Bundle {
 public:
  /// Throws as open() does, and bad_handle if the handle is not a bundle's or its table is inconsistent.
  static Bundle open(const Handle& handle, Access access = Access::read_write);
  /// Opens all its tensors on the device and in the order of the stream, as open(handle, options) does.
  static Bundle open(const Handle& handle, const OpenOptions& options);
  Bundle(Bundle&&) noexcept;
  Bundle& operator=(Bundle&&) noexcept;
  ~Bundle();

  std::size_t size() const noexcept;
  std::string_view name(std::size_t row) const;
  Layout layout(std::size_t row) const;
  Tensor tensor(std::size_t row) const;
  /// The first `count` rows. The first time, quicker than one by one: their owner is asked for all segments in a row.
  /// Throws as tensor() does, and invalid_argument if there are fewer rows.
  std::vector<Tensor> tensors(std::size_t count) const;
  /// The first row of that name.
  std::optional<std::size_t> find(std::string_view name) const;
  ByteSpan structure() const noexcept;

 private:
  struct State;
  explicit Bundle(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace onecopy
