"""How far the log-probs of a sampler and of the trainer are apart, where it has the trainer's
weights and where not.

    python benchmarks/sampler.py benchmarks/sampler.json

A small Llama is trained by policy gradients on a CPU, in fp32. At each step a sampler in bf16
generates completions; what TRL logs as sampling/sampling_logp_difference/mean is measured: the mean
over tokens of the absolute difference between the log-probs of what was sampled, by the sampler and
by the trainer. One sampler gets the trainer's weights before each step; the other keeps those that
it began with. It takes some seconds.
"""

from __future__ import annotations

import copy
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

STEPS, PROMPTS, SAMPLES, PROMPT, RESPONSE, VOCABULARY = 15, 6, 6, 6, 10, 512
LEARNING_RATE = 1e-3


def make_model() -> Any:
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=None,
        **sizes,
    )
    model = LlamaForCausalLM(config)
    # as sure of itself as a trained model: an output matrix with larger entries
    with torch.no_grad():
        model.lm_head.weight.mul_(12.0)
    return model


def log_probs(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs of the response's tokens, in fp32."""
    logits = model(tokens[:, :-1]).logits[:, PROMPT - 1 :].float()
    return torch.gather(logits.log_softmax(-1), 2, tokens[:, PROMPT:, None]).squeeze(2)


def sample(model: Any, prompts: torch.Tensor) -> torch.Tensor:
    rows = prompts.repeat_interleave(SAMPLES, 0)
    return model.generate(
        rows, max_new_tokens=RESPONSE, do_sample=True, attention_mask=torch.ones_like(rows)
    )


def course(stale: bool) -> list[float]:
    """The difference at each step of a training run whose sampler is stale, or is not."""
    torch.manual_seed(0)
    model = make_model()
    sampler = copy.deepcopy(model).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    differences = []
    for _ in range(STEPS):
        if not stale:
            sampler = copy.deepcopy(model).to(torch.bfloat16)
        tokens = sample(sampler, torch.randint(1, VOCABULARY, (PROMPTS, PROMPT)))
        own = log_probs(model, tokens)
        with torch.no_grad():
            differences.append(float((log_probs(sampler, tokens) - own).abs().mean()))
        rewards = (tokens[:, PROMPT:] % 2 == 0).float().mean(1)  # even tokens
        groups = rewards.view(PROMPTS, SAMPLES)
        advantages = (
            (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
        ).view(-1, 1)
        optimizer.zero_grad()
        (-(advantages * own).mean()).backward()
        optimizer.step()
    return differences


def main() -> None:
    record = {
        "schema_version": 1,
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
        "command": "python benchmarks/sampler.py benchmarks/sampler.json",
        "note": f"learning rate {LEARNING_RATE:g}; nats a token, the first before any update; vLLM "
        "was not run",
        "fresh": [round(value, 5) for value in course(stale=False)],
        "stale": [round(value, 5) for value in course(stale=True)],
    }
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
