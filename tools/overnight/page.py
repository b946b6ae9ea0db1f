"""Reads a batch's page back: what a person sees on it."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = ("img", "input", "meta", "br")


@dataclass(slots=True)
class Card:
    """One row on the contact sheet."""

    state: str = ""  # by which it is coloured
    label: str = ""
    badge: str = ""
    prompt: str = ""
    meta: str = ""
    reason: str = ""
    picture: str = ""  # its address
    links: list[tuple[str, str]] = field(default_factory=list)  # what each is called, and its address


@dataclass(slots=True)
class SeenPage:
    """The whole of it."""

    title: str = ""
    lead: str = ""
    tiles: dict[str, str] = field(default_factory=dict)
    legend: list[str] = field(default_factory=list)
    bar: list[str] = field(default_factory=list)  # state and share of each part
    choices: list[str] = field(default_factory=list)  # of the filter
    notes: list[str] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)


def read_page(text: str) -> SeenPage:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.page


class _Reader(HTMLParser):
    """Collects the text of each element that ends, with what is within it."""

    def __init__(self) -> None:
        super().__init__()
        self.page = SeenPage()
        self._open: list[tuple[str, str, list[str]]] = []  # tag, class, texts
        self._tile = ""
        self._address = ""  # of the link that is open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        kind = told.get("class", "")
        if tag == "article":
            self.page.cards.append(Card(state=kind.removeprefix("card ")))
        elif tag == "img":
            self.page.cards[-1].picture = told["src"]
        elif tag == "a":
            self._address = told["href"]
        elif tag == "span" and "style" in told:
            self.page.bar.append(f"{kind} {told['style']}")
        if tag not in VOID:
            self._open.append((tag, kind, []))

    def handle_data(self, data: str) -> None:
        for _, _, texts in self._open:
            texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        opened, kind, texts = self._open.pop()
        if opened != tag:
            raise ValueError(f"the page closes {tag} within {opened}")
        self._take(tag, kind, "".join(texts))

    def _take(self, tag: str, kind: str, text: str) -> None:
        page = self.page
        match tag, kind:
            case "h1", _:
                page.title = text
            case "p", "lead dim":
                page.lead = text
            case "p", "note":
                page.notes.append(text)
            case "dt", _:
                self._tile = text
            case "dd", _:
                page.tiles[self._tile] = " ".join(text.split())
            case "li", _:
                page.legend.append(text)
            case "a", _:
                page.cards[-1].links.append((text, self._address))
            case "label", _:
                page.choices.append(text)
            case _ if page.cards:
                _take_words(page.cards[-1], tag, kind, text)


def _take_words(card: Card, tag: str, kind: str, text: str) -> None:
    match tag, kind:
        case "h3", _:
            card.label = text
        case "span", "badge":
            card.badge = text
        case "p", "prompt":
            card.prompt = text
        case "details", "prompt":  # folded: its beginning, dots, dots, its rest
            card.prompt = "".join(text.split("……", 1))
        case "p", "meta":
            card.meta = text
        case "p", "reason":
            card.reason = text
        case "details", "reason":
            card.reason = "".join(text.split("……", 1))
