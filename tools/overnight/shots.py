"""The file of the night: shots as people write them. The same for the same seed."""

import csv
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tools.overnight.runners import DIES, LONG_STEPS, REFUSED

COLUMNS = (
    "name",
    "prompt",
    "seed",
    "seeds",
    "width",
    "height",
    "frames",
    "steps",
    "preview_every",
    "checkpoint_every",
)
PROMPTS = (
    "A red kite over the harbour, gulls, a ferry's horn",
    "雨の夜、ネオンの路地を猫が歩く。傘の音だけが聞こえる",
    "قارب شراعي صغير عند الغروب، وصوت الأمواج",
    "Старый трамвай в снегу; звенит колокольчик",
    "सुबह की धुंध में पहाड़ी रेलगाड़ी",
    "빗속의 등대, 멀리서 들리는 뱃고동",
    'She says "hold on",\nand the lights go out.\n\nThunder.',
    "=SUM(A1:A9) chalked on a blackboard; <b>not bold</b> & 'quoted'",
    "Ein Bächlein, größer als gedacht; Vögel 🐦\u200d⬛ über dem Moor",
    "A long take. " + "The camera follows the courier through the market, past lanterns and steam. " * 5,
)
SIZES = ((64, 64), (96, 64), (64, 96), (160, 96))
FRAMES = (22, 39, 56)
SHORT_STEPS = (4, 5, 6, 8)
ONE_LONG_IN = 6  # rows
SWEEP = "1..4"
WRONG_WIDTH = 70
FEWEST_ROWS = 8


@dataclass(frozen=True, slots=True)
class ShotRow:
    """One row of the file. Empty cells leave a choice to the farm."""

    prompt: str
    name: str = ""
    seed: str = ""
    seeds: str = ""
    width: int = 64
    height: int = 64
    frames: int = 22
    steps: int = 4
    preview_every: int = 2
    checkpoint_every: int = 2

    def cells(self) -> list[object]:
        return [getattr(self, column) for column in COLUMNS]


def make_rows(rows: int, seed: int) -> list[ShotRow]:
    """First one that is refused and a sweep, near the end one that dies, and last two that are alike."""
    dice = random.Random(seed)  # noqa: S311  no secret
    made = [ShotRow(REFUSED, "refused"), ShotRow(PROMPTS[6], "sweep", seeds=SWEEP, steps=6)]
    made += [_draw(number, dice) for number in range(len(made), rows - 3)]
    made += [ShotRow(PROMPTS[0], preview_every=0)] * 2
    made.insert(rows * 5 // 6, ShotRow(DIES, "dies", seed="13"))
    return made


def _draw(number: int, dice: random.Random) -> ShotRow:
    width, height = dice.choice(SIZES)
    return ShotRow(
        prompt=f"{PROMPTS[number % len(PROMPTS)]} No. {number}",
        name=dice.choice(("", f"shot-{number:03}", f"場面 {number}")),
        seed=dice.choice(("", str(dice.randrange(2**32)))),
        width=width,
        height=height,
        frames=dice.choice(FRAMES),
        steps=LONG_STEPS if number % ONE_LONG_IN == 2 else dice.choice(SHORT_STEPS),
        checkpoint_every=dice.choice((1, 2, 3)),
    )


def count_shots(rows: Sequence[ShotRow]) -> int:
    """Renders that they make."""
    first, _, last = SWEEP.partition("..")
    return len(rows) + sum(bool(row.seeds) for row in rows) * (int(last) - int(first))


@dataclass(frozen=True, slots=True)
class Spoiled:
    """Rows of which one is wrong."""

    rows: list[ShotRow]
    line: int  # of the wrong one, as an editor counts


def spoil(rows: Sequence[ShotRow]) -> Spoiled:
    """The one before the last gets a width that no model takes; prompts before it have several lines."""
    at = len(rows) - 2
    wrong = replace(rows[at], width=WRONG_WIDTH)
    return Spoiled([*rows[:at], wrong, *rows[at + 1 :]], 1 + write_rows(rows[:at]).count("\n"))


def write_rows(rows: Sequence[ShotRow]) -> str:
    """As a CSV, whose header is its first line."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row.cells() for row in rows)
    return text.getvalue()
