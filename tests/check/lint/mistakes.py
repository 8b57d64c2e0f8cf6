"""Realistic mistakes, one file each. What lint finds in them is in
tests/golden/lint_mistakes.txt.
"""

from __future__ import annotations

FINETUNE = (
    "accelerate launch open_instruct/finetune.py --model_name_or_path m --logging_steps 1 "
    "--exp_name x"
)
DPO = "accelerate launch open_instruct/dpo_tune_cache.py --model_name_or_path m --mixer_list d 1.0"
OFFLINE = "--push_to_hub false --try_launch_beaker_eval_jobs false"

FLAGS = "  model_name_or_path: m\n  logging_steps: 1\n"
TULU = """\
model_name_or_path: m
tokenizer_name: t
dataset_mixer:
  d: 1.0
learning_rate: 5.0e-06
num_train_epochs: 2
report_to:
  - wandb
logging_steps: 1
"""

# name -> (file name, text)
MISTAKES: dict[str, tuple[str, str]] = {
    "misspelt": ("run.sh", f"{FINETUNE} --lerning_rate 1e-5\n"),
    "misspelt_with_dashes": ("run.sh", f"{FINETUNE} --max-seq-lenght 4096\n"),
    "mixed_spelling": ("run.sh", f"{FINETUNE} --max-seq_length 4096\n"),
    "single_dash": ("run.sh", f"{FINETUNE} -learning_rate 1e-5\n"),
    "abbreviated": ("run.sh", f"{FINETUNE} --max_seq 4096\n"),
    "ambiguous": ("run.sh", f"{FINETUNE} --learning 1e-5\n"),
    "chat_template": ("run.sh", f"{FINETUNE} --chat_template tulu\n"),
    "wandb_project": ("run.sh", f"{FINETUNE} --wandb_project p\n"),
    "use_flash_attn": ("run.sh", f"{FINETUNE} --use_flash_attn\n"),
    "train_file": ("run.sh", f"{FINETUNE} --train_file data.jsonl\n"),
    "mixer_list_for_finetune": (
        "run.sh",
        f"{FINETUNE} --mixer_list allenai/tulu-3-sft-mixture 1.0\n",
    ),
    "num_epochs_for_finetune": ("run.sh", f"{FINETUNE} --num_epochs 2\n"),
    "num_train_epochs_for_dpo": ("run.sh", f"{DPO} --num_train_epochs 1\n"),
    "gradient_checkpointing_for_dpo": ("run.sh", f"{DPO} --gradient_checkpointing\n"),
    "dataset_mixer_list_for_dpo": ("run.sh", f"{DPO} --dataset_mixer_list d 1.0\n"),
    "dpo_beta": ("run.sh", f"{DPO} --dpo_beta 5\n"),
    "twice": ("run.sh", f"{FINETUNE} \\\n  --seed 1 \\\n  --learning_rate 1e-5 \\\n  --seed 2\n"),
    "twice_in_both_spellings": (
        "run.sh",
        f"{FINETUNE} --max_seq_length 1024 --max-seq-length 2048\n",
    ),
    "float_for_int": ("run.sh", f"{FINETUNE} --max_seq_length 4096.0\n"),
    "scientific_int": ("run.sh", f"{FINETUNE} --timeout 1e4\n"),
    "text_for_float": ("run.sh", f"{FINETUNE} --learning_rate 1e-5,\n"),
    "on_for_bool": ("run.sh", f"{FINETUNE} --packing on\n"),
    "epoch_for_steps": ("run.sh", f"{DPO} --checkpointing_steps epoch\n"),
    "bad_choice": ("run.sh", f"{FINETUNE} --lr_scheduler_type liner\n"),
    "docs_attention": ("run.sh", f"{DPO} --attn_implementation flash-2\n"),
    "missing_value": ("run.sh", f"{FINETUNE} --learning_rate --seed 1\n"),
    "negative_scientific": ("run.sh", f"{FINETUNE} --learning_rate -1e-5\n"),
    "empty_list": ("run.sh", f"{FINETUNE} --oe_eval_tasks\n"),
    "list_after_equals": ("run.sh", f"{FINETUNE} --dataset_mixer_list=d 1.0\n"),
    "no_packing": ("run.sh", f"{FINETUNE} --no_packing\n"),
    "no_flag_with_value": ("run.sh", f"{FINETUNE} --no_use_fast true\n"),
    "dict": ("run.sh", f"{FINETUNE} --dataset_mixer '{{\"d\": 1.0}}'\n"),
    "positional_yaml": ("run.sh", "accelerate launch open_instruct/finetune.py configs/sft.yaml\n"),
    "missing_required": (
        "run.sh",
        "accelerate launch open_instruct/dpo_tune_cache.py --mixer_list d 1.0\n",
    ),
    "push_to_hub_alone": ("run.sh", f"{FINETUNE} --push_to_hub false\n"),
    "final_lr_ratio": (
        "run.sh",
        f"{FINETUNE} {OFFLINE} --final_lr_ratio 0.1 --lr_scheduler_type cosine\n",
    ),
    "dataset_name": ("run.sh", f"{FINETUNE} --dataset_name d\n"),
    "broken_continuation": ("run.sh", f"{FINETUNE} \\\n  --seed 1\n  --learning_rate 1e-5\n"),
    "comment_in_the_middle": (
        "run.sh",
        f"{FINETUNE} \\\n  --seed 1 \\\n  # faster:\n  --learning_rate 1e-5\n",
    ),
    "blank_behind_backslash": (
        "run.sh",
        f"{FINETUNE} \\\n  --seed 1 \\ \n  --learning_rate 1e-5\n",
    ),
    "unbalanced_quote": ("run.sh", f"{FINETUNE} --output_dir 'x\n"),
    "unknown_value": ("run.sh", f"{FINETUNE} --learning_rate $LR\n"),
    "unknown_arguments": ("run.sh", f'{FINETUNE} "$@"\n'),
    "removed_script": ("run.sh", "python open_instruct/ppo_vllm_thread_ray_gtrl.py --beta 0.1\n"),
    "one_sample": ("run.sh", f"{FINETUNE} --dataset_mixer_list d 1\n"),
    "odd_mixer": ("run.sh", f"{FINETUNE} --dataset_mixer_list a 1.0 b\n"),
    "tokenizer_name": ("run.sh", f"{FINETUNE} --tokenizer_name t --use_slow_tokenizer\n"),
    "negative_norm": ("run.sh", f"{DPO} --max_grad_norm -1\n"),
    "hub_namespace": ("run.sh", f"{FINETUNE} --hf_repo_id me/model\n"),
    "tracking_without_wandb": ("run.sh", f"{FINETUNE} --with_tracking\n"),
    "tensorboard": ("run.sh", f"{FINETUNE} --with_tracking --report_to tensorboard\n"),
    "silent_run": ("run.sh", "python open_instruct/finetune.py --model_name_or_path m\n"),
    "no_data": ("run.sh", "torchrun open_instruct/dpo_tune_cache.py --model_name_or_path m\n"),
    "paged_alone": ("run.sh", f"{FINETUNE} --use_8bit_optimizer\n"),
    "max_train_samples": ("run.sh", f"{DPO} --max_train_samples 10\n"),
    "packing_with_sequence_parallel": (
        "run.sh",
        f"{FINETUNE} --packing --sequence_parallel_size 2\n",
    ),
    "qlora_alone": ("run.sh", f"{FINETUNE} --use_qlora --use_liger_kernel\n"),
    "trl_misspelt": (
        "run.sh",
        "python -m trl.scripts.sft --model_name_or_path m --output_dir o --lerning_rate 1e-5\n",
    ),
    "trl_open_instruct_flag": (
        "run.sh",
        "python -m trl.scripts.sft --model_name_or_path m --output_dir o --max_seq_length 1024\n",
    ),
    "two_commands": ("run.sh", f"{FINETUNE} --sed 1\n{DPO} --sed 1\n"),
    "in_markdown": ("a.md", f"# Run\n\n```bash\n{FINETUNE} \\\n  --sed 1\n```\n"),
    "in_a_job": ("job.yaml", f"run: >\n  {FINETUNE}\n  --sed 1\n"),
    "in_a_makefile": (
        "Makefile",
        f"LR = 1e-5\ntrain:\n\t{FINETUNE} \\\n\t  --learning_rte $(LR)\n",
    ),
    "flags_list_as_string": (
        "sft.yaml",
        f"script: finetune\nargs:\n{FLAGS}  dataset_mixer_list: a 1.0 b 1.0\n",
    ),
    "flags_twice": (
        "sft.yaml",
        (
            "model_name_or_path: m\nlogging_steps: 1\nlearning_rate: 1e-5\nseed: 1\nlearning_rate: "
            "2e-5\n"
        ),
    ),
    "flags_of_tulu": ("sft.yaml", TULU),
}
