"""What all tests share: one thread, and no network, whatever the machine has."""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
