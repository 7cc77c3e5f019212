// SPDX-License-Identifier: Apache-2.0
#include "os/cgroup_owner.h"

#include <gtest/gtest.h>

namespace onecopy {
namespace {

const std::string kId(64, 'a');
const std::string kContainer = "the container " + kId.substr(0, 12);

TEST(CgroupOwner, NamesTheInnermostUnitContainerOrJob) {
  EXPECT_EQ(owner_of_cgroup("0::/user.slice/user-1000.slice/session-3.scope\n"),
            "the login session-3.scope");
  EXPECT_EQ(owner_of_cgroup("0::/system.slice/ssh.service\n"), "the unit ssh.service");
  EXPECT_EQ(owner_of_cgroup("0::/user.slice/user-1000.slice/user@1000.service/app.slice/train.service\n"),
            "the unit train.service");
  EXPECT_EQ(owner_of_cgroup("0::/system.slice/docker-" + kId + ".scope\n"), kContainer);
  EXPECT_EQ(owner_of_cgroup("12:pids:/docker/" + kId + "\n0::/\n"), kContainer);
  EXPECT_EQ(owner_of_cgroup("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" + kId + ".scope\n"),
            kContainer);
  EXPECT_EQ(owner_of_cgroup("5:memory:/slurm/uid_1000/job_42/step_0/task_1\n"), "the job 42 of Slurm");
}

TEST(CgroupOwner, NamesNothingForAUnitOfTheStoresOwnAndForTheRoot) {
  EXPECT_EQ(owner_of_cgroup("0::/user.slice/user@1000.service/app.slice/onecopy-store-7.scope\n"), "");
  EXPECT_EQ(owner_of_cgroup("0::/user.slice/user@1000.service/app.slice/onecopy-store.service\n"), "");
  EXPECT_EQ(owner_of_cgroup("0::/init.scope\n"), "");
  EXPECT_EQ(owner_of_cgroup("1:cpu:/\n0::/\n"), "");
  EXPECT_EQ(owner_of_cgroup(""), "");
}

}  // namespace
}  // namespace onecopy
