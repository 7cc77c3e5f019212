// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/error.h"

#include <exception>

#include "gil.h"
#include "module.h"

namespace onecopy::python {
namespace {

/// Raises the class of onecopy.errors that stands for the error's code.
void raise(const Error& error) {
  const char* domain = error.domain() == ErrorDomain::none    ? ""
                       : error.domain() == ErrorDomain::posix ? "posix"
                       : error.domain() == ErrorDomain::cuda  ? "cuda"
                                                              : "ascend";
  const nb::object exception =
      nb::module_::import_("onecopy.errors")
          .attr("_make")(name(error.code()), error.what(), error.vendor_code(), domain);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
}

}  // namespace

void init_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    if (!pointer) {  // no exception of C++: this is a daemon thread that the interpreter ends
      if (is_finalizing()) park();
      std::terminate();
    }
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      try {
        raise(error);
      } catch (nb::python_error& other) {  // an interpreter that is going away
        other.restore();
      }
    }
  });
}

}  // namespace onecopy::python
