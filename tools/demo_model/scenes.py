"""What a clip shows and sounds like, in words: the vocabulary, the captions, and the combinations kept for testing."""

from dataclasses import dataclass, fields
from itertools import chain, product
from random import Random

HELD_OUT = 60


@dataclass(frozen=True, slots=True)
class Scene:
    """One word for each thing that a caption can say."""

    shape: str
    colour: str
    background: str
    direction: str
    size: str
    speed: str
    pitch: str
    side: str  # where the tone is heard

    @property
    def combination(self) -> tuple[str, str, str, str]:
        """What makes a scene new to a model that has seen each of its words."""
        return (self.shape, self.colour, self.background, self.direction)


_COLOURS = ("red", "green", "blue", "yellow", "purple", "white", "black")
WORDS: dict[str, tuple[str, ...]] = {
    "shape": ("circle", "square", "triangle"),
    "colour": _COLOURS,
    "background": _COLOURS,
    "direction": ("left", "right", "up", "down"),
    "size": ("small", "large"),
    "speed": ("slowly", "quickly"),
    "pitch": ("low", "middle", "high"),
    "side": ("left", "right"),
}
FIELDS = tuple(field.name for field in fields(Scene))
# Each slot is one token, so all captions of a template have the same length.
TEMPLATES = (
    "a {colour} {shape} moving {direction} over {background}, {pitch} tone",
    "a {colour} {shape} moving {direction} over {background}, {pitch} tone on the {side}",
    "a {size} {colour} {shape} moving {direction} {speed} over {background}, {pitch} tone on the {side}",
    "a {size} {colour} {shape} moves {speed} {direction} on a {background} background "
    "with a {pitch} tone on the {side}",
)
COMPLETE_TEMPLATES = (1, 2, 3)  # of TEMPLATES, those that say all that is judged


def caption(scene: Scene, template: int) -> str:
    return TEMPLATES[template].format(**{name: getattr(scene, name) for name in FIELDS})


def all_scenes() -> list[Scene]:
    """Every scene whose shape can be told from its background."""
    scenes = [Scene(*words) for words in product(*(WORDS[name] for name in FIELDS))]
    return [scene for scene in scenes if scene.colour != scene.background]


def split_scenes(seed: int = 0) -> tuple[list[Scene], list[Scene]]:
    """Scenes to train on, and one of each of the combinations that are kept from training."""
    random = Random(seed)  # noqa: S311
    scenes = all_scenes()
    combinations = sorted({scene.combination for scene in scenes})
    kept = set(random.sample(combinations, HELD_OUT))
    training = [scene for scene in scenes if scene.combination not in kept]
    others = [scene for scene in scenes if scene.combination in kept]
    random.shuffle(others)
    return training, list({scene.combination: scene for scene in others}.values())


def held_out_prompts(seed: int = 0) -> list[tuple[Scene, str]]:
    """Scenes that no training clip shows, each with a caption that says all that is judged."""
    scenes = split_scenes(seed)[1]
    return [(scene, caption(scene, COMPLETE_TEMPLATES[i % len(COMPLETE_TEMPLATES)])) for i, scene in enumerate(scenes)]


def vocabulary() -> list[str]:
    """Every word that a caption can have, with the space before it where it has one."""
    told = [word for template in TEMPLATES for word in template.replace(",", "").split(" ") if "{" not in word]
    spoken = {f" {word}" for word in (*told, *chain(*WORDS.values()))}
    return sorted(spoken | {template.split(" ")[0] for template in TEMPLATES})
