// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/error.h"

#include <nanobind/stl/string.h>

#include <array>
#include <exception>
#include <string>
#include <string_view>

#include "binding/gil.h"
#include "binding/module.h"

namespace onecopy::python {
namespace {

struct Word {
  std::string_view ours;
  std::string_view python;
};

/// The words of the core's messages that name C++ functions, and their replacements for Python.
constexpr std::array kWords = {
    Word{"Access::read_only", "access=\"read\""},
    Word{"Exact::copy", "exact=\"copy\""},
    Word{"onecopy::copy(tensor.view())", "tensor.copy()"},
    Word{"onecopy::", "onecopy."},
    Word{"Bundle::open", "onecopy.open()"},
    Word{"open it with Queue::connect", "open it with onecopy.Queue.connect()"},
};

std::string in_words_of_python(std::string message) {
  for (const Word& word : kWords)
    for (std::size_t at = 0; (at = message.find(word.ours, at)) != std::string::npos;
         at += word.python.size())
      message.replace(at, word.ours.size(), word.python);
  return message;
}

/// Raises the class of onecopy.errors for the error's code. Messages of the system name files of the user's.
void raise(const Error& error) {
  const std::string message =
      error.domain() == ErrorDomain::none ? in_words_of_python(error.what()) : error.what();
  const char* domain = error.domain() == ErrorDomain::none    ? ""
                       : error.domain() == ErrorDomain::posix ? "posix"
                       : error.domain() == ErrorDomain::cuda  ? "cuda"
                                                              : "ascend";
  const nb::object exception = nb::module_::import_("onecopy.errors")
                                   .attr("_make")(name(error.code()), message, error.vendor_code(), domain);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
}

}  // namespace

void init_errors(nb::module_&) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    check_thrown(pointer);
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      try {
        raise(error);
      } catch (nb::python_error& other) {  // the interpreter is being finalized
        other.restore();
      }
    }
  });
}

}  // namespace onecopy::python
