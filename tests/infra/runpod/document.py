"""RunPod's OpenAPI document: which operation a request is, and what about it or its answer breaks the contract.

It knows no pods. `later=True` applies the patch that turns the document into its later version.
"""

import json
import re
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.infra.runpod.clock import is_rfc3339

HERE = Path(__file__).parent
ROOT = "urn:runpod"
METHODS = ("get", "put", "post", "patch", "delete")
# The schema wants a date-time here, the ids that the endpoint emits are "<date-time>/<number>": both are read.
RESUME_HEADER = "Last-Event-ID"

FORMATS = FormatChecker(formats=())
FORMATS.checks("date-time")(lambda value: not isinstance(value, str) or is_rfc3339(value))


class UndocumentedError(LookupError):
    """No such path in the document, or none with this method. `status`: 404 or 405."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    id: str  # "createPod"
    method: str
    template: str  # "/v2/pods/{id}"
    pointer: str  # where in the document
    parameters: tuple[dict, ...]  # of path, query and header
    takes_body: bool


@dataclass(frozen=True, slots=True)
class Query:
    """A request's query (or headers), read by the document."""

    values: dict  # by name, typed; those that were sent
    complaints: tuple[str, ...]  # each is reason for a 422
    unknown: tuple[str, ...]  # names that the document lacks: RunPod ignores them


class Document:
    """Load one with `load_document`."""

    def __init__(self, contents: dict) -> None:
        self.contents = contents
        resource = Resource.from_contents(contents, default_specification=DRAFT202012)
        self._registry = Registry().with_resource(ROOT, resource)
        self._validators: dict[str, Draft202012Validator] = {}
        self.operations = tuple(self._operations())

    def find(self, method: str, raw_path: str) -> tuple[Operation, dict[str, str]]:
        """The operation and its path parameters, percent-decoded. Raises UndocumentedError."""
        found = [(operation, match) for operation in self.operations if (match := _fits(operation.template, raw_path))]
        if not found:
            raise UndocumentedError(404, f"{raw_path} is no path of the document")
        # "/v2/registries/delegations" is itself, not a registry of that name.
        closest = min(operation.template.count("{") for operation, _ in found)
        for operation, match in found:
            if operation.method == method and operation.template.count("{") == closest:
                return operation, {name: unquote(value) for name, value in match.groupdict().items()}
        raise UndocumentedError(405, f"{raw_path} has no {method} in the document")

    def read_query(self, operation: Operation, raw_query: str) -> Query:
        return self._read(operation, "query", parse_qsl(raw_query, keep_blank_values=True))

    def read_headers(self, operation: Operation, headers: dict[str, str]) -> Query:
        """Of the headers only those that the document names."""
        names = [parameter["name"] for parameter in operation.parameters if parameter["in"] == "header"]
        sent = [(name, headers[name.lower()]) for name in names if name.lower() in headers]
        return self._read(operation, "header", sent)

    def body_complaints(self, operation: Operation, body: object) -> list[str]:
        return self.complaints(f"{operation.pointer}/requestBody/content/application~1json/schema", body)

    def answer_complaints(self, operation: Operation, status: int, content_type: str, body: object) -> list[str]:
        """What about an answer isn't in the document. `body`: parsed, or text if it isn't JSON; None if empty."""
        pointer, answer = self._answer(operation, status)
        content, where = answer.get("content", {}), f"{operation.id} {status}"
        if not content:
            return [] if body is None else [f"{where}: a body where the document has none"]
        if body is None:
            return [f"{where}: no body where the document has one"]
        if content_type not in content:
            return [f"{where}: {content_type!r} is none of {sorted(content)}"]
        schema = f"{pointer}/content/{_escape(content_type)}/schema"
        return [f"{where}: {line}" for line in self.complaints(schema, body)]

    def complaints(self, pointer: str, value: object) -> list[str]:
        """What about a value breaks the schema at `pointer`, a missing field first.

        One missing field makes the validator call good ones unexpected, as RunPod's does.
        """
        if pointer not in self._validators:
            self._validators[pointer] = Draft202012Validator(
                {"$ref": ROOT + pointer}, registry=self._registry, format_checker=FORMATS
            )
        errors = sorted(self._validators[pointer].iter_errors(value), key=lambda error: error.validator != "required")
        return [f"{error.json_path}: {error.message}" for error in errors]

    def resolve(self, node: dict) -> dict:
        """The node itself, or what its `$ref` names."""
        while "$ref" in node:
            node = self._at(node["$ref"])
        return node

    def _at(self, pointer: str) -> dict:
        node = self.contents
        for part in _parts(pointer.removeprefix("#")):
            node = node[part]
        return node

    def _operations(self):
        for template, item in self.contents["paths"].items():
            for method in METHODS & item.keys():
                own = item[method]
                parameters = [self.resolve(each) for each in (*item.get("parameters", ()), *own.get("parameters", ()))]
                pointer = f"#/paths/{_escape(template)}/{method}"
                yield Operation(
                    own["operationId"], method.upper(), template, pointer, tuple(parameters), "requestBody" in own
                )

    def _answer(self, operation: Operation, status: int) -> tuple[str, dict]:
        answers = self._at(operation.pointer)["responses"]
        key = str(status) if str(status) in answers else "default"
        answer = answers[key]
        pointer = answer.get("$ref", f"{operation.pointer}/responses/{key}")
        return pointer, self.resolve(answer)

    def _read(self, operation: Operation, place: str, pairs: list[tuple[str, str]]) -> Query:
        known = {parameter["name"]: parameter for parameter in operation.parameters if parameter["in"] == place}
        values, complaints = {}, []
        for name, text in pairs:
            if name in values:
                complaints.append(f"{name}: given twice")
            if name in known:
                values[name] = self._typed(known[name]["schema"], text)
                complaints += self._parameter_complaints(operation, known[name], values[name])
        unknown = tuple(name for name, _ in pairs if name not in known)
        return Query(values, tuple(complaints), unknown)

    def _typed(self, schema: dict, text: str) -> object:
        match self.resolve(schema).get("type"):
            case "array":
                return text.split(",") if text else []
            case "integer" if re.fullmatch(r"-?\d+", text):
                return int(text)
            case "boolean" if text in ("true", "false"):
                return text == "true"
        return text

    def _parameter_complaints(self, operation: Operation, parameter: dict, value: object) -> list[str]:
        if parameter["name"] == RESUME_HEADER:
            value = str(value).partition("/")[0]
        validator = Draft202012Validator(
            _anchored(parameter["schema"]), registry=self._registry, format_checker=FORMATS
        )
        return [f"{parameter['name']}: {error.message}" for error in validator.iter_errors(value)]


