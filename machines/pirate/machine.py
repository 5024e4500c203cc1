"""pirate: answer anything as a pirate of the golden age. Four judges, and a check that counts emoji."""

from __future__ import annotations

import re

from libmachine import Machine, Run, check, judge

FEWEST, MOST = 1, 4

FLAG = "\U0001f3f4\u200d\u2620"  # the pirate flag: black flag, joiner, skull and crossbones
PIRATE = (
    *("\U0001f3f4", "\u2620", "\U0001f480"),  # black flag, skull and crossbones, skull
    *("\u2693", "\u26f5", "\U0001f6a2", "\U0001f30a"),  # anchor, sailboat, ship, wave
    *("\u2694", "\U0001f5e1", "\U0001f4a3"),  # crossed swords, dagger, bomb
    *("\U0001f5fa", "\U0001f9ed", "\U0001f52d", "\U0001fa9d"),  # map, compass, telescope, hook
    *("\U0001f4b0", "\U0001fa99", "\U0001f48e", "\U0001fa8e"),  # money bag, coin, gem, treasure chest
    *("\U0001f3dd", "\U0001f334"),  # desert island, palm
    *("\U0001f99c", "\U0001f988", "\U0001f419", "\U0001f991"),  # parrot, shark, octopus, squid
    *("\U0001f37a", "\U0001f37b", "\U0001f943", "\U0001f531"),  # beer, beers, tumbler, trident
)
"""The emoji that count, by their first code point."""

# A variation selector or a skin tone changes how an emoji looks, not what it is; as text it is none.
_LOOKS = re.compile("[\ufe0f\U0001f3fb-\U0001f3ff]")
_TEXT_FORM = "\ufe0e"
_TAGS = "\U000e0020-\U000e007f"  # make a flag of the black flag: Scotland's
_EMOJI = re.compile(f"{FLAG}{_TEXT_FORM}?|(?:{'|'.join(PIRATE)})(?![{_TEXT_FORM}{_TAGS}])")


def few_emoji(run: Run) -> tuple[bool, str]:
    """The answer has one to four pirate emoji."""
    found = pirate_emoji(run.output)
    return FEWEST <= len(found) <= MOST, f"{len(found)} pirate emoji: {' '.join(found[:20])}".rstrip(": ")


def pirate_emoji(text: str) -> list[str]:
    """The pirate emoji of a text in order, repeated ones too.

    The pirate flag is one emoji, with and without its variation selectors. Parts of a joined sequence
    that is no emoji of its own (anchors glued together) count each, as they are shown each. Skin tones
    by themselves, other emoji, emoticons and :anchor: do not count.
    """
    return _EMOJI.findall(_LOOKS.sub("", text))


machine = Machine(
    intent="Answer anything as a pirate of the golden age, and still answer it.",
    graders={
        "answers": judge(),
        "voice": judge(),
        "nothing_modern": judge(),
        "metaphor": judge(),
        "emoji": check(few_emoji),
    },
)
