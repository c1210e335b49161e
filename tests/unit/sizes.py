"""Sizes of the tiny random models: primes, all different, so that a swapped axis cannot go unnoticed."""

LAYERS, HEADS, CHANNELS, SLOTS, EXAMPLES, VOCABULARY = 3, 5, 7, 23, 11, 61

# of the corpus that stages run on
CORPUS_SLOTS, TRAIN, VALIDATION = 13, 67, 31