@cache
def load_document(*, later: bool) -> Document:
    """The official document, or its later version. Shared: nobody changes it."""
    contents = json.loads((HERE / "openapi.json").read_text())
    if later:
        contents = apply_patch(contents, json.loads((HERE / "openapi-later.patch.json").read_text()))
    return Document(contents)


def apply_patch(contents: dict, patch: list[dict]) -> dict:
    """RFC 6902, of which our patch uses `add` and `replace`."""
    contents = deepcopy(contents)
    for step in patch:
        *parents, last = _parts(step["path"])
        node = contents
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node[part]
        _apply(step["op"], node, last, step["value"])
    return contents


def _apply(op: str, node: dict | list, key: str, value: object) -> None:
    match op, node:
        case "add", list():
            node.insert(len(node) if key == "-" else int(key), value)
        case "add", dict():
            node[key] = value
        case "replace", list():
            node[int(key)] = value
        case "replace", dict() if key in node:
            node[key] = value
        case _:
            raise ValueError(f"cannot {op} {key!r}: the patch doesn't fit the document")


def _anchored(schema: dict) -> dict:
    """A schema taken out of the document, whose references still lead into it."""
    anchored = dict(schema)
    if "$ref" in anchored:
        anchored["$ref"] = ROOT + anchored["$ref"]
    if "items" in anchored:
        anchored["items"] = _anchored(anchored["items"])
    return anchored


def _fits(template: str, raw_path: str) -> re.Match[str] | None:
    return re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template), raw_path)


def _escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def _parts(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
