// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "simulators/ascend/extra_calls.h"
#include "support/child.h"

namespace onecopy::testing {

/// The functions of the simulator, or of the real runtime that ONECOPY_ASCEND_RUNTIME names, as a program calls them.
class AclCalls {
 public:
  AclCalls() : library_(::dlopen(std::getenv("ONECOPY_ASCEND_RUNTIME"), RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) throw std::runtime_error(::dlerror());
#define BIND(CALL, PARAMETERS) CALL = reinterpret_cast<decltype(CALL)>(::dlsym(library_, #CALL));
    ONECOPY_ACL_CALLS(BIND)
    ONECOPY_ACL_EXTRA_CALLS(BIND)
#undef BIND
    sim_fail = reinterpret_cast<decltype(sim_fail)>(::dlsym(library_, "sim_fail"));
    sim_unordered = reinterpret_cast<decltype(sim_unordered)>(::dlsym(library_, "sim_unordered"));
  }

  /// Initialises the runtime, and makes the device current.
  explicit AclCalls(int ordinal) : AclCalls() { use(ordinal); }

#define MEMBER(CALL, PARAMETERS) ascend::aclError(*CALL) PARAMETERS = nullptr;
  // onecopy::ascend uses the names of acl/acl_rt.h.
  using aclError = ascend::aclError;
  using aclrtStream = ascend::aclrtStream;
  using aclrtEvent = ascend::aclrtEvent;
  using aclrtContext = ascend::aclrtContext;
  using aclrtDrvMemHandle = ascend::aclrtDrvMemHandle;
  using aclmdlRI = ascend::aclmdlRI;
  using aclrtHostFunc = ascend::aclrtHostFunc;
  using aclrtUuid = ascend::aclrtUuid;
  using aclrtMemLocation = ascend::aclrtMemLocation;
  using aclrtPhysicalMemProp = ascend::aclrtPhysicalMemProp;
  using aclrtMemAccessDesc = ascend::aclrtMemAccessDesc;
  using aclrtPtrAttributes = ascend::aclrtPtrAttributes;
  using aclrtIpcEventHandle = ascend::aclrtIpcEventHandle;
  using aclCANNPackageVersion = ascend::aclCANNPackageVersion;
  ONECOPY_ACL_CALLS(MEMBER)
  ONECOPY_ACL_EXTRA_CALLS(MEMBER)
#undef MEMBER
  void (*sim_fail)(const char*, int, int, int) = nullptr;
  std::size_t (*sim_unordered)() = nullptr;

  /// Initialises, and makes the device current.
  void use(int ordinal) const {
    const aclError result = aclInit(nullptr);
    EXPECT_TRUE(result == ascend::ACL_SUCCESS || result == ascend::ACL_ERROR_REPEAT_INITIALIZE) << result;
    EXPECT_EQ(aclrtSetDevice(ordinal), ascend::ACL_SUCCESS);
  }
  void* memory(std::size_t bytes) const {
    void* at = nullptr;
    EXPECT_EQ(aclrtMalloc(&at, bytes, ascend::ACL_MEM_MALLOC_HUGE_ONLY), ascend::ACL_SUCCESS);
    return at;
  }
  static aclrtPhysicalMemProp physical(int ordinal) {
    aclrtPhysicalMemProp prop{};
    prop.memAttr = ascend::ACL_HBM_MEM_HUGE;
    prop.location = {static_cast<std::uint32_t>(ordinal), ascend::ACL_MEM_LOCATION_TYPE_DEVICE};
    return prop;
  }
  aclrtDrvMemHandle chunk(std::size_t bytes, int ordinal) const {
    aclrtDrvMemHandle made = nullptr;
    const aclrtPhysicalMemProp prop = physical(ordinal);
    EXPECT_EQ(aclrtMallocPhysical(&made, bytes, &prop, 0), ascend::ACL_SUCCESS);
    return made;
  }
  void* map(aclrtDrvMemHandle chunk, std::size_t bytes) const {
    void* at = nullptr;
    EXPECT_EQ(aclrtReserveMemAddress(&at, bytes, 0, nullptr, 0), ascend::ACL_SUCCESS);
    EXPECT_EQ(aclrtMapMem(at, bytes, 0, chunk, 0), ascend::ACL_SUCCESS);
    return at;
  }
  aclrtStream stream() const {
    aclrtStream made = nullptr;
    EXPECT_EQ(aclrtCreateStream(&made), ascend::ACL_SUCCESS);
    return made;
  }
  int read(const void* at) const {
    unsigned char value = 0;
    EXPECT_EQ(aclrtMemcpy(&value, 1, at, 1, ascend::ACL_MEMCPY_DEVICE_TO_HOST), ascend::ACL_SUCCESS);
    return value;
  }
  void write(void* at, unsigned char value) const {
    EXPECT_EQ(aclrtMemcpy(at, 1, &value, 1, ascend::ACL_MEMCPY_HOST_TO_DEVICE), ascend::ACL_SUCCESS);
  }

 private:
  void* library_;
};

/// Runs a test in a child process with environment variables set, since the runtime is initialised once, and cannot be
/// used by children that are forked later.
inline void in_npu_child(const std::vector<std::pair<const char*, std::string>>& variables,
                         const std::function<void()>& body) {
  Child child([&] {
    for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
    body();
  });
  EXPECT_EQ(child.join(), 0);
}

/// A copy of the simulator without one of its functions, like an older runtime.
class RuntimeWithout {
 public:
  explicit RuntimeWithout(const std::string& call) {
    std::string pattern = "/tmp/runtime-without-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    std::ifstream from(std::getenv("ONECOPY_ASCEND_RUNTIME"), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(from)), {});
    const std::string name = '\0' + call + '\0';
    for (auto at = bytes.find(name); at != std::string::npos; at = bytes.find(name, at))
      bytes[at + 1] = '-';
    std::ofstream(path(), std::ios::binary) << bytes;
  }
  RuntimeWithout(const RuntimeWithout&) = delete;
  RuntimeWithout& operator=(const RuntimeWithout&) = delete;
  ~RuntimeWithout() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path() const { return folder_ + "/libascendcl.so"; }

 private:
  std::string folder_;
};

inline bool is_simulated_ascend() {
  const char* runtime = std::getenv("ONECOPY_ASCEND_RUNTIME");
  return runtime && std::string(runtime).find("simulators") != std::string::npos;
}

}  // namespace onecopy::testing
