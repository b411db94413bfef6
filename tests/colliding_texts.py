"""Two texts without a common word order whose n-grams of 2,048 tokens have the same hash."""


def colliding_texts() -> tuple[str, str]:
    """Returns two texts of 2,048 words, a Thue-Morse sequence and its complement.

    Polynomial hashes modulo a power of two are the same for both whatever base and words are: the
    difference is a product of BASE^(2^i) - 1, and together these have more than 64 factors of two.
    """
    bits = [number.bit_count() & 1 for number in range(2048)]
    return " ".join("ab"[bit] for bit in bits), " ".join("ba"[bit] for bit in bits)
