// SPDX-License-Identifier: Apache-2.0
#include "binding/no_collection.h"

#include "binding/module.h"

namespace onecopy::python {
namespace {

int switched_off = 0;  ///< how many live objects have switched it off; with the GIL held

/// Objects of the parent's other threads never end here.
void switch_on_in_child() {
  if (switched_off == 0) return;
  switched_off = 0;
  PyGC_Enable();
}

}  // namespace

void NoCollection::begin() noexcept {
  if (has_switched_off_ || PyGC_Disable() == 0) return;
  has_switched_off_ = true;
  ++switched_off;
}

void NoCollection::end() noexcept {
  if (!has_switched_off_) return;
  has_switched_off_ = false;
  if (switched_off > 0) --switched_off;  // none is left if this thread has forked since
  PyGC_Enable();
}

void init_no_collection(nb::module_& m) {
  m.def("_switch_on_collection", &switch_on_in_child, "What a forked child does first.");
  nb::module_::import_("os").attr("register_at_fork")(nb::arg("after_in_child") =
                                                          m.attr("_switch_on_collection"));
}

}  // namespace onecopy::python
