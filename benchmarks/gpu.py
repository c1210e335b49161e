"""Tokens per second of large models on a GPU: stock, with papa's attention, and with all heads replaced.

    python benchmarks/gpu.py                 # BERT-large and a decoder of 1.2 billion weights, both random
    python benchmarks/gpu.py --tiny --device cpu             # checks that the script runs
    python benchmarks/gpu.py --device cpu --precisions float32 --models FOLDER --shapes 32x16 4x256 [--own-code]

With `--own-code`, papa catches the softmax in the model's own code even if the model looks up its attention by name.

Everything is measured in one run, in turn with the stock model on transformers' default attention. Peak is the speed of
one large matrix product in the same precision, measured here too. A share of peak counts the operations of the model's
linear layers and of full attention, also where replaced heads need fewer. Compare a λ step with the forward and
backward pass of the stock model with eager attention, whose weights are frozen, too.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import torch
import transformers
from torch import Tensor

from papa.data.packed import Packed
from papa.method.averaging import Averaging
from papa.model import settling
from papa.model.attention import NotLookedUp
from papa.model.model import Model

SHAPES = {
    "BERT-large": (
        transformers.BertConfig,
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
        [(64, 128), (32, 512)],
    ),
    "decoder, 1.2 billion": (
        transformers.LlamaConfig,
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        }
        | {"intermediate_size": 8192, "vocab_size": 128256, "max_position_embeddings": 4096},
        [(16, 512), (4, 2048)],
    ),
}
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
}
LENGTHS = ("equal", "varied")
PRECISIONS = ("float32", "tf32", "bfloat16")


def waited(device: torch.device) -> float:
    """Return the time after everything that was started on the device has ended."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(work: Callable[[], object], device: torch.device, least: float) -> float:
    """Return the mean seconds of a run of `work`, from as many runs as take `least` seconds, after two runs."""
    for _ in range(2):
        work()
    runs = 0
    begin = waited(device)
    while not runs or time.perf_counter() - begin < least:
        work()
        runs += 1
        waited(device)
    return (waited(device) - begin) / runs


def peak(device: torch.device, dtype: torch.dtype, size: int, least: float) -> float:
    """Return the operations per second of a product of two square matrices."""
    first, second = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / seconds(lambda: first @ second, device, least)


def operations(model: transformers.PreTrainedModel, mask: Tensor) -> float:
    """Count those of one forward pass for the tokens of a mask, without the prediction head."""
    config = model.config
    in_layers = sum(values.numel() for name, values in model.named_parameters() if "layer" in name)
    pairs = float(mask.sum(1).square().sum())
    return (
        2.0 * in_layers * int(mask.sum())
        + 4 * config.num_hidden_layers * config.hidden_size * pairs
    )


def mask_of(batch: int, slots: int, lengths: str) -> Tensor:
    """Return the mask of texts that fill all slots, or at least half of them."""
    drawn = torch.randint(
        slots // 2, slots + 1, (batch,), generator=torch.Generator().manual_seed(0)
    )
    drawn[0] = slots
    return (
        torch.arange(slots)
        < (drawn if lengths == "varied" else torch.full_like(drawn, slots))[:, None]
    ).long()


