"""Classes of characters, as regular expressions: scripts without spaces, and punctuation.

In these scripts a line may break between any two letters or syllables (classes ID, CJ and SA of
https://www.unicode.org/reports/tr14/), and words are found by a dictionary, if at all
(https://www.unicode.org/reports/tr29/). Their digits are not among the classes: they are written as
numbers. Tibetan is not one of these scripts, since punctuation separates its syllables.
"""

import functools
import re
import string
import unicodedata

_LETTERS_AND_MARKS = {
    "Thai": "\u0e01-\u0e3a\u0e40-\u0e4e",
    "Lao": "\u0e80-\u0ebd\u0ec0-\u0ece\u0edc-\u0edf",
    "Myanmar": "\u1000-\u103f\u1050-\u108f\u109a-\u109d\ua9e0-\ua9ef\ua9fa-\ua9fe"
    "\uaa60-\uaa76\uaa7a-\uaa7f",
    "Khmer": "\u1780-\u17d3\u17d7\u17dc\u17dd",
    "Tai Le": "\u1950-\u197f",
    "New Tai Lue": "\u1980-\u19cf",
    "Tai Tham": "\u1a20-\u1a7f\u1aa7",
    "Tai Viet": "\uaa80-\uaadd",
    "Ahom": "\U00011700-\U0001172f\U00011740-\U00011746",
    "Han": "\u2e80-\u2fd5\u3005-\u3007\u3021-\u302d\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00016fe3\U00016ff0-\U00016ff1\U00020000-\U0003fffd",
    "Hiragana, Katakana": "\u3031-\u3035\u303c\u3041-\u3096\u3099-\u309a\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f\U0001aff0-\U0001affe"
    "\U0001b000-\U0001b16f",
    "Bopomofo": "\u3105-\u312f\u31a0-\u31bf",
    "Yi": "\ua000-\ua48c",
    "Tangut, Khitan, Nushu": "\U00016fe0-\U00016fe1\U00016fe4\U00017000-\U00018d7f"
    "\U0001b170-\U0001b2fb",
}
UNSPACED = f"[{''.join(_LETTERS_AND_MARKS.values())}]"


@functools.cache
def spaces_and_punctuation() -> str:
    """Returns an expression of what stands between words in any script.

    White space, ASCII punctuation and its full-width forms, and Unicode's punctuation (category P).
    """
    others = "".join(map(chr, range(0x80, 0x20000)))  # there is none beyond
    kinds = map(unicodedata.category, others)
    found = [char for char, kind in zip(others, kinds, strict=True) if kind[0] == "P"]
    full_width = [chr(ord(char) - ord("!") + 0xFF01) for char in string.punctuation]
    return rf"[\s{re.escape(''.join([string.punctuation, *full_width, *found]))}]+"
