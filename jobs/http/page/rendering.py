"""Templates to HTML. Whatever a template prints is escaped: prompts, labels, reasons and names are others' text."""

from datetime import UTC, datetime
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from jobs.http.page.static_files import url_of
from jobs.http.page.views import cut


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("jobs.http.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["static"] = url_of
    environment.filters |= {
        "iso": _write_iso,
        "utc": _write_utc,
        "cut": cut,
        "preview": _preview_url,
        "shorten_key": _shorten_key,
    }
    return environment


def render(template: str, **values: object) -> Markup:
    """HTML, which other templates take as it is."""
    return Markup(_environment().get_template(template).render(**values))  # noqa: S704  # it is escaped, see above


def _write_iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_utc(at: datetime) -> str:
    """Until a script makes a duration of it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _preview_url(job_id: str, step: object) -> str:
    return f"/v1/videos/{job_id}/content?variant=thumbnail&step={step}"


def _shorten_key(key: str) -> str:
    name = key.rpartition("/")[2]
    return name if len(name) <= 24 else f"{name[:12]}…{name[-8:]}"
