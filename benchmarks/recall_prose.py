"""Prose, program code and documentation from a small grammar and a vocabulary, by seed.

A rule is a template whose capitals are other rules or kinds of words. Prose resembles an old novel:
subordinate clauses, places, people, years. A `Voice` draws most of its words from a topic, so that
two texts on one topic share words but no sentence.
"""

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

WORDS = {
    "NOUN": """acorn anchor apprentice archway attic bakery ballad banner barley barrel basin beacon
        bell bench blacksmith blanket boundary bridge brook bucket candle canvas captain carriage
        cask castle cellar chapel chimney clerk clock cloister coach coast cottage courier cradle
        curtain dairy debt doorway drawer ferry fiddle flute forge fountain furrow gallery garden
        garret glazier grain granary harbour harness hearth hedge herald hillside hive horizon
        hostel inkwell inn island jetty journal kettle kiln kitchen ladder lamp lantern ledger
        letter library lighthouse loaf loom lute magistrate manor map market mast meadow miller
        minstrel mirror moat monastery mortar needle notary oak oar orchard organ oven parchment
        parish pasture pedlar pilgrim pond porch pulley quarry quill rafter reef ribbon ridge
        sail sailor saddle sapling schooner scribe shepherd shutter sickle signal smithy spade
        spire stable staircase steward stove surgeon tailor tannery tavern tide tinker toll tower
        trellis tunnel turret valley vessel vineyard wagon warden warehouse weaver well wheel
        widow windmill winter workshop yard""",
    "ADJ": """abandoned amber ancient ashen bitter bleak bold brazen brittle broad calm carved
        cautious cheerful clumsy cold coloured costly crooked damp deep distant drowsy dusty eager
        eastern elder empty faded faithful famous fierce foreign forgotten fragile frozen gentle
        gilded gloomy graceful grey hasty hidden hollow honest humble idle iron jealous joyful
        lonely lofty lost low marble mild mossy muddy narrow neglected new northern obscure odd
        painted pale patient plain polished proud quiet ragged restless rough rusty sacred scarlet
        secret shallow silent silver slender smoky solemn southern spotless stern stout sturdy
        sudden sullen tangled tender timid upright vacant velvet weary western wicked wooden
        worthy young""",
    "VERB": """abandoned admired arranged blamed borrowed bought carried chased cleaned closed
        concealed counted covered crossed defended delivered described discovered divided dreaded
        emptied entered examined exchanged fastened feared fetched finished followed forgot gathered
        guarded hired honoured ignored inherited inspected kindled lifted loaded locked lost
        measured mended mentioned missed moved noticed obeyed offered opened painted passed paid
        planted praised preferred promised pursued questioned raised recalled refused remembered
        repaired restored returned rowed searched sold sketched steered stole studied surrendered
        taught touched traded tried trusted turned visited warned washed watched weighed
        welcomed""",
    "ADV": """absently afterwards bravely calmly carefully carelessly certainly cheerfully
        cleverly coldly daily duly eagerly easily evidently faithfully freely gladly gravely
        hastily hardly honestly humbly idly kindly lately loudly merely nearly nobly often
        openly patiently plainly politely promptly proudly quickly quietly rarely readily
        seldom secretly shortly silently slowly softly solemnly steadily suddenly twice""",
    "PREP": """above across against along among before behind below beneath beside between beyond
        near opposite outside over past round through toward under upon within""",
    "CONJ": "although because before since though unless until whenever where while",
}
RULES = {
    "SENTENCE": """CLAUSE.|CLAUSE, and CLAUSE.|When CLAUSE, CLAUSE.|CLAUSE, CONJ CLAUSE.
        |In the year YEAR CLAUSE.|It was ADV said in PLACE that CLAUSE.|“CLAUSE,” said PERSON ADV.
        |CONJ CLAUSE, CLAUSE; and CLAUSE.|PREP OBJECT, CLAUSE.|Nobody VERB OBJECT CONJ CLAUSE.""",
    "CLAUSE": """SUBJECT VERB OBJECT|SUBJECT ADV VERB OBJECT|SUBJECT VERB OBJECT PREP OBJECT
        |SUBJECT had ADV VERB OBJECT|SUBJECT, who VERB OBJECT, VERB OBJECT PREP PLACE
        |PREP PLACE SUBJECT VERB OBJECT|OBJECT was never VERB by SUBJECT""",
    "SUBJECT": "the NOUN|the ADJ NOUN|PERSON|PERSON|a NOUN of PLACE|the NOUN PREP the NOUN|they",
    "OBJECT": """the NOUN|the ADJ NOUN|a ADJ ADJ NOUN|every NOUN PREP PLACE|PERSON’s NOUN|NUMBER
        measures of NOUN|the NOUN and the ADJ NOUN|it""",
    "QUESTION": """Who ADV VERB OBJECT PREP the ADJ NOUN, CONJ CLAUSE?|For what reason was OBJECT
        VERB by SUBJECT, CONJ CLAUSE?|Of which NOUN is it said that CLAUSE and that CLAUSE?
        |If SUBJECT VERB NUMBER measures of NOUN and OBJECT VERB NUMBER more, how many are left?""",
    "ASKED": """Who ADV VERB the ADJ NOUN PREP the ADJ NOUN?|In YEAR, which NOUN of TOWN was ADV
        VERB PREP the ADJ NOUN?|Was the ADJ NOUN of TOWN VERB by PERSON, or only VERB?""",
    "CHOICE": "the ADJ NOUN PREP PLACE|OBJECT PREP OBJECT|NUMBER measures of NOUN|PERSON of PLACE",
    "TERM": "ADJ NOUN|the NOUN|PERSON|the NOUN of PLACE|the ADJ NOUN|NOUN",
    "LINE": """    NOUN_ADJ = VERB_NOUN(ADJ_NOUN, NUMBER)|    if ADJ_NOUN > NUMBER:|    for NOUN in
        VERB_NOUN.ADJ_NOUN:|        NOUN_NOUN.VERB(ADJ_NOUN[NUMBER])|    NOUN["ADJ_NOUN"] = NUMBER *
        ADJ_NOUN|    # VERB OBJECT CONJ CLAUSE""",
    "FUNCTION": '''def VERB_NOUN_ADJ(ADJ_NOUN, NOUN=NUMBER):
    """VERB OBJECT PREP OBJECT, CONJ CLAUSE."""''',
    "USAGE": """To have the NOUN VERB ADV, set `ADJ_NOUN` to NUMBER.|- `VERB_NOUN`: OBJECT, CONJ
        CLAUSE.|The option `--ADJ_NOUN` VERB OBJECT PREP the NOUN.|Since version NUMBER.NUMBER
        CLAUSE.""",
    "HEADING": "## The ADJ NOUN, VERB|## ADJ NOUN PREP PLACE",
    "PLACE": "TOWN|TOWN|TOWN Abbey|the SHIRE moors|the SHIRE road",
    "PERSON": "TITLE SURNAME|FORENAME SURNAME|FORENAME|TITLE SURNAME of TOWN",
    "TITLE": "Mr|Mrs|Miss|Captain|Doctor|Lady|Sir",
}
_NAMES = {  # how names end, after some syllables
    "SYLLABLE": """ash bar bel bram bur cal car cor dal dun ed el fen gar hal har ings kel ken lang
        lin mar mel nor os pen pol rad ros sel sten tar thorn tor ul wald war wen wick yar""",
    "TOWN": "bridge by combe dale ford ham hurst ley mouth stead ton wick",
    "SHIRE": "shire land mark",
    "SURNAME": "son man er well field worth more s",
    "FORENAME": "a ard bert eth in ine wyn y",
}
_ENDINGS = {kind: text.split() for kind, text in _NAMES.items()}
_SYLLABLES = _ENDINGS.pop("SYLLABLE")
_SYMBOL = re.compile("|".join(sorted([*RULES, *WORDS, *_ENDINGS, "YEAR", "NUMBER"], reverse=True)))
_EXPANSIONS = {
    name: [re.sub(r"\s*\n\s*", " ", each.strip("\n")) for each in re.split(r"\s*\n\s*\||\|", text)]
    for name, text in RULES.items()
    if name != "FUNCTION"
} | {"FUNCTION": [RULES["FUNCTION"]]}
_LEXICON = {kind: text.split() for kind, text in WORDS.items()}
_KIND_OF = {word: kind for kind, words in _LEXICON.items() for word in words}


