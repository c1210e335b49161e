"""Progress bars on stderr, which is a terminal or the log file of a job."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable

from torch import Tensor
from tqdm import tqdm


def progress(batches: Iterable[Tensor], title: str, total: int, begun: int = 0) -> Generator[Tensor, None, None]:
    """Yield `batches` of examples, and show how many of `total` examples are done; `begun` is the initial number.

    In a log file, a line is written every half minute, and none for a shorter job.
    """
    interactive = sys.stderr.isatty()
    with tqdm(
        total=total,
        initial=begun,
        desc=title,
        unit=" examples",
        unit_scale=True,
        file=sys.stderr,
        mininterval=0.2 if interactive else 30,
        delay=0 if interactive else 30,
        leave=False,
        dynamic_ncols=interactive,
    ) as bar:
        for batch in batches:
            yield batch
            bar.update(len(batch))
