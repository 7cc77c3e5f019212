// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <utility>

#include "autograd/evaluation.h"
#include "binding/module.h"

namespace onecopy::python {
namespace {

using autograd::Evaluation;

nb::tuple as_tuple(Evaluation::Step step) {
  return nb::make_tuple(std::move(step.fired), step.change, std::move(step.hooked));
}

}  // namespace

void init_autograd(nb::module_& m) {
  nb::class_<Evaluation>(m, "_Evaluation", nb::type_slots(gc_slots<Evaluation>),
                         "One worker's part of a backward pass, without its messages.")
      .def(nb::init<nb::object, std::size_t, nb::handle, nb::handle, nb::object, bool>(),
           nb::arg("context"), nb::arg("worker"), nb::arg("sent"), nb::arg("roots"), nb::arg("engine"),
           nb::arg("retain"))
      .def(
          "take", [](Evaluation& e, nb::handle arrived) { return as_tuple(e.take(arrived)); },
          nb::arg("arrived"))
      .def("resolve", [](Evaluation& e) { return as_tuple(e.resolve()); })
      .def("mark", &Evaluation::mark, nb::arg("key"))
      .def("owed", &Evaluation::owed);
}

}  // namespace onecopy::python
