"""Speed and memory on real texts: papa against the stock model, whose batches are padded.

    python benchmarks/real_texts.py MODEL TOKENS [--rows 32] [--size 8] [--threads 2]

MODEL is a folder, and TOKENS a file of results/cache/tokenize. Prints a Markdown table of the time of each kind of work
on the same texts, relative to that of the stock model with all slots, in turn and the median of three rounds. The stock
model runs batches of consecutive texts, with all slots or without gaps, padded to the longest text. papa chooses its
own batches. A step of λ, and of the stock model forward and backward with eager attention, has one batch. Each kind
runs in a further process, too, for the largest memory that it uses.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import torch
from transformers import AutoModel

from benchmarks.parts import peak_memory
from papa.data.packed import Packed
from papa.data.tokens import Tokens, TokensFile
from papa.method.averaging import Averaging
from papa.model.budget import TokenBudget
from papa.model.load import load_model
from papa.model.replacement import Replacement

ROUNDS = 3
Work = Callable[[], object]


def rows_of(path: str, rows: int) -> Tokens:
    """Return training rows that are spread evenly over the split."""
    with TokensFile.opened(path) as file:
        every = file.split("train")
    chosen = torch.linspace(0, len(every) - 1, rows).long()
    return Tokens.of([every.batch(chosen)])


def stock_works(folder: str, tokens: Tokens, size: int) -> dict[str, Work]:
    """Return the work of the stock model."""
    stock = AutoModel.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
    batches = [tokens.batch(part) for part in torch.arange(len(tokens)).split(size)]

    def inputs(batch: Packed) -> dict[str, torch.Tensor]:
        mask = batch.unpack(torch.ones_like(batch.ids))
        return {"input_ids": batch.unpack(batch.ids), "attention_mask": mask}

    def run(arrange: Callable[[Packed], Packed]) -> None:
        with torch.inference_mode():
            for batch in batches:
                stock(**inputs(arrange(batch)), output_hidden_states=True, use_cache=False)

    def eager() -> None:
        default = stock.config._attn_implementation
        stock.set_attn_implementation("eager")
        given = inputs(batches[0])
        embedded = stock.get_input_embeddings()(given.pop("input_ids")).requires_grad_()
        output = stock(inputs_embeds=embedded, **given)
        output[0].square().mean().backward()
        stock.set_attn_implementation(default)

    return {
        "stock, all slots": lambda: run(lambda batch: batch),
        "stock, without gaps": lambda: run(lambda batch: batch.compact),
        "stock, forward and backward": eager,
    }


def our_works(folder: str, tokens: Tokens, size: int) -> dict[str, Work]:
    """Return the same work as papa does it."""
    model = load_model(folder)
    slots = tokens.n
    shape = (model.layers, model.heads)
    matrix = (
        torch.rand(*shape, slots, slots).tril()
        if model.causal
        else torch.rand(*shape, slots, slots)
    )
    matrix /= matrix.sum(-1, keepdim=True)
    none = model.replacement()
    averages = model.replacement(matrix)
    mixes = model.replacement(matrix, mixing=torch.full(shape, 0.5))
    first = model.pack(tokens.batch(torch.arange(size)))
    raw = torch.zeros(shape, requires_grad=True)

    def run(replacement: Replacement) -> None:
        def work(_examples: torch.Tensor, batch: Packed, _first: int) -> None:
            model.run(batch, replacement)

        with torch.inference_mode():
            for _ in TokenBudget(model.token_budget).run(model, tokens, work):
                pass

    def average() -> None:
        for _ in Averaging(model, slots).add_group(tokens, TokenBudget(model.token_budget)):
            pass

    def learn() -> None:
        weights = raw.sigmoid()
        mixed = [replace(mix, weights=row) for mix, row in zip(mixes, weights, strict=True)]
        model.run(first, mixed)[-1].square().mean().backward()

    return {
        "none replaced": lambda: run(none),
        "all averages": lambda: run(averages),
        "averaging": average,
        "a step of λ": learn,
    }


WORKS = {
    name: works
    for works, names in {
        stock_works: ("stock, all slots", "stock, without gaps", "stock, forward and backward"),
        our_works: ("none replaced", "all averages", "averaging", "a step of λ"),
    }.items()
    for name in names
}
COMPARED = dict.fromkeys(WORKS, "stock, all slots") | {"a step of λ": "stock, forward and backward"}
COMPARED["stock, forward and backward"] = "stock, forward and backward"


def seconds(work: Work) -> float:
    """Return the seconds of a run."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table; or do one kind of work, and print the largest memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--size", type=int, default=8, help="texts in a batch of the stock model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=WORKS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    tokens = rows_of(options.tokens, options.rows)
    given = (options.model, tokens, options.size)
    if options.only:
        WORKS[options.only](*given)[options.only]()
        print(peak_memory())
        return
    works = stock_works(*given) | our_works(*given)
    for work in works.values():
        work()
    rounds = [{name: seconds(work) for name, work in works.items()} for _ in range(ROUNDS)]
    took = {name: median(each[name] for each in rounds) for name in works}
    used = len(tokens.ids) / (len(tokens) * tokens.n)
    print(
        f"{len(tokens)} texts of {len(tokens.ids) / len(tokens):.0f} tokens in {tokens.n} slots ({used:.0%})\n"
    )
    print("| work | seconds | relative to stock | rounds | peak memory, GB |")
    print("|---|--:|--:|--:|--:|")
    for name, time_of in took.items():
        ratios = [each[name] / each[COMPARED[name]] for each in rounds]
        command = [
            sys.executable,
            "-m",
            "benchmarks.real_texts",
            *(arguments or sys.argv[1:]),
            "--only",
            name,
        ]
        memory = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(
            f"| {name} | {time_of:.2f} | {median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} | "
            f"{int(memory) / 1e9:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
