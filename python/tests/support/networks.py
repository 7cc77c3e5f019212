# SPDX-License-Identifier: Apache-2.0
"""Hosts of a test: network namespaces, each of which has a cable to each other one."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess


def obstacle() -> str | None:
    """Returns why this machine cannot make network namespaces, or None."""
    if os.geteuid() != 0:
        return "wants to be root, who may make network namespaces"
    if not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        return "wants ip of iproute2, and nsenter and unshare of util-linux"
    made = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "ocpytry0", "type", "veth", "peer", "name", "ocpytry1"],
        capture_output=True,
    )
    return "wants a kernel and a container that let it make network namespaces" if made.returncode else None


class Networks:
    """Network namespaces that are connected with each other. ``close()`` ends them."""

    def __init__(self, count: int) -> None:
        self.holders = [
            subprocess.Popen(
                ["unshare", "-n", "sh", "-c", "ip link set lo up && echo there; exec sleep 1000"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(count)
        ]
        self.has_own_addresses = False
        for holder in self.holders:
            assert holder.stdout and holder.stdout.readline() == "there\n"
        for one, other in itertools.combinations(range(count), 2):
            ends = [(one, f"to{other}"), (other, f"to{one}")]
            cable = f"ip link add {ends[0][1]} type veth peer name {ends[1][1]} netns {self.holders[other].pid}"
            self._run(one, *cable.split())
            for host, name in ends:
                self._run(host, "ip", "addr", "add", f"{self.address(host, one + other - host)}/24", "dev", name)
                self._run(host, "ip", "link", "set", name, "up")

    def enter(self, host: int) -> list[str]:
        """Returns the beginning of a command that runs on the host."""
        return ["nsenter", "-t", str(self.holders[host].pid), "-n"]

    def address(self, host: int, of: int) -> str:
        """Returns the address of the host at its cable to the host ``of``."""
        return f"10.213.{16 * min(host, of) + max(host, of)}.{host + 1}"

    def own_address(self, host: int) -> str:
        """Returns an address of the host that is the same at all its cables."""
        return f"10.214.0.{host + 1}"

    def give_own_addresses(self) -> None:
        for host in range(len(self.holders)):
            self._run(host, "ip", "addr", "add", f"{self.own_address(host)}/32", "dev", "lo")
            for other in range(len(self.holders)):
                if other != host:
                    self._route(host, other)
        self.has_own_addresses = True

    def cut(self, one: int, other: int) -> None:
        self._run(one, "ip", "link", "set", f"to{other}", "down")

    def mend(self, one: int, other: int) -> None:
        self._run(one, "ip", "link", "set", f"to{other}", "up")
        if self.has_own_addresses:  # a cut removes the way to them at one end
            self._route(one, other)

    def close(self) -> None:
        for holder in self.holders:
            holder.kill()
            holder.wait()
            if holder.stdout:
                holder.stdout.close()

    def _route(self, host: int, other: int) -> None:
        via = ["via", self.address(other, host), "src", self.own_address(host)]
        self._run(host, "ip", "route", "add", f"{self.own_address(other)}/32", *via)

    def _run(self, host: int, *command: str) -> None:
        subprocess.run([*self.enter(host), *command], check=True)
