// SPDX-License-Identifier: Apache-2.0
// host PLUGIN...: loads the plug-ins into one process, and lets each open what each of them shares.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

struct Plugin {
  explicit Plugin(const char* path) : handle(dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
    if (!handle) std::printf("%s\n", dlerror()), std::exit(1);
  }
  template <class Function>
  Function* get(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle, name));
  }

  void* handle;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<Plugin> plugins;
  for (int i = 1; i < argc; ++i) plugins.emplace_back(argv[i]);
  int right = 0;
  for (const Plugin& owner : plugins)
    for (const Plugin& user : plugins) {
      const char* const text = owner.get<const char*(float)>("plugin_share")(7);
      const float seen = user.get<float(const char*, float)>("plugin_exchange")(text, 42);
      right +=
          seen == 7 && owner.get<float()>("plugin_read")() == 42 && user.get<bool()>("plugin_catches")();
    }
  std::printf("%zu plug-ins, %d pairs share memory\n", plugins.size(), right);
}
