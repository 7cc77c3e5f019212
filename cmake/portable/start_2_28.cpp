// SPDX-License-Identifier: Apache-2.0
// As glibc_2_28.cpp, for a program's start: the startup code of glibc 2.34 leaves it to __libc_start_main to run the
// constructors of the program, which an older one expects to be given as a function.

// NOLINTBEGIN(bugprone-reserved-identifier): the linker makes these names
asm(".symver older_libc_start_main, __libc_start_main@GLIBC_2.2.5");

extern "C" {

using Main = int (*)(int, char**, char**);
using Constructor = void (*)(int, char**, char**);

extern Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor __init_array_end[] __attribute__((visibility("hidden")));

int older_libc_start_main(Main, int, char**, Constructor init, void (*fini)(), void (*loader_fini)(),
                          void* stack_end);

static void run_constructors(int count, char** arguments, char** environment) {
  for (Constructor* each = __init_array_start; each != __init_array_end; ++each)
    (*each)(count, arguments, environment);
}

int __wrap___libc_start_main(Main main, int count, char** arguments, Constructor, void (*fini)(),
                             void (*loader_fini)(), void* stack_end) {
  return older_libc_start_main(main, count, arguments, run_constructors, fini, loader_fini, stack_end);
}
}
// NOLINTEND(bugprone-reserved-identifier)
