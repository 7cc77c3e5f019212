// SPDX-License-Identifier: Apache-2.0
// Two processes, one tensor: all that a user of the installed package needs.
#include <onecopy/share/share.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

int main() {
  onecopy::Tensor tensor = onecopy::empty({onecopy::DType::i32, {4}});
  tensor.as<int>()[3] = 42;
  const std::string text = onecopy::share(tensor).to_text();
  if (fork() == 0) {
    const onecopy::Tensor seen = onecopy::open(onecopy::Handle::from_text(text));
    std::printf("the child read %d\n", seen.as<int>()[3]);
    std::fflush(stdout);
    _exit(0);
  }
  int status = 1;
  wait(&status);
  return status;
}
