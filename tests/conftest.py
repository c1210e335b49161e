"""What all tests share: one thread, no network, and Ctrl-C that is heard, whatever started them."""

import os
import signal

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
# what a shell starts in the background ignores SIGINT, and so would all that it starts
signal.signal(signal.SIGINT, signal.default_int_handler)
