// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucp.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/throw_error.h"
#include "os/shared_library.h"

namespace onecopy::ucx {
namespace {

constexpr std::pair<unsigned, unsigned> kOldest{1, 17};

[[noreturn]] void throw_unusable(const std::string& why) {
  throw_error(ErrorCode::unsupported,
              "this needs UCX {}.{} or later ({}): install libucx-cu13 (pip), "
              "libucx0 (Debian and Ubuntu) or ucx (Fedora, RHEL), or name its libucp.so.0 in "
              "ONECOPY_UCX_LIBRARY",
              kOldest.first, kOldest.second, why);
}

/// Returns the library of the wheel: beside this package, or where the Python beside this program keeps packages.
std::vector<std::string> in_wheel() {
  constexpr std::string_view kLibrary = "libucx/lib/libucp.so.0";
  Dl_info here{};
  if (::dladdr(reinterpret_cast<const void*>(&in_wheel), &here) == 0 || !here.dli_fname) return {};
  const std::string path = here.dli_fname;
  if (const auto end = path.rfind("/onecopy/"); end != std::string::npos)
    return {fmt::format("{}/{}", path.substr(0, end), kLibrary)};
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
  std::vector<std::string> found;
  for (const auto& entry :
       std::filesystem::directory_iterator(program.parent_path().parent_path() / "lib", none))
    if (entry.path().filename().string().starts_with("python3"))
      found.push_back(entry.path() / "site-packages" / kLibrary);
  return found;
}

}  // namespace

std::vector<std::string> Library::usual_names() {
  const char* const chosen = std::getenv("ONECOPY_UCX_LIBRARY");
  if (chosen && *chosen) return {chosen};
  std::vector<std::string> names = in_wheel();
  names.insert(names.begin(), "libucp.so.0");
  return names;
}

const Library& Library::get() {
  static const Library& made = *new Library(usual_names());  // threads use it until the process has ended
  return made;
}

// NOLINTNEXTLINE(readability-function-size): two statements for each call
Library::Library(const std::vector<std::string>& names) {
  std::string why;
  const auto library = SharedLibrary::open(names, &why);
  if (!library) throw_unusable(why);
  path_ = library->name();
// NOLINTBEGIN(bugprone-macro-parentheses): the names of members
#define BIND(CALL, RESULT, PARAMETERS)                                   \
  CALL = reinterpret_cast<RESULT(*) PARAMETERS>(library->symbol(#CALL)); \
  if (!CALL) throw_unusable(fmt::format("{} has no {}", library->name(), #CALL));
  ONECOPY_UCP_CALLS(BIND)
#undef BIND
  // NOLINTEND(bugprone-macro-parentheses)
  std::pair<unsigned, unsigned> has;
  unsigned release = 0;
  ucp_get_version(&has.first, &has.second, &release);
  if (has < kOldest) throw_unusable(fmt::format("{} is {}", library->name(), version()));
}

void Library::must(ucs_status_t status, const char* call) const {
  if (status < 0) throw_error(ErrorCode::system, "{} of UCX failed: {}", call, ucs_status_string(status));
}

}  // namespace onecopy::ucx
