"""The synthetic trainer's script."""

import synthetic
from synthetic import Required
from transformers import HfArgumentParser


def make():
    return HfArgumentParser((synthetic.Everything, Required))


if __name__ == "__main__":
    parser = make()
    everything, required = parser.parse_args_into_dataclasses()
