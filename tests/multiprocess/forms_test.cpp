// SPDX-License-Identifier: Apache-2.0
// One body in threads of one process, in forked processes and in spawned programs.
#include <gtest/gtest.h>

#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/eventually.h"
#include "support/numbers.h"
#include "support/peer_group.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Body;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::Form;
using testing::numbers;
using testing::Role;
using testing::run_peers;
using testing::set_element;

Tensor receive_form(Role& me, const char* from, Access access = Access::read_write) {
  return open(Handle::from_text(me.hear(from)), access);
}

class InEveryForm : public ::testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(Share, InEveryForm, ::testing::ValuesIn(testing::kForms),
                         [](const auto& form) { return testing::form_name(form.param); });

const Body lender("forms.lender", [](Role& me) {
  const Tensor tensor = numbers(1000);
  me.tell("borrower", share(tensor).to_text());
  EXPECT_EQ(me.hear("borrower"), "written");
  EXPECT_EQ(element(tensor, 7), 70);
});
const Body forms_borrower("forms.borrower", [](Role& me) {
  const Tensor tensor = receive_form(me, "lender");
  EXPECT_EQ(element(tensor, 999), 999);
  set_element<std::int64_t>(tensor, 7, 70);
  me.tell("lender", "written");
});
TEST_P(InEveryForm, WhatOneWritesTheOtherReads) {
  run_peers(GetParam(), {{"lender", &lender}, {"borrower", &forms_borrower}});
}

const Body generous("forms.generous", [](Role& me) {
  Tensor tensor = numbers(1000);
  me.tell("keeper", share(tensor).to_text());
  me.hear("keeper");
  tensor.release();
  for (int i = 0; i < 100; ++i) numbers(1000, 5);
  me.tell("keeper", "released");
  me.hear("keeper");
  EXPECT_TRUE(eventually([] { return stats().limbo == 0 && stats().live_blocks == 0; }));
});
const Body keeper("forms.keeper", [](Role& me) {
  Tensor tensor = receive_form(me, "generous");
  me.tell("generous", "opened");
  me.hear("generous");
  EXPECT_EQ(element(tensor, 999), 999);
  tensor.release();
  me.tell("generous", "released");
});
TEST_P(InEveryForm, WhatOneHoldsTheOtherCannotReuse) {
  run_peers(GetParam(), {{"generous", &generous}, {"keeper", &keeper}});
}

const Body forgetful("forms.forgetful", [](Role& me) {
  std::string text = share(numbers(10)).to_text();  // neither tensor nor handle is kept
  me.tell("late", text);
  me.hear("late");
});
const Body forms_late("forms.late", [](Role& me) {
  const std::string text = me.hear("forgetful");
  expect_refusal(ErrorCode::stale_handle, {"freed before the handle was opened", "keep the Handle object"},
                 [&] { open(Handle::from_text(text)); });
  me.tell("forgetful", "done");
});
TEST_P(InEveryForm, WhatNobodyKeptIsStale) {
  run_peers(GetParam(), {{"forgetful", &forgetful}, {"late", &forms_late}});
}

const Body forms_first("forms.first", [](Role& me) {
  Tensor tensor = numbers(1000);
  me.tell("middle", share(tensor).to_text());
  me.hear("middle");
  tensor.release();
  me.tell("middle", "released");
  me.hear("last");
  EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
});
const Body forms_middle("forms.middle", [](Role& me) {
  Tensor tensor = receive_form(me, "first");
  me.tell("first", "opened");
  me.hear("first");
  me.tell("last", share(tensor).to_text());
  me.hear("last");
});
const Body forms_last("forms.last", [](Role& me) {
  {
    const Tensor tensor = receive_form(me, "middle");
    EXPECT_EQ(element(tensor, 999), 999);
  }
  me.tell("middle", "done");
  me.tell("first", "done");
});
TEST_P(InEveryForm, ABorrowedTensorIsPassedOn) {
  run_peers(GetParam(), {{"first", &forms_first}, {"middle", &forms_middle}, {"last", &forms_last}});
}

const Body packer("forms.packer", [](Role& me) {
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < 300; ++i) tensors.emplace_back("layer." + std::to_string(i), numbers(i, i));
  Handle handle = share_bundle(tensors, std::as_bytes(std::span("structure")));
  tensors.clear();  // the bundle keeps them
  me.tell("unpacker", handle.to_text());
  me.hear("unpacker");
});
const Body unpacker("forms.unpacker", [](Role& me) {
  {
    const Bundle bundle = Bundle::open(Handle::from_text(me.hear("packer")));
    ASSERT_EQ(bundle.size(), 300u);
    for (std::size_t row = 1; row < bundle.size(); ++row) {
      const Tensor tensor = bundle.tensor(row);
      EXPECT_EQ(element(tensor, row - 1), static_cast<std::int64_t>(2 * row - 1));
    }
    EXPECT_EQ(bundle.structure().size(), sizeof "structure");
  }
  me.tell("packer", "done");
});
TEST_P(InEveryForm, ABundleOfHundredsIsOneMessage) {
  run_peers(GetParam(), {{"packer", &packer}, {"unpacker", &unpacker}});
}

}  // namespace
}  // namespace onecopy
