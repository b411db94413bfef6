"""Two texts of as many words that are unlike, and whose n-grams have the same hash all the same."""

LENGTH = 4097


def colliding_texts() -> tuple[str, str]:
    """Returns two texts of LENGTH words: a common beginning, then a sequence and its complement.

    The sequence is that of Thue and Morse. Polynomial hashes modulo a power of two are then the
    same, whatever base and words are: their difference is a product of BASE^(2^i) - 1, and these
    have more than 64 factors of two. The beginning is as long as the window that is looked for
    first, which must be the same, too.
    """
    bits = [number.bit_count() & 1 for number in range(2048)]
    beginning = "c " * (LENGTH - len(bits))
    one, other = (" ".join(words[bit] for bit in bits) for words in ("ab", "ba"))
    return beginning + one, beginning + other