def works(stock: Any, ours: Model, mask: Tensor) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield a name, the number of forward passes that the work is worth, and the work, for texts with this mask."""
    slots = mask.shape[1]
    ids = torch.randint(5, stock.config.vocab_size, mask.shape)
    packed = ours.pack(Packed.of({"input_ids": ids, "attention_mask": mask}))
    ids = ids.to(ours.device)
    mask = mask.to(ours.device)

    @torch.no_grad()
    def run(replacement: Any) -> list[Tensor]:
        return ours.run(packed, replacement)

    yield "stock", 1, torch.no_grad()(lambda: stock(input_ids=ids, attention_mask=mask))
    yield "none replaced", 1, partial(run, ours.replacement())
    shape = (ours.layers, ours.heads)
    matrix = torch.rand(*shape, slots, slots, device=ours.device, dtype=ours.dtype)
    yield "all average", 1, partial(run, ours.replacement(matrix))
    half = [
        (layer, head)
        for layer in range(ours.layers)
        for head in range(ours.heads)
        if (layer + head) % 2
    ]
    yield "half average", 1, partial(run, ours.replacement(matrix, half))
    yield "averaging", 1, torch.no_grad()(partial(Averaging(ours, slots).add, packed))
    raw = torch.zeros(shape, device=ours.device, requires_grad=True)

    mixes = ours.replacement(
        matrix, mixing=torch.full(shape, 0.5)
    )  # constants are checked and copied only once

    def learn() -> None:
        weights = raw.sigmoid().to(ours.dtype)
        mixed = [
            replace(mix, weights=of_layer) for mix, of_layer in zip(mixes, weights, strict=True)
        ]
        ours.run(packed, mixed)[-1].float().square().mean().backward()

    def eager() -> None:
        default = stock.config._attn_implementation
        stock.set_attn_implementation("eager")
        embedded = stock.get_input_embeddings()(ids).requires_grad_()
        try:
            stock(inputs_embeds=embedded, attention_mask=mask)[0].float().square().mean().backward()
        finally:
            stock.set_attn_implementation(default)

    yield "λ step", 2, learn
    yield "eager stock, forward and backward", 2, eager


def by_own_code(*_: object) -> None:
    """Refuse to replace attention by name, as if the model could not look it up."""
    raise NotLookedUp


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table per model and precision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=0.4, help="duration of each measurement")
    parser.add_argument("--tiny", action="store_true", help="tiny models in 16 slots")
    parser.add_argument(
        "--models", nargs="+", default=[*SHAPES], help="names, or folders with a config"
    )
    parser.add_argument("--shapes", nargs="+", help="texts x slots, such as 4x256")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--own-code", action="store_true", help="catch the model's softmax")
    options = parser.parse_args(arguments)
    if options.own_code:
        settling.patch = by_own_code
    device = torch.device(options.device)
    size = 64 if options.tiny else 8192 if device.type == "cuda" else 1024
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}")
    for title in options.models:
        kind, settings, shapes = SHAPES.get(
            title, (transformers.AutoConfig.from_pretrained, {}, [])
        )
        config = (
            kind(**settings | (TINY if options.tiny else {})) if title in SHAPES else kind(title)
        )
        shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes or []] or shapes
        if options.tiny and title != "BERT-large":
            config.num_key_value_heads = 2
        for precision in options.precisions:
            dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
            torch.manual_seed(0)
            with torch.device(device):
                stock = (
                    transformers.AutoModel.from_config(config)
                    .to(dtype)
                    .eval()
                    .requires_grad_(False)
                )
            ours = Model(copy.deepcopy(stock))
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            best = peak(device, dtype, size, options.seconds)
            print(f"\n{title}, {precision}; peak {best / 1e12:.0f} TFLOP/s\n")
            print(
                "| texts × slots, lengths | | tokens/s | against stock | share of peak | peak memory, GB |"
            )
            print("|---|---|--:|--:|--:|--:|")
            for (batch, slots), lengths in product([(2, 16)] if options.tiny else shapes, LENGTHS):
                mask = mask_of(batch, slots, lengths)
                stocks = float("nan")
                forward = operations(stock, mask)
                tokens = int(mask.sum())
                for label, passes, work in works(stock, ours, mask):
                    if device.type == "cuda":
                        torch.cuda.reset_peak_memory_stats()
                    try:
                        took = seconds(work, device, options.seconds)
                    except torch.OutOfMemoryError:
                        print(
                            f"| {batch} × {slots}, {lengths} | {label} | out of memory | | | |",
                            flush=True,
                        )
                        continue
                    stocks = took if label == "stock" else stocks
                    share = passes * forward / took / best
                    held = torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0.0
                    print(
                        f"| {batch} × {slots}, {lengths} | {label} | {tokens / took:,.0f} | {stocks / took:.2f} | "
                        f"{share:.0%} | {held:.1f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
