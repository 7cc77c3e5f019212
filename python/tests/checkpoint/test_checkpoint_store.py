# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint in the store."""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

from torch.distributed.checkpoint.api import CheckpointException

import onecopy
from onecopy.checkpoint import StoreReader, StoreWriter, export_folder, import_folder

KILLS = int(os.environ.get("ONECOPY_CHECKPOINT_KILLS", "2"))
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def ranks(tmp_path):
    """Runs programs of groups of ranks, which leave no files of their own where temporary files are."""
    places = tmp_path / "temporary"
    places.mkdir()

    def run(*arguments):
        command = [sys.executable, str(Path(__file__).parent / "checkpoint_programs.py"), *map(str, arguments)]
        environment = dict(os.environ, TMPDIR=str(places))
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120 + 10 * KILLS)

    yield run
    assert [name for name in os.listdir(places) if name.startswith("onecopy-")] == []


def some_state(value=1.0):
    return {"w": torch.full((300, 7), value), "n": torch.tensor(5), "lr": 0.1, "none": torch.empty(0)}


def loaded(**options):
    state = {"w": torch.zeros(300, 7), "n": torch.tensor(0), "lr": 0.0, "none": torch.empty(0)}
    reader = StoreReader("c", **options)
    dcp.load(state, storage_reader=reader)
    return state, reader


def test_two_ranks_save_and_die_and_others_load_resharded(store, ranks):
    done = ranks("die_and_load")
    assert done.returncode == 0, done.stdout + done.stderr


