// SPDX-License-Identifier: Apache-2.0
#include "array/strided.h"

#include <cstring>
#include <functional>
#include <utility>

namespace onecopy::python {
namespace {

/// A dimension of two arrays that are traversed together.
struct Step {
  std::int64_t count;
  std::int64_t to;
  std::int64_t from;
};

/// Returns the dimensions, outermost first, except dimensions of size 1. Joins neighbours if both arrays allow it.
std::vector<Step> steps(const StridedView& to, const StridedView& from) {
  std::vector<Step> joined;
  for (std::size_t i = 0; i < to.shape.size(); ++i) {
    if (to.shape[i] == 1) continue;
    const Step step{to.shape[i], to.strides[i], from.strides[i]};
    if (!joined.empty() && joined.back().to == step.count * step.to &&
        joined.back().from == step.count * step.from)
      joined.back() = {joined.back().count * step.count, step.to, step.from};
    else joined.push_back(step);
  }
  return joined;
}

template <std::size_t size>
void copy_row(std::byte* to, const std::byte* from, const Step& step) noexcept {
  for (std::int64_t i = 0; i < step.count; ++i) std::memcpy(to + i * step.to, from + i * step.from, size);
}

void copy_row(std::byte* to, const std::byte* from, const Step& step, std::size_t size) noexcept {
  const auto bytes = static_cast<std::int64_t>(size);
  if (step.to == bytes && step.from == bytes) {
    std::memmove(to, from, static_cast<std::size_t>(step.count) * size);
    return;
  }
  switch (size) {
    case 1: return copy_row<1>(to, from, step);
    case 2: return copy_row<2>(to, from, step);
    case 4: return copy_row<4>(to, from, step);
    case 8: return copy_row<8>(to, from, step);
    default: return copy_row<16>(to, from, step);
  }
}

void copy_steps(std::byte* to, const std::byte* from, std::span<const Step> steps,
                std::size_t size) noexcept {
  if (steps.size() == 1) return copy_row(to, from, steps[0], size);
  for (std::int64_t i = 0; i < steps[0].count; ++i)
    copy_steps(to + i * steps[0].to, from + i * steps[0].from, steps.subspan(1), size);
}

void copy_apart(const StridedView& to, const StridedView& from) noexcept {
  std::vector<Step> walked = steps(to, from);
  if (walked.empty()) walked.push_back({1, 0, 0});
  copy_steps(to.data, from.data, walked, to.element_size);
}

/// Returns whether both are contiguous, so that std::memmove() can copy them even if they overlap.
bool is_one_row(const StridedView& to, const StridedView& from) {
  const std::vector<Step> walked = steps(to, from);
  const auto bytes = static_cast<std::int64_t>(to.element_size);
  return walked.empty() || (walked.size() == 1 && walked[0].to == bytes && walked[0].from == bytes);
}

/// Returns the addresses from the lowest byte of any element to past the highest. REQUIRES: the view is not empty.
std::pair<const std::byte*, const std::byte*> extent(const StridedView& view) noexcept {
  const std::byte* begin = view.data;
  const std::byte* end = view.data + view.element_size;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    const std::int64_t reach = (view.shape[i] - 1) * view.strides[i];
    (reach < 0 ? begin : end) += reach;
  }
  return {begin, end};
}

/// Copies the elements of `from` to a buffer, and writes them from there.
void copy_by_way_of_another(const StridedView& to, const StridedView& from) {
  const auto bytes = static_cast<std::size_t>(from.count()) * from.element_size;
  const auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  StridedView between{memory.get(), from.shape, std::vector<std::int64_t>(from.shape.size()),
                      from.element_size};
  auto stride = static_cast<std::int64_t>(from.element_size);
  for (std::size_t i = from.shape.size(); i-- > 0; stride *= from.shape[i]) between.strides[i] = stride;
  copy_apart(between, from);
  copy_apart(to, between);
}

}  // namespace

bool overlap(const StridedView& a, const StridedView& b) noexcept {
  if (a.count() == 0 || b.count() == 0) return false;
  const auto [a_begin, a_end] = extent(a);
  const auto [b_begin, b_end] = extent(b);
  const std::less<> before;
  return before(a_begin, b_end) && before(b_begin, a_end);
}

std::int64_t StridedView::count() const noexcept {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

StridedView strided(const Tensor& tensor) {
  StridedView view{tensor.as<std::byte>(),
                   {tensor.shape().begin(), tensor.shape().end()},
                   {tensor.strides().begin(), tensor.strides().end()},
                   size_of(tensor.dtype())};
  for (std::int64_t& stride : view.strides) stride *= static_cast<std::int64_t>(view.element_size);
  return view;
}

void copy_elements(const StridedView& to, const StridedView& from) {
  if (to.count() == 0) return;
  if (overlap(to, from) && !is_one_row(to, from)) return copy_by_way_of_another(to, from);
  copy_apart(to, from);
}

/// Writes one element, and copies it to all others as an array with strides of 0.
void fill(const StridedView& to, const Element& value) noexcept {
  if (to.count() == 0) return;
  StridedView same{const_cast<std::byte*>(value.data()), to.shape,
                   std::vector<std::int64_t>(to.shape.size(), 0), to.element_size};
  copy_apart(to, same);
}

}  // namespace onecopy::python
