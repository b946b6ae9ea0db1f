"""Each code block of these pages is run by a test, or compared with the program."""

import re

import pytest

import tests.docs.operations_page
import tests.docs.test_backlog
import tests.docs.test_batches
import tests.docs.test_fleet
import tests.docs.test_http_service
import tests.docs.test_requests_and_events
import tests.docs.test_web_backends
import tests.end_to_end.test_base_install  # noqa: F401 - each of these takes its blocks when it is loaded
from tests.docs.pages import DOCS, PAGES, read_blocks, taken

BLOCKS = [(page, block) for page in PAGES for block in read_blocks(page)]


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=lambda part: getattr(part, "name", part))
def test_each_block_is_taken_by_a_test(page, block):
    assert block.language, block.text
    assert (page, block.name) in taken, f"{page}: no test takes this block:\n{block.text}"


@pytest.mark.parametrize("page", PAGES)
def test_names_of_blocks_are_unique(page):
    names = [block.name for block in read_blocks(page)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages_and_headings_that_are_there(page):
    for target, heading in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", (DOCS / page).read_text()):
        assert "://" in target or (DOCS / target).exists(), target
        if heading:
            text = (DOCS / (target or page)).read_text()
            headings = {_anchor(line) for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
            assert heading in headings, f"{target}#{heading}"


def _anchor(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
