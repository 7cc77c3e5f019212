// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "onecopy/core/api.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The kind of failure, as far as a caller can react to it.
enum class ErrorCode : std::uint8_t {
  invalid_argument,    ///< the call itself is wrong: shape, stride, size, name
  bad_handle,          ///< the bytes are not a handle: truncated, damaged, contradictory
  version_mismatch,    ///< a handle or peer has another protocol version
  other_boot,          ///< the handle was made before this machine was restarted, or on another machine
  other_user,          ///< the peer belongs to another user
  bad_secret,          ///< the peer could not prove that it knows the handle's secret
  owner_died,          ///< the owner is gone and no other process holds the memory
  peer_died,           ///< a process for which the call waited is gone, or its device has failed
  stale_handle,        ///< the block was freed, or reused for something else
  out_of_memory,       ///< memory, address space or a cgroup's limit is used up
  out_of_descriptors,  ///< RLIMIT_NOFILE or the system's limit is reached
  out_of_mappings,     ///< vm.max_map_count or RLIMIT_AS is reached
  read_only,           ///< a write was requested to memory that was opened read-only
  timeout,             ///< the given time was not enough
  closed,              ///< the queue, pipe or listener is closed
  unsupported,         ///< this machine, device or build lacks the feature
  bad_file,            ///< a file's content contradicts its format
  protocol,            ///< a peer violated the protocol
  /// A function that was called in another process, or here by another process, has thrown.
  remote_error,
  system,      ///< an operating-system call failed; see Error::vendor_code()
  superseded,  ///< another process has changed the object meanwhile, so that this change was not carried out
};
inline constexpr ErrorCode kLastErrorCode = ErrorCode::superseded;

/// The vendor that defines the number in Error::vendor_code().
enum class ErrorDomain : std::uint8_t { none, posix, cuda, ascend };

/// The only exception type of onecopy. what() says what failed and what to do. Thread safety: as a value.
class Error : public std::runtime_error {
 public:
  explicit Error(ErrorCode code, const std::string& message, int vendor_code = 0,
                 ErrorDomain domain = ErrorDomain::none);
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  ~Error() override;  ///< its definition says where the class's type information is: in the library alone

  ErrorCode code() const noexcept { return code_; }
  /// Returns the errno, CUresult or aclError behind this error, or 0 if there is none.
  int vendor_code() const noexcept { return vendor_code_; }
  ErrorDomain domain() const noexcept { return domain_; }

 private:
  ErrorCode code_;
  ErrorDomain domain_;
  int vendor_code_;
};

/// Returns the code's name for messages and logs, e.g. "stale_handle".
const char* name(ErrorCode code) noexcept;

/// Returns whether the code reports a lack of memory, descriptors or mappings: a smaller or a later request may
/// succeed.
bool is_shortage(ErrorCode code) noexcept;

/// Throws an Error for a failed system call: appends strerror(error) to `what` and picks out_of_descriptors (EMFILE,
/// ENFILE), out_of_memory (ENOMEM, ENOSPC) or `otherwise`.
[[noreturn]] void throw_errno(const std::string& what, int error, ErrorCode otherwise = ErrorCode::system);

}  // namespace onecopy
ONECOPY_API_END
