// SPDX-License-Identifier: Apache-2.0
#include "value/tree.h"

#include <algorithm>

#include "torch/torch.h"
#include "value/leaf.h"

namespace onecopy::python {

Tree::Tree(nb::handle x, Copy copy) : Visitor(Makes::plain_types), copy_(copy) {
  value_ = walk(x, *this, "x");
}

void Tree::take(std::span<Item> items, const Path& path) {
  make_room_for(items.size());
  std::string name = path.name();
  const std::size_t container = name.size();
  for (Item& item : items) {
    name.resize(container);
    path.append(name, item);
    const std::uint32_t known =
        seen_.find_or_add(item.object.ptr(), static_cast<std::uint32_t>(leaves_.size()));
    if (known != SeenObjects::kNew) {
      other_names_.push_back({name, known});
      item.object = leaves_[known].array;
      continue;
    }
    if (copy_ == Copy::all || !torch::is_tensor(item.object.ptr())) {  // else it is shared as it is
      nb::object array = shareable_array(item.object, copy_ == Copy::all, path.place(item));
      if (!array.is_valid()) refuse(item.object, path.place(item));
      item.object = std::move(array);
    }
    leaves_.push_back({name, item.object});
  }
}

/// Reserves memory, since growing it by doubling would cost a fifth of the walk.
void Tree::make_room_for(std::size_t more) {
  if (leaves_.size() + more < NoCollection::kMany) return;
  no_collection_.begin();
  if (leaves_.size() + more <= leaves_.capacity()) return;
  seen_.reserve(more);
  leaves_.reserve(leaves_.size() + std::max(more, leaves_.size()));
}

nb::object Tree::tensors_of(nb::handle module, const std::string& place) {
  nb::module_::import_("onecopy.torch._modules").attr("prepare")(module, place, copy_ == Copy::as_needed);
  return tensors_of_module(module);
}

}  // namespace onecopy::python
