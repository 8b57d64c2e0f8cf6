"""Measures the rate of a large matrix product, which no training step exceeds, as JSON.

It is run by path, with the trainer's interpreter: matrix_product.py cuda|cpu bf16|fp32 SECONDS. A
GPU multiplies matrices of 8192 x 8192 in blocks and is synchronised after each block; the median of
the blocks counts, so that rising or throttled clocks have the same effect as in training. A CPU
multiplies matrices of 1024 x 1024 on all threads that torch uses.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

SIZES = {"cuda": 8192, "cpu": 1024}  # rows and columns of the matrices
_BLOCKS = {"cuda": 32, "cpu": 1}  # products between two time stamps


def main(device: str, precision: str, seconds: float) -> None:
    """Multiply for about `seconds`, and print {"flops": per second, "size", "torch": version}."""
    import torch

    size = SIZES[device]
    block = _BLOCKS[device]
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
    left = torch.randn(size, size, device=device).to(dtype)
    right = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty(size, size, device=device, dtype=dtype)

    def multiply() -> float:
        began = time.perf_counter()
        for _ in range(block):
            torch.mm(left, right, out=out)
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / block

    began = time.perf_counter()
    multiply()  # initialises the library; not counted
    durations = [multiply()]
    while time.perf_counter() - began < seconds:
        durations.append(multiply())
    flops = 2.0 * size**3 / statistics.median(durations)
    print(json.dumps({"flops": flops, "size": size, "torch": torch.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
