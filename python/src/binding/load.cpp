// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/load.h"

#include <fmt/format.h>

#include "binding/args.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/module.h"
#include "binding/open.h"
#include "onecopy/share/to_device.h"

namespace onecopy::python {
namespace {

/// Returns a function that calls `progress` and Python's signal handlers on the loading thread, which takes the GIL for
/// it. Their exceptions end the loading.
LoadProgress progress_arg(nb::handle progress) {
  if (!progress.is_none() && PyCallable_Check(progress.ptr()) == 0)
    raise_type_error(
        fmt::format("progress must be None or a function of two ints, not {}", short_repr(progress)));
  return [progress](std::uint64_t done, std::uint64_t total) {
    if (is_finalizing()) park();
    nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(done, total);
  };
}

/// Loads to a device; None for the host.
nb::dict load(nb::handle path, nb::handle device, nb::handle framework, nb::handle progress) {
  const std::string file = path_arg(path, "path");
  const Device where = device.is_none() ? kCpu : device_arg(device, "device");
  const Framework as = framework_arg(framework, "framework");
  const LoadProgress report = progress_arg(progress);
  const Stream stream = where == kCpu ? Stream{} : current_stream(where);
  nb::dict tensors;
  for (const auto& [name, tensor] :
       without_gil([&] { return load_safetensors(file, where, stream, report); }))
    tensors[nb::str(name.data(), name.size())] = open_as(tensor, as);
  return tensors;
}

nb::dict safetensors(nb::handle path, nb::handle framework, nb::handle progress) {
  return load(path, nb::none(), framework, progress);
}

nb::object npy(nb::handle path, nb::handle framework, nb::handle progress) {
  const std::string file = path_arg(path, "path");
  const Framework as = framework_arg(framework, "framework");
  const LoadProgress report = progress_arg(progress);
  return open_as(without_gil([&] { return load_npy(file, report); }), as);
}

}  // namespace

void init_load(nb::module_& m) {
  m.def("load_safetensors", &safetensors, nb::arg("path").none(), nb::kw_only(),
        nb::arg("framework") = nb::none(), nb::arg("progress") = nb::none(),
        nb::sig("def load_safetensors(path: str | bytes | os.PathLike[str], *, framework: "
                "typing.Literal['onecopy', 'torch', 'numpy'] | None = None, progress: "
                "typing.Callable[[int, int], object] | None = None) -> dict[str, typing.Any]"),
        "Reads all tensors of a safetensors file straight into one block of shared memory.\n"
        "\n"
        "The tensors are returned by name, in the order of the file. The block lives as long as any\n"
        "of them.\n"
        "\n"
        "Args:\n"
        "    path: the file; or a directory with one .safetensors file, or with several and a\n"
        "        model.safetensors.index.json that maps tensors to files. Each file becomes one\n"
        "        block. All headers are compared with the index before anything is read.\n"
        "    framework: None for tensors of onecopy, or \"torch\" or \"numpy\".\n"
        "    progress: called from time to time with the bytes done and the bytes in all. The first\n"
        "        half passes while memory is reserved, the second while the file is read. Its\n"
        "        exceptions end the loading.\n"
        "\n"
        "Raises:\n"
        "    BadFile: the file contradicts its format, or the directory contradicts its index.\n"
        "    FileNotFoundError: path or a file of the index does not exist.\n"
        "    InvalidArgument: the directory does not determine the files to read.\n"
        "    Unsupported: onecopy does not support the element type.\n"
        "    OutOfMemory, System.");
  m.def("_load", &load, nb::arg("path").none(), nb::arg("device"), nb::arg("framework") = nb::none(),
        nb::arg("progress") = nb::none(),
        nb::sig("def _load(path: typing.Any, device: typing.Any, framework: typing.Any = None, progress: "
                "typing.Any = None) -> dict[str, typing.Any]"));
  m.def("load_npy", &npy, nb::arg("path").none(), nb::kw_only(), nb::arg("framework") = nb::none(),
        nb::arg("progress") = nb::none(),
        nb::sig("def load_npy(path: str | bytes | os.PathLike[str], *, framework: "
                "typing.Literal['onecopy', 'torch', 'numpy'] | None = None, progress: "
                "typing.Callable[[int, int], object] | None = None) -> typing.Any"),
        "Reads a NumPy .npy file, in C or Fortran order, straight into shared memory.\n"
        "\n"
        "The arguments and errors are as in ``load_safetensors()``. Object arrays, records and\n"
        "big-endian numbers are\n"
        "Unsupported.");
}

}  // namespace onecopy::python
