"""The words that fill the slots of the grammars; train and validation share none of them.

Every list below is an open word class: people, first names, verbs, adjectives. Of every three words in a list,
`Fillers` gives two to train and the third to validation. So no filler of a validation example occurs in training. The
words that both splits share are in the grammars: articles, pronouns, prepositions, auxiliaries, negations, and the
phrases that open a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass

PEOPLE = """doctor nurse lawyer teacher student farmer driver pilot painter singer dancer writer actor banker soldier
sailor hunter miner builder guard clerk judge poet chef scientist engineer designer manager artist musician player
runner swimmer guest visitor tourist neighbor friend cousin uncle brother sister girl boy king queen prince priest
monk reporter editor author critic scholar professor officer captain duke baron knight mayor senator governor minister
ambassador director producer composer guitarist comedian wizard pirate agent surgeon bishop rabbi nun servant cook
tenant client customer rider cyclist wrestler referee keeper ranger merchant trader accountant assistant translator
historian architect mechanic technician sculptor photographer""".split()

TRAITS = """tired happy busy famous rich poor young old tall angry quiet polite proud brave kind lazy clever calm sad
hungry nervous honest lonely bored friendly careful strong weak wise shy""".split()

FIRST_NAMES = """anna ben carla david emma frank george helen ivan julia kevin laura martin nora oscar peter rachel
simon tina victor wendy adam beth chris diana eric fiona gary hannah jack kate leo mary nick olivia paul ruth sam tom
ursula alice brian claire daniel ellen felix henry irene james karen louis maria nathan pamela robert sarah thomas
vera walter amy bruce cindy derek edith fred gloria harry isabel jason kelly larry monica neil patricia ralph sandra
terry valerie william andrew barbara carl dorothy edward frances gerald heather jeremy kathleen leonard margaret
norman philip rebecca stephen teresa vincent abigail albert bridget charles deborah ernest eva howard janet joseph
linda michael nancy patrick roger susan timothy zoe""".split()

DEEDS = """thanked praised followed helped called visited invited pushed hired watched warned blamed trusted ignored
painted paid guided chased carried hugged kicked kissed greeted rescued attacked admired hated loved punished caught
stopped defeated fired interviewed cheated insulted teased tricked arrested robbed sued questioned replaced recognized
photographed accused betrayed""".split()

COMPARISONS = """older/younger taller/shorter richer/poorer faster/slower stronger/weaker happier/sadder
smarter/duller heavier/lighter kinder/crueler bigger/smaller louder/quieter braver/shyer warmer/colder neater/messier
healthier/sicker""".split()

THINGS = """film book hotel soup show song concert novel dinner room play movie trip lecture speech meal restaurant
album game phone camera car store museum tour wine cake painting beach coffee story lesson party""".split()

PRAISE = """good great tasty lovely excellent wonderful pleasant brilliant superb charming delightful perfect
beautiful amazing fantastic impressive enjoyable splendid nice fine comfortable elegant terrific marvelous exciting
funny clever fascinating magnificent outstanding awesome gorgeous""".split()

BLAME = """bad awful boring terrible horrible dull poor ugly dreadful disappointing weak disgusting nasty useless
dirty stupid annoying painful mediocre lousy silly unpleasant miserable pathetic tedious dismal appalling horrid
worthless shabby inferior gloomy""".split()

# Each is a family name, a verb and a noun for an action: mr march, they march, the march.
NAME_VERB_NOUN = """march hunt chase rush ride race camp dance gamble sail walk fall strike stroll turn watch start
harvest sweep rest work wake wash wave cheer charge speed dash dive draw feast fish game guard guide help judge land
laugh look move pass pause pitch play reason rise roll rock search shout show skip sleep slide smile stand stay step
stock swing toast trade train travel trip trick wait whistle wink wish wonder cook drill fight hope flight visit talk
swim climb jump drive bath hop skate sprint parade""".split()

# Workers, who can do or own something or precede a name: the farmer march.
WORKERS = """student staff guest doctor farmer soldier guard worker teacher driver miner sailor nurse pilot lawyer
artist player singer neighbor prisoner waiter painter baker tourist visitor clerk citizen pupil actor
writer""".split()

DESCRIPTIONS = """dear old poor little lovely great famous rich busy proud quiet sleepy beautiful noisy good funny
strange wild young modern""".split()


@dataclass(frozen=True)
class Fillers:
    """The words that one split ("train" or "validation") may use."""

    split: str

    def of(self, words: list[str]) -> list[str]:
        """Select this split's share of `words`: every third word for validation, the others for train."""
        return [word for index, word in enumerate(words) if (index % 3 == 2) == (self.split == "validation")]


def join(*parts: str) -> str:
    """Join the non-empty parts with single spaces."""
    return " ".join(part for part in parts if part)
