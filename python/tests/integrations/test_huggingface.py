# SPDX-License-Identifier: Apache-2.0
"""onecopy.hf: models of transformers, of which the second process opens what the first has loaded."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import onecopy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZE = 64 << 10  # bytes; less than the model has, and more than a handle of all its tensors
TOKENS = torch.tensor([[3, 1, 4, 1, 5]])


@pytest.fixture
def checkpoint(llama, runtime_directory):
    return llama


def load(checkpoint, cls=None, **kwargs):
    return onecopy.hf.from_pretrained(cls or transformers.LlamaForCausalLM, checkpoint, **kwargs)


def addresses(model):
    return {name: tensor.data_ptr() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


SECOND = """
import json, os, sys
import torch, transformers
import onecopy

model = onecopy.hf.from_pretrained(getattr(transformers, sys.argv[2]), sys.argv[1])
with torch.no_grad():
    logits = model(torch.tensor([[3, 1, 4, 1, 5]])).logits
print(json.dumps({
    "leases": onecopy.stats()["leases"], "own": onecopy.stats()["live_bytes"], "training": model.training,
    "sum": logits.double().sum().item(), "most": model.generation_config.max_new_tokens, "type": type(model).__name__,
    "tied": model.lm_head.weight is model.model.embed_tokens.weight,
}), flush=True)
if len(sys.argv) > 3:
    sys.stdin.readline()
"""


def second(checkpoint, cls="LlamaForCausalLM"):
    result = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", SECOND, str(checkpoint), cls], capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("cls", ["LlamaForCausalLM", "AutoModelForCausalLM"])
def test_a_second_process_opens_what_the_first_has_loaded(checkpoint, cls):
    model = load(checkpoint, getattr(transformers, cls))
    with torch.no_grad():
        expected = model(TOKENS).logits.double().sum().item()
    there = second(checkpoint, cls)
    assert there["leases"] > 0 and there["own"] < SIZE
    assert there["sum"] == expected
    assert there == {**there, "training": False, "tied": True, "most": 7, "type": "LlamaForCausalLM"}


def test_its_parameters_and_buffers_are_the_memory_of_the_first(checkpoint):
    model, other = load(checkpoint), load(checkpoint)
    assert addresses(model) == addresses(other)
    assert "model.rotary_emb.inv_freq" in addresses(other)
    with torch.no_grad():
        model.model.norm.weight.fill_(2)
    assert torch.equal(model(TOKENS).logits, other(TOKENS).logits)
    assert other.config.to_dict() == model.config.to_dict()
    assert other.generation_config.to_dict() == model.generation_config.to_dict()
    assert other.dtype == model.dtype


def test_it_is_what_transformers_loads(checkpoint):
    model, other = load(checkpoint), load(checkpoint)
    plain = transformers.LlamaForCausalLM.from_pretrained(checkpoint)
    for mine in (model, other):
        assert torch.equal(mine(TOKENS).logits, plain(TOKENS).logits)
        assert [n for n, _ in mine.named_parameters()] == [n for n, _ in plain.named_parameters()]
        assert all(p.requires_grad for p in mine.parameters())
    assert other.generate(TOKENS, do_sample=False).tolist() == plain.generate(TOKENS, do_sample=False).tolist()


def everything(model):
    """The names, bytes, dtypes and uses of all parameters and buffers, tied ones under each of their names."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: (t.dtype, t.requires_grad, tuple(t.shape), t.detach().float().tolist()) for name, t in named}


def saved(cls, path, dtype, **sizes):
    """Writes a checkpoint of a small random model."""
    torch.manual_seed(0)
    config = cls.config_class(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, **sizes,
    )  # fmt: skip
    cls(config).to(dtype).save_pretrained(path, max_shard_size="100KB")
    return path


@pytest.mark.parametrize("how", ["in several files", "cast", "under a prefix", "with experts that are merged"])
def test_the_first_process_has_what_transformers_makes_of_a_checkpoint(tmp_path, runtime_directory, monkeypatch, how):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    written = read = transformers.LlamaForCausalLM
    kwargs, sizes = {}, {}
    if how == "cast":
        kwargs = {"dtype": torch.float32}
    elif how == "under a prefix":
        written = transformers.LlamaModel
    elif how == "with experts that are merged":
        written = read = transformers.MixtralForCausalLM
        sizes = {"num_local_experts": 4}
    path = saved(written, tmp_path / "small", torch.bfloat16, **sizes)
    torch.manual_seed(1)
    plain = read.from_pretrained(path, **kwargs)
    torch.manual_seed(1)
    model = load(path, read, **kwargs)
    mine, original = everything(model), everything(plain)
    if how == "under a prefix":  # the head is in no file: transformers makes a random one
        assert mine.pop("lm_head.weight")[:3] == original.pop("lm_head.weight")[:3]
    assert mine == original
    assert model.config.to_dict() == plain.config.to_dict() and model.name_or_path == plain.name_or_path
    assert model.training is plain.training is False


