"""What all tests share: one thread, no network, and Ctrl-C that is heard, whatever started them."""

import functools
import os
import signal
from pathlib import Path

import pytest
import vl_convert

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
# what a shell starts in the background ignores SIGINT, and so would all that it starts
signal.signal(signal.SIGINT, signal.default_int_handler)
# bundling takes two seconds for each report, and always gives the same script
vl_convert.javascript_bundle = functools.cache(vl_convert.javascript_bundle)


@pytest.fixture
def no_figures(monkeypatch):
    """Figures are empty files: drawing takes most of a small study's time, and shows nothing that tables do not."""

    def touch(figure, outputs, plots):
        for path in map(Path, outputs.values()):
            if path.suffix in (".svg", ".png", ".html"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()

    monkeypatch.setattr("papa.results.analysis.save_figure", touch)
