"""`generate` with a trained demo model: its answers are those of transformers itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launch.evaluation.models import find_model
from launch.worker.generating import Generator
from launch.worker.model_loading import ModelRequest

PROMPT = "What does `os.path.join` do?"
USER = {"role": "user", "content": PROMPT}

pytestmark = pytest.mark.slow


def test_the_answers_are_those_of_transformers_for_the_same_seed(trained_demo: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

    folder = trained_demo / "runs" / "demo" / "sft" / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    inputs = tokenizer.apply_chat_template(
        [USER], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    generator = Generator(ModelRequest(str(folder), quantized=False))
    texts = []
    for temperature, seed in ((0.0, 0), (0.9, 3), (0.9, 4)):
        sampling = (
            {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        )
        set_seed(seed)
        output = model.generate(**inputs, max_new_tokens=24, **sampling)[0][
            inputs["input_ids"].shape[1] :
        ]
        answer = generator.answer([USER], seed, temperature, 1.0, 24)
        assert answer["text"] == tokenizer.decode(output, skip_special_tokens=True) != ""
        assert answer["tokens"] == len(output)
        texts.append(answer["text"])
    assert len(set(texts)) == 3


@pytest.mark.thorough
def test_an_adapter_answers_on_its_base_without_a_merge(trained_adapter: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = find_model("demo_lora/sft", trained_adapter / "runs")
    assert model.adapter is not None
    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    inputs = tokenizer.apply_chat_template(
        [USER], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    length = inputs["input_ids"].shape[1]
    base = AutoModelForCausalLM.from_pretrained(model.adapter.base).eval()
    plain = base.generate(**inputs, max_new_tokens=16, do_sample=False)[0][length:]
    adapted = PeftModel.from_pretrained(base, model.folder).eval()
    output = adapted.generate(**inputs, max_new_tokens=16, do_sample=False)[0][length:]
    answer = Generator(model.request).answer(
        [USER], seed=0, temperature=0.0, top_p=1.0, max_tokens=16
    )
    assert answer["text"] == tokenizer.decode(output, skip_special_tokens=True)
    assert answer["text"] != tokenizer.decode(plain, skip_special_tokens=True)


@pytest.mark.thorough
def test_a_training_state_answers_as_the_model_whose_weights_it_holds(
    trained_demo: Path, tmp_path: Path
) -> None:
    """The untrained weights, as open-instruct's trainers save them, in the folder of the trained
    run.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from transformers import AutoModelForCausalLM

    base = next((trained_demo / "runs" / ".cache" / "demo").glob("model-*"))
    run = tmp_path / "runs" / "demo" / "sft"
    shutil.copytree(
        trained_demo / "runs" / "demo" / "sft", run, ignore=shutil.ignore_patterns("checkpoint-*")
    )
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(AutoModelForCausalLM.from_pretrained(base))
    accelerator.save_state(str(run / "model" / "step_7"))
    AcceleratorState._reset_state(reset_partial_state=True)

    def answer(name: str) -> str:
        generator = Generator(find_model(name, tmp_path / "runs").request)
        text: str = generator.answer([USER], seed=0, temperature=0.0, top_p=1.0, max_tokens=16)[
            "text"
        ]
        return text

    assert answer("demo/sft/step_7") == answer(str(base)) != answer("demo/sft")
    (run / "DONE").unlink()
    (run / "model" / "config.json").unlink()
    assert answer("demo/sft/step_7") == answer(str(base)), "a run that has not ended"
