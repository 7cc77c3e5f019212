// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace onecopy {
namespace {

ErrorCode code_of(int error, ErrorCode otherwise) noexcept {
  switch (error) {
    case EMFILE:
    case ENFILE: return ErrorCode::out_of_descriptors;
    case ENOMEM:
    case ENOSPC: return ErrorCode::out_of_memory;
    default: return otherwise;
  }
}

const char* advice(int error) noexcept {
  switch (error) {
    case EMFILE: return "; raise RLIMIT_NOFILE (`ulimit -n`) or keep fewer descriptors open";
    case ENFILE: return "; the whole system is out of descriptors: raise fs.file-max";
    default: return "";
  }
}

}  // namespace

Error::Error(ErrorCode code, const std::string& message, int vendor_code, ErrorDomain domain)
    : std::runtime_error(message), code_(code), domain_(domain), vendor_code_(vendor_code) {}

Error::~Error() = default;

const char* name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::bad_handle: return "bad_handle";
    case ErrorCode::version_mismatch: return "version_mismatch";
    case ErrorCode::other_boot: return "other_boot";
    case ErrorCode::other_user: return "other_user";
    case ErrorCode::bad_secret: return "bad_secret";
    case ErrorCode::owner_died: return "owner_died";
    case ErrorCode::peer_died: return "peer_died";
    case ErrorCode::stale_handle: return "stale_handle";
    case ErrorCode::out_of_memory: return "out_of_memory";
    case ErrorCode::out_of_descriptors: return "out_of_descriptors";
    case ErrorCode::out_of_mappings: return "out_of_mappings";
    case ErrorCode::read_only: return "read_only";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::closed: return "closed";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::bad_file: return "bad_file";
    case ErrorCode::remote_error: return "remote_error";
    case ErrorCode::protocol: return "protocol";
    case ErrorCode::system: return "system";
    case ErrorCode::superseded: return "superseded";
  }
  return "unknown";
}

bool is_shortage(ErrorCode code) noexcept {
  return code == ErrorCode::out_of_memory || code == ErrorCode::out_of_mappings ||
         code == ErrorCode::out_of_descriptors;
}

void throw_errno(const std::string& what, int error, ErrorCode otherwise) {
  throw Error(code_of(error, otherwise),
              fmt::format("{}: {} (errno {}){}", what, std::generic_category().message(error), error,
                          advice(error)),
              error, ErrorDomain::posix);
}

}  // namespace onecopy
