"""Sizes of the tiny random models: primes, all different, so that a swapped axis cannot go unnoticed."""

LAYERS = 3
HEADS = 5
CHANNELS = 7
SLOTS = 23
EXAMPLES = 11
VOCABULARY = 61

# of the corpus that stages run on
CORPUS_SLOTS = 13
TRAIN = 67
VALIDATION = 31