def test_a_plain_checkpoint_is_read_straight_into_shared_memory(tmp_path, runtime_directory):
    path = saved(transformers.LlamaForCausalLM, tmp_path / "small", torch.bfloat16)
    bytes_of_files = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    before = onecopy.stats()
    model = load(path)
    after = onecopy.stats()
    assert after["torch_moved"] - before["torch_moved"] <= len(list(model.buffers()))
    assert after["live_bytes"] - before["live_bytes"] < 1.2 * bytes_of_files


def test_weights_of_the_store_are_published_without_a_copy(tmp_path, runtime_directory, store):
    path = saved(transformers.LlamaForCausalLM, tmp_path / "small", torch.bfloat16)
    before = onecopy.stats()["torch_moved"]
    model = load(path, store="small")
    assert onecopy.stats()["torch_moved"] - before <= len(list(model.buffers()))
    assert everything(model) == everything(transformers.LlamaForCausalLM.from_pretrained(path))
    [found] = [each for each in store.list() if each["name"] == "small"]
    assert found["versions"][0]["readers"]


def test_the_next_process_opens_what_a_second_one_has_when_the_first_is_killed(checkpoint):
    first = subprocess.Popen(
        [sys.executable, "-c", SECOND, str(checkpoint), "LlamaForCausalLM", "wait"], stdin=-1, stdout=-1, text=True
    )
    with first:
        assert json.loads(first.stdout.readline())["own"] > SIZE
        model = load(checkpoint)
        assert onecopy.stats()["leases"] > 0
        first.kill()
    there = second(checkpoint)
    assert there["leases"] > 0 and there["own"] < SIZE
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_model_that_nobody_has_any_more_is_read_again(checkpoint):
    model = load(checkpoint)
    with torch.no_grad():
        model.model.norm.weight.fill_(2)
    assert len(notices(checkpoint)) == 1
    del model
    assert notices(checkpoint) == []
    assert load(checkpoint).model.norm.weight.tolist() == [1] * 64


def test_a_notice_of_a_killed_process_is_taken_down_by_the_next(checkpoint):
    with subprocess.Popen(
        [sys.executable, "-c", SECOND, str(checkpoint), "LlamaForCausalLM", "wait"], stdin=-1, stdout=-1, text=True
    ) as first:
        first.stdout.readline()
        first.kill()
    assert len(notices(checkpoint)) == 1
    model = load(checkpoint)
    assert [name.split("-")[0] for name in notices(checkpoint)] == [str(os.getpid())]
    assert onecopy.stats()["leases"] == 0 and model.model.norm.weight.tolist() == [1] * 64


def test_a_changed_file_is_another_model(checkpoint):
    model = load(checkpoint)
    os.utime(checkpoint / "model.safetensors", ns=(1, 1))
    assert addresses(load(checkpoint)) != addresses(model)


def test_other_arguments_are_another_model(checkpoint):
    model, half = load(checkpoint), load(checkpoint, dtype=torch.bfloat16)
    again = load(checkpoint, dtype=torch.bfloat16)
    assert half.dtype == again.dtype == torch.bfloat16 and model.dtype == torch.float32
    assert addresses(half) == addresses(again) != addresses(model)


def test_processes_that_start_at_once_load_it_once(checkpoint):
    command = [sys.executable, "-c", SECOND, str(checkpoint), "LlamaForCausalLM", "wait"]
    both = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(2)]
    answers = [json.loads(process.stdout.readline()) for process in both]
    for process in both:
        process.communicate("\n")
    assert sorted(answer["own"] > SIZE for answer in answers) == [False, True]
    assert answers[0]["sum"] == answers[1]["sum"]


def test_a_forked_child_takes_down_no_notice_of_its_parent(checkpoint):
    model = load(checkpoint)
    if (child := os.fork()) == 0:
        os._exit(drop_all_finalizers())
    assert os.waitpid(child, 0)[1] == 0
    assert len(notices(checkpoint)) == 1 and model.training is False


def drop_all_finalizers():
    import weakref

    weakref.finalize._exitfunc()
    return 0


def notices(checkpoint):
    return sorted(path.name for path in (checkpoint.parent / "run").rglob("*.handle"))


def test_handles_are_readable_by_their_user_alone(checkpoint):
    model = load(checkpoint)
    for path in [*(checkpoint.parent / "run").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert model is not None


def test_a_directory_that_others_may_read_is_refused(checkpoint):
    base = checkpoint.parent / "run" / f"onecopy-notices-{os.geteuid()}"
    base.mkdir(mode=0o700)
    base.chmod(0o755)
    with pytest.raises(onecopy.OtherUser, match="mode 0700"):
        load(checkpoint)


def test_arguments_that_spread_a_model_are_refused(checkpoint):
    with pytest.raises(onecopy.Unsupported, match="device_map"):
        load(checkpoint, device_map="auto")
    with pytest.raises(onecopy.InvalidArgument, match="cannot be compared between processes"):
        load(checkpoint, key_mapping=object())


def test_without_transformers_the_error_names_the_package(run_python):
    program = """
    import sys
    sys.modules["transformers"] = None
    import onecopy
    try:
        onecopy.hf.from_pretrained(None, ".")
    except onecopy.MissingPackage as error:
        print(error)
    """
    said = run_python(textwrap.dedent(program))
    assert said == (
        "onecopy.hf.from_pretrained() needs the package transformers, which is not installed: pip install transformers\n"
    )