class Topic(NamedTuple):
    """Preferred words of a topic, by kind."""

    words: dict[str, Sequence[str]]


def synonym(word: str, rng: random.Random) -> str | None:
    """Returns another word of the same kind, or None for an unknown word."""
    kind = _KIND_OF.get(word)
    return rng.choice(_LEXICON[kind]) if kind else None


class Voice:
    """Draws texts from a random source, most words from a topic."""

    def __init__(self, rng: random.Random, topic: Topic | None = None):
        self.rng = rng
        self.topic = topic or self._new_topic()

    def _new_topic(self) -> Topic:
        words: dict[str, Sequence[str]] = {
            kind: self.rng.sample(_LEXICON[kind], 14) for kind in ("NOUN", "ADJ", "VERB")
        }
        return Topic(words | {kind: [self._name(kind) for _ in range(4)] for kind in _ENDINGS})

    def _name(self, kind: str) -> str:
        stem = "".join(self.rng.sample(_SYLLABLES, self.rng.choice((1, 2, 2))))
        return (stem + self.rng.choice(_ENDINGS[kind])).capitalize()

    def say(self, rule: str) -> str:
        """Returns a text of a rule, with capitals at the starts of sentences."""
        text = _SYMBOL.sub(self._replace, self.rng.choice(_EXPANSIONS[rule]))
        if rule not in ("SENTENCE", "QUESTION"):
            return text
        text = re.sub(r"\ba(?= [aeiou])", "an", text).replace("by they", "by them")
        start = text.startswith("“")
        return text[:start] + text[start].upper() + text[start + 1 :]

    def _replace(self, found: re.Match[str]) -> str:
        kind = found[0]
        if kind in _EXPANSIONS:
            return self.say(kind)
        if kind in ("YEAR", "NUMBER"):
            return str(self.rng.randint(*((1420, 1880) if kind == "YEAR" else (2, 96))))
        if (own := self.topic.words.get(kind)) and self.rng.random() < 0.6:
            return self.rng.choice(own)
        return self.rng.choice(_LEXICON[kind]) if kind in _LEXICON else self._name(kind)
