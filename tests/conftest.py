"""All tests share one thread (or THREADS), no network, and a Ctrl-C that is heard, whatever started them."""

import functools
import os
import signal

import pytest
import vl_convert
from tiny import empty_figure

os.environ |= {"OMP_NUM_THREADS": os.environ.get("THREADS", "1"), "HF_HUB_OFFLINE": "1"}
# what a shell starts in the background ignores SIGINT, and so would all that it starts
signal.signal(signal.SIGINT, signal.default_int_handler)
# bundling takes two seconds for each report, and always gives the same script
vl_convert.javascript_bundle = functools.cache(vl_convert.javascript_bundle)


@pytest.fixture
def no_figures(monkeypatch):
    """Figures are empty files: drawing takes most of a small study's time, and shows nothing that tables do not."""

    monkeypatch.setattr("papa.results.section.draw", empty_figure)
