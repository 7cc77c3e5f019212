// SPDX-License-Identifier: Apache-2.0
#include "binding/module.h"

#include <cstdlib>

namespace {

/// Throws in an interpreter other than the main one, since the state of onecopy and nanobind belongs to one
/// interpreter.
void require_main_interpreter() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0)  // the main one is the first
    throw nanobind::import_error(
        "onecopy works in one interpreter of a process; use it in the main interpreter");
}

}  // namespace

// NB_MODULE's function gets another name: nanobind resets its state in each interpreter that calls it, before the
// module's first line, and so would forget the main interpreter.
#define PyInit__core init_by_nanobind

NB_MODULE(_core, m) {
  using namespace onecopy::python;
  require_main_interpreter();  // from Python 3.13 on, PyInit__core itself runs in the main interpreter first
  m.doc() = "The C++ core of onecopy; import onecopy instead.";
  m.attr("__version__") = ONECOPY_VERSION;
  // Objects that outlive the interpreter are reported on stderr in the tests. Otherwise the report is off, since a daemon
  // thread may hold objects when the interpreter ends.
  nb::set_leak_warnings(std::getenv("ONECOPY_REPORT_LEAKS") != nullptr);
  for (const auto init :
       {&init_errors, &init_log,     &init_kept,    &init_no_collection, &init_buffer,   &init_tensor,
        &init_device, &init_create,  &init_handles, &init_share,         &init_holds,    &init_open,
        &init_copies, &init_pin,     &init_bundle,  &init_load,          &init_stats,    &init_torch,
        &init_values, &init_message, &init_queue,   &init_pipe,          &init_listener, &init_graph})
    init(m);
#ifndef ONECOPY_WITHOUT_DISTRIBUTED
  init_autograd(m);
#endif
  init_rpc(m);
  init_store(m);
  init_signatures(m);
}

#undef PyInit__core

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): the name that Python looks up
extern "C" NB_EXPORT PyObject* PyInit__core() {
  try {
    require_main_interpreter();
  } catch (const nanobind::builtin_exception& error) {
    PyErr_SetString(PyExc_ImportError, error.what());
    return nullptr;
  }
  return init_by_nanobind();
}
