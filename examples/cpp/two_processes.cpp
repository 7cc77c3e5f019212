// SPDX-License-Identifier: Apache-2.0
#include <onecopy/onecopy.h>

#include <cstdio>
#include <cstdlib>
#include <string>

int main(int argc, char** argv) {
  if (argc == 2) {  // the second process: given the text of a handle, it has the same memory
    onecopy::open(onecopy::Handle::from_text(argv[1])).as<float>()[0] = 42;
    return 0;
  }
  onecopy::Tensor weights = onecopy::empty({onecopy::DType::f32, {1024, 1024}});
  weights.as<float>()[0] = 1;
  const std::string command = argv[0] + (" " + onecopy::share(weights).to_text());
  if (std::system(command.c_str()) != 0) return 1;
  std::printf("weights[0] is now %g\n", weights.as<float>()[0]);
}
