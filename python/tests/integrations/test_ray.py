# SPDX-License-Identifier: Apache-2.0
"""onecopy.integrations.ray with Ray itself: actors of one machine, on one copy of their tensors."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

# One Ray for all tests, since starting it takes as long as all of them. It prints one line of json.
PROGRAM = """
import json, os, signal, sys, time
import ray, torch
import onecopy
import onecopy.integrations.ray

onecopy.integrations.ray.register()
onecopy.integrations.ray.register()  # twice is once


@ray.remote(num_cpus=0)
class Actor:
    @ray.method(tensor_transport="onecopy")
    def make(self, number, size=1000):
        self.made = torch.full((size,), float(number))
        return {"tensor": self.made, "twice": [self.made, self.made[1:3]], "none": None}

    @ray.method(tensor_transport="onecopy")
    def nothing(self):
        return []

    def first_of_made(self):
        return self.made[0].item()

    def keep(self, value):
        self.kept = value
        return self.kept["tensor"].sum().item(), self.kept["twice"][1].tolist(), onecopy.stats()["leases"] > 0

    def write(self, number):
        self.kept["tensor"].fill_(number)

    def sum_of_kept(self):
        return self.kept["tensor"].sum().item()

    def drop(self):
        del self.made

    def look(self, value):
        return value["tensor"][0].item()

    def live_bytes(self):
        import gc
        gc.collect()
        onecopy.collect()
        return onecopy.stats()["live_bytes"]

    def pid(self):
        return os.getpid()


def kill(actor):
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)


def until(question, patience=60):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if (answer := question()):
            return answer
        time.sleep(0.05)
    return question()


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
a, b = Actor.remote(), Actor.remote()
say = {}

# b opens what a has made, and writes it
made = a.make.remote(2)
say["kept"] = ray.get(b.keep.remote(made))
ray.get(b.write.remote(7))
say["seen by the maker"] = ray.get(a.first_of_made.remote())

# and the other way round
say["the other way"] = ray.get(a.keep.remote(b.make.remote(3)))
ray.get(a.write.remote(8))
say["seen by the other"] = ray.get(b.first_of_made.remote())

# the driver
here = ray.get(a.make.remote(4))
here["tensor"].fill_(9)
say["driver"] = ray.get(a.first_of_made.remote())
say["views of one memory"] = here["twice"][0].data_ptr() + 4 == here["twice"][1].data_ptr()
say["nothing"] = ray.get(a.nothing.remote())
del here

# a block without a reference is freed
big = Actor.remote()
made = big.make.remote(1, 1 << 20)
ray.get(b.look.remote(made))
say["while it is referred to"] = ray.get(big.live_bytes.remote())
ray.get(big.drop.remote())
del made
say["afterwards"] = until(lambda: ray.get(big.live_bytes.remote()) < 1 << 20)

# the source is killed after and before it was opened
made = a.make.remote(5)
ray.get(b.keep.remote(made))
kill(a)
say["source killed after"] = ray.get(b.sum_of_kept.remote())
c = Actor.remote()
made = c.make.remote(6)
ray.wait([made])
kill(c)
try:
    say["source killed before"] = ray.get(b.keep.remote(made), timeout=60)
except Exception as error:
    say["source killed before"] = type(error).__name__
say["the receiver lives"] = ray.get(b.sum_of_kept.remote())

ray.shutdown()
print(json.dumps(say))
"""


@pytest.fixture(scope="module")
def said():
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=280, env=environment
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_an_actor_opens_what_another_has_made(said):
    assert said["kept"] == [2000, [2, 2], True]
    assert said["seen by the maker"] == 7


def test_it_works_in_both_directions(said):
    assert said["the other way"] == [3000, [3, 3], True]
    assert said["seen by the other"] == 8


def test_the_driver_opens_it_too(said):
    assert said["driver"] == 9 and said["views of one memory"] and said["nothing"] == []


def test_memory_that_no_reference_names_is_freed(said):
    assert said["while it is referred to"] >= 4 << 20
    assert said["afterwards"] is True


def test_a_source_that_is_killed_after_it_was_opened_takes_nothing_away(said):
    assert said["source killed after"] == 5000 == said["the receiver lives"]


def test_a_source_that_is_killed_before_is_an_error_of_ray(said):
    assert "Error" in said["source killed before"]


# Actors that open one model from the store, beside actors that get it from Ray's object store. It prints one line of json.
STORE_PROGRAM = """
import json, os, re, signal, sys, time
import ray, torch
import onecopy

MODEL = {f"layer.{number}": torch.full((1 << 20,), float(number)) for number in range(16)}  # 64 MiB


class Actor:
    def __init__(self, reference=None):
        import torch  # before anything is measured

        before, start = self.private(), time.perf_counter()
        weights = ray.get(reference[0]) if reference else onecopy.store.connect(framework="torch").open("model")
        self.sum = sum(weights[name].sum().item() for name in weights)
        self.seconds, self.bytes = time.perf_counter() - start, self.private() - before
        self.weights = weights

    def private(self):  # memory that no other process can map
        return 1024 * int(re.search(r"Anonymous: +(\\d+)", open("/proc/self/smaps_rollup").read())[1])

    def look(self):
        return {"pid": os.getpid(), "sum": self.sum, "seconds": self.seconds, "bytes": self.bytes}


def start():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return ray.remote(num_cpus=0)(Actor)