def test_torchs_own_processes_save_into_the_store_while_the_trainer_goes_on(store, ranks):
    done = ranks("processes")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_checkpoint_goes_from_a_folder_into_the_store_and_back(store, ranks, tmp_path):
    done = ranks("folders", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_fsdp2_trains_on_from_a_checkpoint_as_it_did_before(store, ranks):
    done = ranks("train")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_last_checkpoint_is_whole_after_a_kill_of_any_rank_at_any_moment(store, ranks):
    if KILLS > 100:  # minutes; ranks() has a limit of its own
        faulthandler.cancel_dump_traceback_later()
    seed = int(os.environ.get("ONECOPY_CHECKPOINT_SEED", random.randrange(1 << 30)))
    done = ranks("kill_at_random", KILLS, seed)
    assert done.returncode == 0, f"ONECOPY_CHECKPOINT_SEED={seed}\n{done.stdout}\n{done.stderr}"


def test_a_shard_that_is_the_same_is_not_copied_and_a_write_changes_no_checkpoint(store):
    dcp.save(some_state(), storage_writer=StoreWriter("c"))
    for _ in range(2):
        state, reader = loaded()
        assert reader.bytes_in_place == 300 * 7 * 4 + 8
        assert (state["w"].eq(1).all(), state["n"].item(), state["lr"]) == (True, 5, 0.1)
        state["w"].fill_(9)
    store.delete("c")
    assert state["w"].eq(9).all()


def test_a_tensor_whose_address_was_given_away_is_copied_into(store):
    dcp.save(some_state(), storage_writer=StoreWriter("c"))
    state = some_state(0.0)
    of_numpy = state["w"].numpy()
    view = state["n"] = torch.zeros(2, dtype=torch.int64)[1]
    reader = StoreReader("c")
    dcp.load(state, storage_reader=reader)
    assert of_numpy.min() == 1
    assert view.item() == 5
    assert reader.bytes_in_place == 0


def test_other_processes_read_the_weights_of_a_checkpoint_by_their_names(store):
    dcp.save({"model": {"a": torch.ones(3), "b": torch.zeros(2, 2)}}, storage_writer=StoreWriter("c"))
    found = store.open("c")
    assert found["model.a"].tolist() == [1, 1, 1]
    assert set(found) == {"model.a", "model.b", ".metadata"}


def test_what_changes_after_async_save_has_returned_is_not_saved(store):
    state, writer = some_state(1.0), StoreWriter("c")
    for value in (2.0, 3.0, 4.0):
        saving = dcp.async_save(state, storage_writer=writer)
        state["w"].fill_(value)
        if value != 3.0:
            saving.result()
            assert loaded()[0]["w"].eq(value - 1).all()
        other, saving = saving, None
        other.result()
    writer.close()


def test_checkpoints_are_kept_and_found_by_their_numbers_and_ids(store):
    writer = StoreWriter("c", keep=3)
    for step in range(1, 5):
        dcp.save(some_state(float(step)), storage_writer=writer, checkpoint_id=f"step-{step}")
        assert writer.version == step
    assert loaded(version=2)[0]["w"].eq(2).all()
    state = some_state(0.0)
    dcp.load(state, storage_reader=StoreReader("c"), checkpoint_id="step-3")
    assert state["w"].eq(3).all()
    with pytest.raises(CheckpointException, match="has no checkpoint 'step-1' of 'c'"):
        dcp.load(state, storage_reader=StoreReader("c"), checkpoint_id="step-1")


def test_a_writer_and_a_reader_go_to_other_processes(store):
    writer, reader = pickle.loads(pickle.dumps((StoreWriter("c", store, keep=1), StoreReader("c", store, 1))))
    dcp.save(some_state(), storage_writer=writer)
    state = some_state(0.0)
    dcp.load(state, storage_reader=reader)
    assert state["w"].eq(1).all()


def test_saves_and_loads_that_cannot_work_say_why(store):
    with pytest.raises(onecopy.Unsupported, match="use_collectives=True"):
        dcp.save(some_state(), storage_writer=StoreWriter("c"), use_collectives=False)
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    dcp.save(some_state(), storage_writer=StoreWriter("c"), planner=planner)
    with pytest.raises(CheckpointException, match="without enable_plan_caching"):
        dcp.save(some_state(), storage_writer=StoreWriter("c"), planner=planner)
    store.publish("tensors", {"x": torch.ones(2)})
    with pytest.raises(CheckpointException, match="is not a checkpoint of StoreWriter"):
        dcp.load(some_state(), storage_reader=StoreReader("tensors"))
    assert store.open("c").version == 1


def test_a_save_that_failed_leaves_nothing(store):
    writer = StoreWriter("c")
    dcp.save(some_state(), storage_writer=writer)
    with pytest.raises(CheckpointException, match="pickle"):
        dcp.save({"w": torch.ones(3), "bad": lambda: 1}, storage_writer=writer)
    dcp.save(some_state(2.0), storage_writer=writer)
    assert [v["version"] for v in store.list()[0]["versions"]] == [1, 2]
    assert loaded()[0]["w"].eq(2).all()


# --- folders


def command(*arguments):
    line = [sys.executable, "-m", "onecopy.checkpoint", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=200)


def test_a_command_copies_checkpoints_between_folders_and_the_store(store, tmp_path):
    dcp.save(some_state(7.0), checkpoint_id=tmp_path / "step-7")
    done = command("put", "c", tmp_path / "step-7")
    assert done.stdout == f"c version 1 has the checkpoint of {tmp_path}/step-7\n", done.stderr
    assert store.open("c").attributes == {"checkpoint_id": "step-7"}
    assert loaded()[0]["w"].eq(7).all()
    done = command("get", "c", tmp_path / "back", "--version", 1)
    assert done.returncode == 0, done.stderr
    state = some_state(0.0)
    dcp.load(state, checkpoint_id=tmp_path / "back")
    assert (state["w"].eq(7).all(), state["lr"]) == (True, 0.1)
    done = command("get", "c", tmp_path / "back")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/back has a checkpoint already; name another folder")


def test_a_folder_that_is_not_a_whole_checkpoint_is_refused_and_leaves_nothing(store, tmp_path):
    with pytest.raises(onecopy.InvalidArgument, match="has no file .metadata, so it is not a complete checkpoint"):
        import_folder(tmp_path, "c")
    dcp.save(some_state(), checkpoint_id=tmp_path / "c")
    (tmp_path / "c/__0_0.distcp").write_bytes(b"")
    with pytest.raises((RuntimeError, EOFError, ValueError)):
        import_folder(tmp_path / "c", "c")
    assert store.list() == []
    store.publish("tensors", {"x": torch.ones(2)})
    with pytest.raises(onecopy.InvalidArgument, match="is not a checkpoint of StoreWriter"):
        export_folder("tensors", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_store_command_names_the_way_for_a_checkpoint_of_torch(store, tmp_path):
    dcp.save(some_state(), checkpoint_id=tmp_path)
    with pytest.raises(onecopy.InvalidArgument, match=f"python -m onecopy.checkpoint put NAME {tmp_path}"):
        onecopy.load_safetensors(tmp_path)
