"""Sizes of the tiny random models: primes, all different, so that a swapped axis cannot go unnoticed."""

LAYERS, HEADS, CHANNELS, SLOTS, EXAMPLES, VOCABULARY = 3, 5, 7, 23, 11, 61
