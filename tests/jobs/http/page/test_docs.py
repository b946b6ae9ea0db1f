"""The description of the API, as a person reads it."""

from tests.browser import shoot


def test_the_apis_description_is_shown_with_nothing_from_elsewhere(browse):
    page = browse("/docs")
    page.locator(".opblock", has_text="/v1/videos").first.wait_for()
    assert page.locator(".opblock").count() >= 10
    shoot(page, "docs")
