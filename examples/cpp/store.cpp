// SPDX-License-Identifier: Apache-2.0
// A trainer publishes versions of its weights under a name, and an engine follows them at addresses that stay the same.
// Both use a store in a directory of their own, which is stopped at the end.
#include <onecopy/onecopy.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace store = onecopy::store;

namespace {

constexpr std::uint64_t kLast = 5;

void train() {
  store::Store weights = store::Store::connect();
  const std::vector<store::TensorSpec> specs{{"layer0.weight", {onecopy::DType::f32, {64, 64}}},
                                             {"layer0.bias", {onecopy::DType::f32, {64}}}};
  for (std::uint64_t step = 1; step <= kLast; ++step) {
    store::Draft draft = weights.draft("weights", specs);  // zeros, which readers do not see yet
    for (std::size_t row = 0; row < draft.size(); ++row)
      std::fill_n(draft.tensor(row).as<float>(), draft.layout(row).numel(), float(step));
    draft.publish();  // the version is there as a whole
  }
}

int serve() {
  store::Store weights = store::Store::connect();
  store::Watch watch = weights.watch("weights");
  watch.next(std::chrono::seconds(30)).value();
  store::Follower live = weights.follow("weights");
  const onecopy::Tensor bias = live.tensor(live.find("layer0.bias").value());
  const float* const values = bias.as<const float>();
  while (values[63] != float(kLast)) {
    watch.next(std::chrono::seconds(30)).value();
    live.update();  // no thread may use the tensors during this call
  }
  std::printf("the bias of the last version is %g\n", values[63]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return serve();
  char directory[] = "/tmp/onecopy-example-XXXXXX";
  setenv("ONECOPY_STORE_DIR", mkdtemp(directory), 1);  // not the store of your other programs
  const std::string command = std::string(argv[0]) + " serve";
  std::thread engine([&] { std::system(command.c_str()); });
  train();
  engine.join();
  store::Store::connect().stop();
  std::filesystem::remove_all(directory);
}
