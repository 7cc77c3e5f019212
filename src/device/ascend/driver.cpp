// SPDX-License-Identifier: Apache-2.0
#include "driver.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdlib>
#include <vector>

#include "onecopy/core/error.h"
#include "os/fork_hook.h"
#include "os/shared_library.h"

namespace onecopy::ascend {

namespace {

constexpr const char* kOldestCann = "8.3.RC1";
constexpr const char* kOldestDriver = "25.3.RC1";  // Ascend HDK

ErrorCode code_of(aclError result) noexcept {
  switch (result) {
    case ACL_ERROR_INVALID_PARAM:
    case ACL_ERROR_RT_PARAM_INVALID:
    case ACL_ERROR_RT_INVALID_DEVICEID:
    case ACL_ERROR_RT_ADDR_UNALIGNED: return ErrorCode::invalid_argument;
    case ACL_ERROR_RT_MEMORY_ALLOCATION:
    case ACL_ERROR_RT_DEVICE_OOM: return ErrorCode::out_of_memory;
    case ACL_ERROR_UNINITIALIZE:
    case ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT:
    case ACL_ERROR_RT_FEATURE_NOT_SUPPORT:
    case ACL_ERROR_RT_NO_DEVICE: return ErrorCode::unsupported;
    default: return ErrorCode::system;
  }
}

/// Returns the advice of an error message; empty if the runtime's own message suffices.
const char* advice(aclError result) noexcept {
  switch (result) {
    case ACL_ERROR_RT_NO_DEVICE:
      return "; is ASCEND_RT_VISIBLE_DEVICES set to something that is not there?";
    case ACL_ERROR_RT_FEATURE_NOT_SUPPORT:
      return "; this chip, a virtual one, or its driver does not support it: a newer driver may help";
    case ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT: return "; do this before the capture begins";
    case ACL_ERROR_RT_NO_PERMISSION:
      return "; the device files belong to another group: is this user in HwHiAiUser's?";
    default: return "";
  }
}

/// Returns the runs of digits and letters between dots and dashes, in lower case.
std::vector<std::string> parts_of(const std::string& version) {
  std::vector<std::string> parts(1);
  for (const char c : version) {
    if (c == '.' || c == '-') parts.emplace_back();
    else parts.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return parts;
}

/// Returns a number for the part. A candidate counts from below zero, so that it comes before the release, whose part
/// is missing or a number.
int rank_of(const std::vector<std::string>& parts, std::size_t at) {
  if (at >= parts.size()) return 0;
  const std::string& part = parts[at];
  const std::size_t digits = part.find_first_of("0123456789");
  const int number = digits == std::string::npos ? 0 : std::atoi(part.c_str() + digits);
  return digits == 0 ? number : number - 100'000;
}

/// Returns the names of the library. Tests can name another library by ONECOPY_ASCEND_RUNTIME.
std::vector<std::string> library_names() {
  const char* chosen = std::getenv("ONECOPY_ASCEND_RUNTIME");
  if (chosen && *chosen) return {chosen};
  return {"libascendcl.so", "libacl_rt.so"};
}

const ForkHook kDriverAtFork{ForkRank::devices, {.in_child = &Driver::note_fork}};

}  // namespace

bool is_older(const std::string& version, const std::string& than) {
  const auto one = parts_of(version);
  const auto other = parts_of(than);
  if (one[0].empty() || std::isdigit(static_cast<unsigned char>(one[0][0])) == 0) return false;
  for (std::size_t i = 0; i < other.size(); ++i)  // the remaining parts name a build of that version
    if (rank_of(one, i) != rank_of(other, i)) return rank_of(one, i) < rank_of(other, i);
  return false;
}

bool is_final(aclError result) noexcept {
  switch (result) {
    case ACL_ERROR_RT_LOST_HEARTBEAT:
    case ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR:
    case ACL_ERROR_RT_SOCKET_CLOSE: return true;
    default: return false;
  }
}

void throw_result(aclError result, const std::string& what) {
  const Driver* driver = Driver::try_get();
  const std::string words = driver ? driver->describe(result) : fmt::format("ACL error {}", result);
  throw Error(code_of(result), fmt::format("{} failed with {}{}", what, words, advice(result)), result,
              ErrorDomain::ascend);
}

void Vendor::throw_missing(const char* call, int) {
  throw Error(
      ErrorCode::unsupported,
      fmt::format("the ACL runtime does not have {}; onecopy needs CANN {} or newer", call, kOldestCann),
      ACL_ERROR_RT_FEATURE_NOT_SUPPORT, ErrorDomain::ascend);
}

bool Driver::is_in_process() noexcept { return if_loaded() || SharedLibrary::is_loaded(library_names()); }

Driver::Driver() {
  std::string why;
  auto library = SharedLibrary::open(library_names(), &why);
  if (!library) {
    problem_ =
        fmt::format("there is no ACL runtime on this machine: tried {}; source CANN's set_env.sh", why);
    return;
  }
#define BIND(CALL, PARAMETERS) CALL.bind(library->symbol(#CALL));
  ONECOPY_ACL_CALLS(BIND)
#undef BIND
  get_soc_name_ = reinterpret_cast<GetSocName*>(library->symbol("aclrtGetSocName"));
  get_message_ = reinterpret_cast<GetRecentErrMsg*>(library->symbol("aclGetRecentErrMsg"));
  if (!aclInit || !aclrtSetDevice || !aclrtGetDeviceCount) {
    problem_ =
        fmt::format("{} lacks aclInit, aclrtSetDevice or aclrtGetDeviceCount: it is not the ACL runtime",
                    library->name());
    return;
  }
  check_version(ACL_PKG_NAME_CANN, "CANN", kOldestCann);
  if (problem_.empty()) check_version(ACL_PKG_NAME_DRIVER, "the Ascend driver (HDK)", kOldestDriver);
  if (!problem_.empty()) return;
  result_ = aclInit(nullptr);
  if (result_ == ACL_ERROR_REPEAT_INITIALIZE) result_ = ACL_SUCCESS;  // a framework has initialised it
  if (result_ != ACL_SUCCESS)
    problem_ = fmt::format("aclInit failed with {}{}; check with npu-smi info", describe(result_),
                           advice(result_));
}

/// Checks a version. An unknown version (a container without version.info) is not an error: missing calls are reported
/// one by one.
void Driver::check_version(int package, const char* name, const char* oldest) {
  aclCANNPackageVersion found{};
  if (!aclsysGetCANNVersion || aclsysGetCANNVersion(package, &found) != ACL_SUCCESS) return;
  found.version[sizeof found.version - 1] = '\0';
  if (!is_older(found.version, oldest)) return;
  problem_ = fmt::format("{} is of version {}; onecopy needs {} or newer", name, found.version, oldest);
  result_ = ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
}

std::string Driver::chip() const {
  const char* name = get_soc_name_ ? get_soc_name_() : nullptr;
  return name ? name : "";
}

std::string Driver::describe(aclError result) const {
  const char* text = get_message_ ? get_message_() : nullptr;
  if (!text || !*text) return fmt::format("ACL error {}", result);
  return fmt::format("ACL error {}: {}", result, text);
}

bool Driver::has_virtual_memory() const noexcept {
  return aclrtMallocPhysical && aclrtFreePhysical && aclrtReserveMemAddress && aclrtReleaseMemAddress &&
         aclrtMapMem && aclrtUnmapMem && aclrtMemExportToShareableHandle &&
         aclrtMemImportFromShareableHandle && aclrtMemSetPidToShareableHandle;
}

}  // namespace onecopy::ascend
