#!/usr/bin/env bash
# SFT of the 8b shape: the recipe that people write by hand today against the settings that `tune` arrives at, in turn
# on one machine, with the same data and the same global batch of 128.
#
#   python benchmarks/make_inputs.py FOLDER --shapes 8b && benchmarks/sft_8b.sh FOLDER GPUS [more words of `bench`]
#
# By hand: ZeRO-3, one sample a device, gradient checkpointing, neither packing nor Liger; the accumulation follows the
# width (16 on 8 GPUs). The record is FOLDER/runs/sft/bench-sft_8b_gpuN/bench.json.
set -euo pipefail
inputs=$(cd "$1" && pwd)
gpus=$2
shift 2
cd "$inputs"
export HF_HUB_OFFLINE=1
exec python3 -m launch bench stage=sft trainer=finetune gpus="$gpus" name="sft_8b_gpu$gpus" steps=6 repeats=2 "$@" \
    model.path="$inputs/8b" "data.mix=[{name:$inputs/sft.jsonl}]" recipe.chat_template=tulu \
    recipe.max_seq_length=4096 recipe.global_batch_size=128 recipe.max_steps=40 recipe.warmup_ratio=0 \
    -- parallel=zero3 recipe.per_device_batch_size=1 recipe.gradient_checkpointing=true \
    -- parallel=zero2 recipe.per_device_batch_size=8 recipe.gradient_checkpointing=false recipe.packing=flatten \
    recipe.liger=true
