// SPDX-License-Identifier: Apache-2.0
// A whole model travels as one handle; the other process looks tensors up by name, without a copy.
#include <onecopy/onecopy.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

onecopy::Tensor filled(const onecopy::Layout& layout, float value) {
  onecopy::Tensor tensor = onecopy::empty(layout);
  std::fill_n(tensor.as<float>(), layout.numel(), value);
  return tensor;
}

int engine(const char* handle) {
  const auto bundle = onecopy::Bundle::open(onecopy::Handle::from_text(handle));
  for (std::size_t row = 0; row < bundle.size(); ++row)
    std::printf("engine: %-14s %s\n", std::string(bundle.name(row)).c_str(),
                bundle.layout(row).str().c_str());
  const onecopy::Tensor bias = bundle.tensor(bundle.find("layer0.bias").value());
  bias.as<float>()[7] = -1;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2) return engine(argv[1]);
  using onecopy::DType;
  const std::vector<onecopy::NamedTensor> weights = {
      {"embedding", filled({DType::f32, {1000, 64}}, 0.5f)},
      {"layer0.weight", filled({DType::f32, {64, 64}}, 0.25f)},
      {"layer0.bias", filled({DType::f32, {64}}, 0)},
  };
  const onecopy::Handle handle = onecopy::share_bundle(weights);
  const std::string command = std::string(argv[0]) + " " + handle.to_text();
  if (std::system(command.c_str()) != 0) return 1;
  std::printf("trainer: bias[7] is now %g\n", weights[2].second.as<float>()[7]);
}
