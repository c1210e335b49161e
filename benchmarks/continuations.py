"""Show what a decoder writes with averages in no layer, in all layers, and in single layers.

    python benchmarks/continuations.py MODEL AVERAGES LAYER ...

AVERAGES is the HDF5 file of a study's averages. Prints a Markdown table with the most likely continuations.
"""

from __future__ import annotations

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

import papa

PROMPTS = (
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "Mary Bennet met Tom Wright at the station. Tom Wright gave his ticket to Mary",
    "The museum was built in 1890 by a rich merchant. After the war, the",
)
NEW_TOKENS = 12


def main(folder: str, averages: str, layers: list[int]) -> None:
    """Print a row for each prompt and each choice of replaced heads."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    constants = papa.Constants.load(averages)
    heads = range(constants.mean.shape[1])
    replaced = {"none": [], "all": None}
    replaced |= {f"layer {layer}": [(layer, head) for head in heads] for layer in layers}
    print("| text | averages in | continuation |\n|---|---|---|")
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt")
        for name, of_these in replaced.items():
            with papa.replaced_attention(model, constants, of_these):
                ids = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
            written = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])
            print(f"| {prompt} | {name} | {written.replace(chr(10), ' ')} |")


if __name__ == "__main__":
    main(*sys.argv[1:3], list(map(int, sys.argv[3:])))