say = {"sum": float(sum(tensor.sum() for tensor in MODEL.values()))}
store = onecopy.store.connect()
store.publish("model", MODEL)
Remote = start()
reference = ray.put(MODEL)
say["ray"] = ray.get([Remote.remote([reference]).look.remote() for _ in range(2)])
engines = [Remote.options(max_restarts=1, max_task_retries=1).remote() for _ in range(4)]
say["store"] = ray.get([engine.look.remote() for engine in engines])
os.kill(say["store"][0]["pid"], signal.SIGKILL)
say["restarted actor"] = ray.get(engines[0].look.remote())

ray.shutdown()  # the node's processes and its object store end
engine = start().remote()
say["restarted node"] = ray.get(engine.look.remote())
ray.shutdown()
store.stop()
print(json.dumps(say))
"""


@pytest.fixture(scope="module")
def said_of_store(tmp_path_factory):
    store = str(tmp_path_factory.mktemp("place") / "store")
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "ONECOPY_STORE_DIR": store}
    result = subprocess.run(
        [sys.executable, "-c", STORE_PROGRAM], capture_output=True, text=True, timeout=280, env=environment
    )
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout.splitlines()[-1])
    for source in ("ray", "store"):
        for actor in said[source]:
            print(f"{source}: {actor['seconds'] * 1e3:.0f} ms, {actor['bytes'] / 1e6:.1f} MB of its own")
    return said


def test_actors_open_one_model_of_the_store(said_of_store):
    assert [actor["sum"] for actor in said_of_store["store"]] == 4 * [said_of_store["sum"]]
    assert all(actor["bytes"] < 8 << 20 for actor in said_of_store["store"]), "the model has 64 MiB"


def test_an_actor_that_ray_starts_again_has_the_model(said_of_store):
    before, after = said_of_store["store"][0], said_of_store["restarted actor"]
    assert after["pid"] != before["pid"] and after["sum"] == before["sum"]


def test_the_model_outlives_the_node(said_of_store):
    assert said_of_store["restarted node"]["sum"] == said_of_store["sum"]


# Two simulated nodes of one machine. Prints one line of json.
TWO_NODES = """
import json, sys
import ray, torch
from ray.cluster_utils import Cluster
import onecopy.integrations.ray

onecopy.integrations.ray.register()
with_nixl = json.loads(sys.argv[1])


@ray.remote(num_cpus=0)
class Actor:
    def __init__(self):
        if not with_nixl:
            onecopy.integrations.ray._nixl = lambda: None

    @ray.method(tensor_transport="onecopy")
    def make(self, number):
        self.made = torch.full((1000,), float(number), dtype=torch.bfloat16)
        return {"tensor": self.made, "part": self.made[1:3]}

    def keep(self, value):
        self.kept = value
        return value["tensor"].float().sum().item(), value["part"].tolist()

    def write(self, number):
        self.kept["tensor"].fill_(number)

    def first_of_made(self):
        return self.made[0].item()

    def routes(self):
        return onecopy.integrations.ray.routes()

    def node(self):
        return ray.get_runtime_context().get_node_id()


cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"left": 9}})
cluster.add_node(num_cpus=1, resources={"right": 9})
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
left, near = (Actor.options(resources={"left": 1}).remote() for _ in range(2))
right = Actor.options(resources={"right": 1}).remote()
say = {"nodes": len(set(ray.get([actor.node.remote() for actor in (left, near, right)])))}
made = left.make.remote(2)
say["near"] = ray.get(near.keep.remote(made))
say["far"] = ray.get(right.keep.remote(made))
say["routes"] = ray.get([near.routes.remote(), right.routes.remote()])
ray.get([near.write.remote(7), right.write.remote(9)])
say["seen by the maker"] = ray.get(left.first_of_made.remote())
both = [to.keep.remote(of.make.remote(3)) for to, of in [(left, right), (right, left)] * 5]
say["both at a time"] = ray.get(both, timeout=100)
try:
    ray.get(right.make.remote(4))
except Exception as error:
    say["driver"] = str(error)
say["driver by the object store"] = ray.get(right.make.remote(4), _use_object_store=True)["tensor"][0].item()
ray.shutdown()
cluster.shutdown()
print(json.dumps(say))
"""


@pytest.mark.parametrize("with_nixl", [True, False])
def test_an_actor_on_another_node_gets_a_copy_by_a_transport_of_ray(with_nixl):
    if with_nixl and importlib.util.find_spec("nixl") is None:
        pytest.skip("wants nixl")
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    command = [sys.executable, "-c", TWO_NODES, json.dumps(with_nixl)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout.splitlines()[-1])
    copied = "nixl" if with_nixl else "object store"
    none = {"handle": 0, "nixl": 0, "object store": 0}
    assert said["nodes"] == 2
    assert said["near"] == said["far"] == [2000, [2, 2]]
    assert said["routes"] == [none | {"handle": 1}, none | {copied: 1}]
    assert said["seen by the maker"] == 7
    assert said["both at a time"] == [[3000, [3, 3]]] * 10
    assert "_use_object_store=True" in said["driver"]
    assert said["driver by the object store"] == 4


def test_without_ray_the_error_names_the_package(run_python):
    program = (
        "import sys\nsys.modules['ray'] = None\nimport onecopy\n"
        "try:\n    import onecopy.integrations.ray\nexcept onecopy.MissingPackage as error:\n    print(error)\n"
    )
    said = "onecopy.integrations.ray needs the package 'ray>=2.56', which is not installed: pip install 'ray>=2.56'\n"
    assert run_python(program) == said
