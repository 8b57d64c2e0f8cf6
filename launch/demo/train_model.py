"""Train the demo's model on its chats for a minute: where `demo_rlvr` starts without a run before it.

Run by path with the trainer's interpreter, which need not have `launch` installed:

    PYTHON train_model.py --chats FOLDER/train.jsonl --out FOLDER

An untrained model never ends an answer, so that nothing could be compared. The numbers are those of the stage `demo`.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import sys
from pathlib import Path
from typing import Any

EXIT_MISSING_PACKAGE = 3
STEPS, BATCH, LEARNING_RATE, LENGTH = 100, 16, 2e-3, 256


def train(folder: Path, chats: list[list[dict[str, str]]]) -> float:
    """Train the model in `folder` on the answers of the chats, in place; return the last loss."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(
        1
    )  # as accelerate starts a rank: threads that wait for each other are slower on a busy machine
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    loss = 0.0
    for step in range(STEPS):
        rows = [_encode(tokenizer, chat) for chat in chats[step * BATCH : (step + 1) * BATCH]]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in rows])
        mask = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [-100] * (width - len(labels)) for _, labels in rows])
        output = model(input_ids=ids, attention_mask=mask, labels=labels)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss = float(output.loss.detach())
    model.save_pretrained(folder, safe_serialization=True)
    return loss


def _encode(tokenizer: Any, chat: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """Return the tokens of a chat, and its labels: only the answer is learned."""
    prompt = tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:LENGTH]
    begins = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    return ids, [-100] * begins + ids[begins:]


def main(chats: Path, out: Path, seed: int) -> int:
    """Build and train the model; return the exit code."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    build = runpy.run_path(str(Path(__file__).with_name("make_model.py")))["build"]
    try:
        facts = build(chats, out, seed)
        rows = [json.loads(line)["messages"] for line in chats.read_text(encoding="utf-8").splitlines()]
        random.Random(seed).shuffle(rows)
        print(json.dumps({**facts, "loss": train(out, rows)}))
    except ModuleNotFoundError as error:
        print(error.name, file=sys.stderr)
        return EXIT_MISSING_PACKAGE
    return 0


if __name__ == "__main__":
    arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    sys.exit(main(Path(arguments["--chats"]), Path(arguments["--out"]), int(arguments["--seed"])))
