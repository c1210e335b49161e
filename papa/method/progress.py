"""Progress bars of long steps: on stderr, which is the terminal in a notebook and the log file in the workflow."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable

from torch import Tensor
from tqdm.auto import tqdm


def progress(batches: Iterable[Tensor], what: str, total: int, begun: int = 0) -> Generator[Tensor, None, None]:
    """Yield `batches` of example numbers and count their examples: `total` in all, of which `begun` went by before.

    A terminal sees the bar move; a log gets a line every half minute.
    """
    alive = sys.stderr.isatty()
    with tqdm(
        total=total,
        initial=begun,
        desc=what,
        unit=" examples",
        unit_scale=True,
        file=sys.stderr,
        mininterval=0.2 if alive else 30,
        dynamic_ncols=alive,
    ) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch))
