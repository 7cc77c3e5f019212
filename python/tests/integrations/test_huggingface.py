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
