// SPDX-License-Identifier: Apache-2.0
#include "autograd/names.h"

namespace onecopy::python::autograd {
namespace {

nb::object interned(const char* text) { return owned(PyUnicode_InternFromString(text)); }

PyTypeObject* node_type(const nb::object& edges, const char* name) {
  return reinterpret_cast<PyTypeObject*>(nb::object(edges.attr(name)).release().ptr());
}

Names* look_up() {
  const nb::object torch = nb::module_::import_("torch");
  const nb::object edges = nb::module_::import_("onecopy.distributed.autograd._edges");
  return new Names{
      .leaf = node_type(edges, "LeafNode"),
      .receive = node_type(edges, "ReceiveNode"),
      .gradient_edge = edges.attr("GradientEdge"),
      .hook_finder = nb::module_::import_("onecopy.distributed.autograd._leaf_hooks").attr("hook_finder"),
      .strided = torch.attr("strided"),
      .sparse_coo = torch.attr("sparse_coo"),
      .contiguous_format = torch.attr("contiguous_format"),
      .next_functions = interned("next_functions"),
      .variable = interned("variable"),
      .backward_hooks = interned("_backward_hooks"),
      .received = interned("received"),
      .count = interned("count"),
      .message_id = interned("message_id"),
      .edges = interned("edges"),
      .input_metadata = interned("_input_metadata"),
      .layout = interned("layout"),
      .untyped_storage = interned("untyped_storage"),
      .data_ptr = interned("data_ptr"),
      .nbytes = interned("nbytes"),
      .values = interned("_values"),
      .indices = interned("_indices"),
      .contiguous = interned("contiguous"),
      .is_contiguous = interned("is_contiguous"),
      .clone = interned("clone"),
      .detach = interned("detach"),
      .memory_format = interned("memory_format"),
      .accumulate = interned("accumulate"),
  };
}

}  // namespace

/// Looks the names up outside of the initialiser of a static variable, which would wait for a lock with the GIL held.
const Names& Names::get() {
  static Names* known = nullptr;
  if (!known) {
    Names* const made = call_python([] { return look_up(); });
    if (!known) known = made;  // another thread may have been quicker while this one imported
  }
  return *known;
}

}  // namespace onecopy::python::autograd
