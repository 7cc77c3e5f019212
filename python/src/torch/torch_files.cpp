// SPDX-License-Identifier: Apache-2.0
#include "torch/torch_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/throw_error.h"
#include "onecopy/share/share.h"
#include "os/fd.h"
#include "os/log.h"
#include "os/memory_limit.h"
#include "share/session.h"

namespace onecopy::python::torch {
namespace {

constexpr int kNoDescriptor = -1;  // as torch returns it

/// Returns the descriptor that torch keeps, or kNoDescriptor for a storage of torch.from_file(). Returns nothing for a
/// storage with a name.
std::optional<int> descriptor_of(const TorchSymbols& torch, nb::handle storage) {
  try {
    return nb::cast<int>(torch.shared_descriptor(storage));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
    return std::nullopt;
  }
}

/// Throws unsupported for a file that is mapped shared: the program writes to change the file, which a block cannot do.
void refuse_shared_file(nb::handle storage) {
  const nb::object file = storage.attr("filename");
  if (file.is_none()) return;  // mapped privately: only this process sees writes
  throw Error(ErrorCode::unsupported,
              "this tensor is the file " + nb::cast<std::string>(file) +
                  ", mapped by torch.from_file(), and sharing would detach the tensor from "
                  "the file; map the file in the other process, too, or share a clone() of the tensor");
}

[[noreturn]] void refuse_name(const std::string& path, const std::string& problem) {
  throw_error(ErrorCode::unsupported,
              "torch shares this tensor's memory by the name {}, and {}; a copy would detach it from the "
              "processes that opened the name: share a clone() of the tensor",
              path, problem);
}

/// Returns the size of torch's header, which lies between the begin of the mapping and the bytes.
std::size_t header_of(const TorchSymbols& torch, nb::handle storage) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return reinterpret_cast<std::uintptr_t>(torch.data(storage)) % page;
}

/// Returns whether a file has the expected size. torch's file ends with the bytes; an adopted file ends with a page.
bool is_as_long(std::size_t found, std::size_t expected) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return found == expected || found == (expected + page - 1) / page * page;
}

/// Adopts a file that keeps its descriptor open, for an ONECOPY_SHM_DIR outside of /dev/shm, where torch's file cannot
/// get a name of onecopy.
Tensor adopt_with_descriptor(const Fd& file, std::size_t size, std::size_t header) {
  static std::atomic_flag is_said;
  if (!is_said.test_and_set())
    log_warning(
        "ONECOPY_SHM_DIR is not on the file system of /dev/shm, where torch makes its files: each storage "
        "that torch shares by name costs a descriptor");
  return adopt_file(file.get(), size, header);
}

/// Adopts the file that torch keeps for the strategy file_system. Asking torch for the name makes the file if the
/// storage is not shared yet.
Tensor adopt_named(const TorchSymbols& torch, nb::handle storage) {
  const nb::tuple handle = nb::cast<nb::tuple>(torch.share_by_name(storage));
  const auto size = nb::cast<std::size_t>(handle[2]);
  const std::string path = "/dev/shm" + std::string(nb::cast<nb::bytes>(handle[1]).c_str());
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file && (errno == EMFILE || errno == ENFILE)) throw_errno("cannot open " + path, errno);
  if (!file) refuse_name(path, fmt::format("it cannot be opened ({})", std::strerror(errno)));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw_errno("cannot examine " + path, errno);
  const std::size_t header = header_of(torch, storage);
  if (!is_as_long(static_cast<std::size_t>(status.st_size), header + size))
    refuse_name(path, fmt::format("that has {} bytes where {} and a header of {} were expected",
                                  status.st_size, size, header));
  if (auto adopted = try_adopt_by_name(file, size, header)) return *std::move(adopted);
  return adopt_with_descriptor(file, size, header);
}

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// Throws out_of_memory if `bytes` do not fit. torch fills the file page by page, so the process would get SIGBUS in a
/// full /dev/shm, or be killed by its control group.
void require_room(std::uint64_t bytes) {
  struct statvfs system {};
  const bool is_bounded = ::statvfs("/dev/shm", &system) == 0 && system.f_blocks != 0;
  const std::uint64_t left = std::uint64_t{system.f_bavail} * system.f_frsize;
  if (is_bounded && left < bytes)
    throw_error(ErrorCode::out_of_memory,
                "torch before 2.12 moves this storage of {:.1f} MiB into a file in /dev/shm, where {:.1f} "
                "MiB of {:.1f} are left; enlarge /dev/shm (docker run --shm-size), share a clone() of the "
                "tensor, which does not need /dev/shm, or use a newer torch",
                mebibytes(bytes), mebibytes(left),
                mebibytes(std::uint64_t{system.f_blocks} * system.f_frsize));
  require_memory(bytes);
}

}  // namespace

std::optional<SharedFile> adopt_file_of(const TorchSymbols& torch, nb::handle storage) {
  const std::optional<int> descriptor = descriptor_of(torch, storage);
  if (!descriptor) return SharedFile{adopt_named(torch, storage), true};
  if (*descriptor != kNoDescriptor)
    return SharedFile{adopt_file(*descriptor, torch.nbytes(storage)), false};
  refuse_shared_file(storage);
  return std::nullopt;
}

Tensor move_into_file(const TorchSymbols& torch, nb::handle storage) {
  require_room(torch.nbytes(storage));
  if (strategy() == Strategy::file_system) return adopt_named(torch, storage);
  const nb::tuple file = nb::cast<nb::tuple>(torch.share_by_descriptor(storage));
  return adopt_file(nb::cast<int>(file[0]),
                    nb::cast<std::size_t>(file[1]));  // the descriptor stays torch's
}

}  // namespace onecopy::python::torch
