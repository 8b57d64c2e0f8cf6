"""DPO and the reward model then and now: the same batches, rates and weights, without a setting of
launch's own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equivalence.runs import GLOBAL, STEPS, Kit, Measure, train_launch, train_old
from tests.equivalence.test_sft import ROUNDING

pytestmark = pytest.mark.equivalence


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_dpo(kit: Kit, tmp_path: Path, measure: Measure, ranks: int) -> None:
    """dpo_norm with beta 5, clipped at 1.0, on 40 pairs: log-probs of the reference are part of
    it.
    """
    flags = [
        *(
            "--model_name_or_path",
            str(kit.model),
            "--tokenizer_name_or_path",
            str(kit.model),
            "--chat_template_name",
            "tulu",
        ),
        *(
            "--dataset_mixer_list",
            str(kit.pairs),
            "1.0",
            "--dataset_skip_cache",
            "True",
            "--max_seq_length",
            "128",
        ),
        *(
            "--per_device_train_batch_size",
            "1",
            "--gradient_accumulation_steps",
            str(GLOBAL // ranks),
        ),
        *(
            "--max_train_steps",
            str(STEPS),
            "--learning_rate",
            "1e-3",
            "--lr_scheduler_type",
            "linear",
        ),
        *(
            "--warmup_ratio",
            "0.2",
            "--weight_decay",
            "0.0",
            "--clip_grad_norm",
            "1.0",
            "--seed",
            "8",
        ),
        *(
            "--dpo_loss_type",
            "dpo_norm",
            "--dpo_beta",
            "5",
            "--logging_steps",
            "1",
            "--use_flash_attn",
            "False",
        ),
        *(
            "--gradient_checkpointing",
            "True",
            "--output_dir",
            "out",
            "--do_not_randomize_output_dir",
            "True",
        ),
        *("--add_seed_and_date_to_exp_name", "False", "--push_to_hub", "False"),
        *("--try_launch_beaker_eval_jobs", "False"),
    ]
    then = train_old(tmp_path / "old", kit.source, "dpo_tune_cache.py", flags, ranks=ranks)
    recipe = (
        *(
            "stage=dpo",
            f"model.path={kit.model}",
            f"data.mix=[{{name: {kit.pairs}}}]",
            "recipe.max_steps=10",
        ),
        *("recipe.max_seq_length=128", "recipe.learning_rate=1e-3", "recipe.warmup_ratio=0.2"),
        *("recipe.checkpoint_steps=null", "recipe.chat_template=tulu"),
    )
    now = train_launch(tmp_path / "new", recipe, ranks=ranks)
    assert len(then.batches) == ranks
    assert now.batches == then.batches
    assert now.rates == then.rates
    assert measure(then, now) < ROUNDING


def test_reward_model(kit: Kit, tmp_path: Path, measure: Measure) -> None:
    """In one process: its get_reward goes past DDP, so that several ranks need DeepSpeed. It does
    not clip.
    """
    flags = [
        *("--model_name_or_path", str(kit.model), "--tokenizer_name_or_path", str(kit.model)),
        *("--chat_template_name", "tulu", "--dataset_mixer_list", str(kit.pairs), "1.0"),
        *(
            "--dataset_skip_cache",
            "True",
            "--max_token_length",
            "256",
            "--max_prompt_token_length",
            "256",
        ),
        *("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", str(GLOBAL)),
        *(
            "--num_train_epochs",
            "1",
            "--learning_rate",
            "1e-3",
            "--seed",
            "8",
            "--gradient_checkpointing",
            "True",
        ),
        *("--output_dir", "out", "--push_to_hub", "False"),
    ]
    then = train_old(tmp_path / "old", kit.source, "reward_modeling.py", flags, ranks=1)
    recipe = (
        *(
            "stage=rm",
            f"model.path={kit.model}",
            f"data.mix=[{{name: {kit.pairs}}}]",
            "recipe.learning_rate=1e-3",
        ),
        *("recipe.seed=8", "recipe.max_seq_length=256"),
    )
    now = train_launch(tmp_path / "new", recipe, ranks=1)
    assert len(then.batches[0]) > GLOBAL * 7
    assert now.batches == then.batches
    assert now.rates == then.rates
    assert max(then.norms) > 1
    assert measure(then, now) < ROUNDING
