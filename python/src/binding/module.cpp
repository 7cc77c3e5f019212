// SPDX-License-Identifier: Apache-2.0
#include "binding/module.h"

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
  init_errors(m);
  init_leaks(m);
  init_log(m);
  init_kept(m);
  init_no_collection(m);
  init_buffer(m);
  init_tensor(m);
  init_device(m);
  init_create(m);
  init_handles(m);
  init_share(m);
  init_holds(m);
  init_open(m);
  init_copies(m);
  init_pin(m);
  init_bundle(m);
  init_load(m);
  init_stats(m);
  init_torch(m);
  init_values(m);
  init_message(m);
  init_queue(m);
  init_pipe(m);
  init_listener(m);
  init_graph(m);
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
