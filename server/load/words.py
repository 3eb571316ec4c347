"""Text of so many tokens, nearly: common words, most of them whole in any tokenizer. The server's count is told."""

import random

_TEXT = (
    "the of and to in is was for that on with as by at from it he be are this his which have or not an had you they "
    "their one but were all she there would her when who will more if no out so said what up its about into them can "
    "only other new some could time these two may then do first any my now such like our over man me even most made "
    "after also did many before must through back years where much your way well down should because each just those "
    "people how too little state good very make world still own see men work long get here between both life being "
    "under never day same another know while last might us great old year off come since against go came right used "
    "take three"
)
WORDS = _TEXT.split()


def words(seed: str, count: int) -> str:
    """The same text for the same seed, with a space before each word; longer ones begin as shorter ones do."""
    return "".join(f" {word}" for word in random.Random(seed).choices(WORDS, k=count))
