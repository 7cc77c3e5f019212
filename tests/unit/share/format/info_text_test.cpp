// SPDX-License-Identifier: Apache-2.0
#include "share/format/info_text.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::expect_refusal;

OwnerInfo sample() {
  OwnerInfo info;
  info.pid = 4711;
  info.name = "trainer";
  info.socket = "0123456789abcdef0123456789abcdef";
  info.stats.shared_total = ~std::uint64_t{0};
  info.stats.limbo = 3;
  info.stats.bytes_shared = std::uint64_t{1} << 40;
  info.stats.descriptors = 17;
  info.devices = {{"cpu", "", 1, 4096}, {"npu:1", "53494d75-6c61", 2, std::uint64_t{1} << 33}};
  info.borrowers = {{12, "engine", 200}, {13, "", 0}};
  info.in_transit = {{5, 1.5, "queue 7"}, {1, 0, "handle"}};
  info.groups = {{"worker0", 3, 2, 1, {}, 5}};
  info.groups[0].peers = {{"worker1", 4, 4712, "open", 2, 2, 9, 7, 8, {{"copy", 3}, {"inline", 1}}}};
  info.arenas = {{"cuda:0", std::uint64_t{96} << 20, 4096, std::uint64_t{1} << 31, 36, true}};
  return info;
}

TEST(InfoText, SurvivesTheRoundTrip) {
  const OwnerInfo info = sample();
  const OwnerInfo again = owner_from_json(to_json(info));
  EXPECT_EQ(again.pid, info.pid);
  EXPECT_EQ(again.name, info.name);
  EXPECT_EQ(again.socket, info.socket);
  EXPECT_EQ(again.stats.shared_total, info.stats.shared_total);
  EXPECT_EQ(again.stats.limbo, 3u);
  EXPECT_EQ(again.stats.bytes_shared, info.stats.bytes_shared);
  EXPECT_EQ(again.stats.descriptors, 17u);
  ASSERT_EQ(again.devices.size(), 2u);
  EXPECT_EQ(again.devices[1].device, "npu:1");
  EXPECT_EQ(again.devices[1].uuid, "53494d75-6c61");
  EXPECT_EQ(again.devices[1].segments, 2u);
  EXPECT_EQ(again.devices[1].bytes, std::uint64_t{1} << 33);
  ASSERT_EQ(again.borrowers.size(), 2u);
  EXPECT_EQ(again.borrowers[0].name, "engine");
  EXPECT_EQ(again.borrowers[0].claims, 200u);
  ASSERT_EQ(again.in_transit.size(), 2u);
  EXPECT_EQ(again.in_transit[0].age_seconds, 1.5);
  EXPECT_EQ(again.in_transit[0].where, "queue 7");
  ASSERT_EQ(again.groups.size(), 1u);
  EXPECT_EQ(again.groups[0].name, "worker0");
  EXPECT_EQ(again.groups[0].unlisted, 5u);
  ASSERT_EQ(again.groups[0].peers.size(), 1u);
  EXPECT_EQ(again.groups[0].peers[0].state, "open");
  EXPECT_EQ(again.groups[0].peers[0].served, 8u);
  EXPECT_EQ(again.groups[0].peers[0].routes, info.groups[0].peers[0].routes);
  ASSERT_EQ(again.arenas.size(), 1u);
  EXPECT_EQ(again.arenas[0].device, "cuda:0");
  EXPECT_EQ(again.arenas[0].shared, std::uint64_t{96} << 20);
  EXPECT_EQ(again.arenas[0].windows, 36u);
  EXPECT_TRUE(again.arenas[0].parked);
  EXPECT_EQ(to_json(again), to_json(info));
}

TEST(InfoText, OfOtherReleasesIsReadAsFarAsItGoes) {
  const OwnerInfo info = owner_from_json(R"({"pid":7,"stats":{"limbo":2,"moon_phase":1},"new":[1]})");
  EXPECT_EQ(info.pid, 7);
  EXPECT_EQ(info.stats.limbo, 2u);
  EXPECT_EQ(info.stats.live_blocks, 0u);
  EXPECT_TRUE(info.devices.empty());
  EXPECT_TRUE(info.borrowers.empty());
  EXPECT_EQ(owner_from_json("{}").pid, 0);
}

TEST(InfoText, AProcessMayCallItselfAnything) {
  OwnerInfo info = sample();
  info.name = "a\"b\\\n\xff\xfe";
  EXPECT_EQ(owner_from_json(to_json(info)).name, "a\"b\\\n\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(InfoText, WhatIsNotADescriptionIsRefused) {
  for (const char* text :
       {"", "{", "nonsense", "[]", "7", "{\"pid\":\"x\"}", "{\"pid\":1,\"stats\":7}", "{\"borrowers\":[1]}",
        "{\"devices\":[1]}", "{\"groups\":[1]}", "{\"groups\":[{\"peers\":[{\"routes\":[1]}]}]}",
        "{\"arenas\":[1]}", "{\"arenas\":[{\"parked\":1}]}", "{\"stats\":{\"limbo\":\"many\"}}",
        "{\"pid\":1}x"})
    expect_refusal(ErrorCode::protocol, {"unknown way"}, [&] { owner_from_json(text); });
}

// Each of these became some number, or the end of a process built with sanitizers.
TEST(InfoText, OnlyAnIntegerThatFitsIsTakenForOne) {
  for (const char* text : {R"({"pid":1e99})", R"({"pid":9999999999})", R"({"pid":-1})", R"({"pid":true})",
                           R"({"pid":1.0})", R"({"stats":{"limbo":-1.5}})", R"({"stats":{"limbo":1e30}})",
                           R"({"stats":{"limbo":-1}})", R"({"devices":[{"bytes":1e99}]})",
                           R"({"borrowers":[{"pid":1e10}]})", R"({"transit":[{"blocks":0.5}]})",
                           R"({"transit":[{"age_seconds":1e300}]})", R"({"transit":[{"age_seconds":-1}]})"})
    expect_refusal(ErrorCode::protocol, {"unknown way"}, [&] { owner_from_json(text); });
}

TEST(InfoText, BracketsInNamesAreNoNesting) {
  OwnerInfo info = sample();
  info.name = R"([[[[[[[[[[[[{{{{{{{{{"\")" + std::string(20, '[');
  EXPECT_EQ(owner_from_json(to_json(info)).name, info.name);
}

TEST(InfoText, DeepNestingIsNoCrash) {
  const std::string open(200'000, '['), close(200'000, ']');
  for (const std::string& text : {open, open + close, R"({"stats":)" + open + close + "}"})
    expect_refusal(ErrorCode::protocol, {"unknown way"}, [&] { owner_from_json(text); });
}

}  // namespace
}  // namespace onecopy
