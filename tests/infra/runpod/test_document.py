"""That the validation bites: what it must refuse is refused, and what the document shows is accepted."""

import pytest

from tests.infra.runpod.document import UndocumentedError, load_document

POD = {"name": "a", "image": "b", "gpu": {"id": "NVIDIA H200"}}
REFUSED = {
    "unknown field": POD | {"bogus": 1},
    "v1's list of GPUs": POD | {"gpuTypeIds": ["NVIDIA H200"]},
    "spot": POD | {"interruptible": True},
    "CUDA at the top": POD | {"minCudaVersion": "13.0"},
    "no image": {"name": "a", "gpu": {"id": "NVIDIA H200"}},
    "no name": {"image": "b", "gpu": {"id": "NVIDIA H200"}},
    "empty name": POD | {"name": ""},
    "number in env": POD | {"env": {"PORT": 80}},
    "bare CUDA major": POD | {"gpu": {"id": "x", "minCudaVersion": "13"}},
    "no GPUs": POD | {"gpu": {"id": "x", "count": 0}},
    "unknown field of gpu": POD | {"gpu": {"id": "x", "interruptible": True}},
    "two volumes": POD | {"mounts": {"network": [{"volumeId": "v", "path": "/a"}, {"volumeId": "w", "path": "/b"}]}},
    "mount without path": POD | {"mounts": {"network": [{"volumeId": "v"}]}},
    "small persistent mount": POD | {"mounts": {"persistent": {"size": 9, "path": "/workspace"}}},
    "any cloud": POD | {"cloud": "ALL"},
}
# The schemas accept these; `test_rules.py` has what refuses them.
ONLY_RULES_REFUSE = {
    "gpu and cpu": POD | {"cpu": {"id": "cpu5c", "vcpuCount": 2}},
    "neither gpu nor cpu": {"name": "a", "image": "b"},
    "both mounts": POD
    | {"mounts": {"persistent": {"size": 10, "path": "/a"}, "network": [{"volumeId": "v", "path": "/b"}]}},
    "both CUDA fields": POD | {"gpu": {"id": "x", "minCudaVersion": "13.0", "allowedCudaVersions": ["13.0"]}},
    "port without protocol": POD | {"ports": ["22"]},
}
LATER_FIELDS = POD | {"cmd": ["h3render"], "entrypoint": ["sh"], "gpu": {"id": "x", "minRamPerGpu": 90}}


@pytest.fixture(params=[False, True], ids=["document", "later document"])
def document(request):
    return load_document(later=request.param)


def create_complaints(document, body):
    return document.body_complaints(document.find("POST", "/v2/pods")[0], body)


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_a_create_against_the_schema_is_refused(document, body):
    assert create_complaints(document, body) != []


@pytest.mark.parametrize("body", ONLY_RULES_REFUSE.values(), ids=ONLY_RULES_REFUSE)
def test_the_schema_alone_accepts_what_breaks_a_rule_between_fields(document, body):
    assert create_complaints(document, body) == []


def test_a_plain_create_is_accepted(document):
    assert create_complaints(document, POD) == []


def test_later_fields_are_refused_by_the_document_and_accepted_by_its_later_version():
    assert "cmd" in str(create_complaints(load_document(later=False), LATER_FIELDS))
    assert create_complaints(load_document(later=True), LATER_FIELDS) == []


def test_a_missing_field_is_told_before_what_it_makes_unexpected(document):
    first, *rest = create_complaints(document, {"image": "b", "gpu": {"id": "x"}})
    assert first == "$: 'name' is a required property"
    assert "unexpected" in "".join(rest)


def test_all_examples_of_the_document_validate():
    document = load_document(later=False)
    found = list(examples(document))
    assert len(found) >= 50
    assert [(pointer, bad) for pointer, value in found if (bad := document.complaints(pointer, value))] == []


def test_the_examples_of_pods_are_too_old_for_the_later_document():
    document = load_document(later=True)
    bad = {line for pointer, value in examples(document) for line in document.complaints(pointer, value)}
    assert {line.rpartition(": ")[2] for line in bad} == {
        "'vcpuCount' is a required property",
        "'memory' is a required property",
        "'pagination' is a required property",
    }


def test_an_answer_with_a_wrong_type_or_a_status_without_a_body_is_a_complaint(document):
    operation, _ = document.find("GET", "/v2/network-volumes/vol1")
    volume = {"id": "vol1", "name": "a", "size": 10, "dataCenter": "US-KS-2", "type": "STANDARD"}
    assert document.answer_complaints(operation, 200, "application/json", volume) == []
    assert document.answer_complaints(operation, 200, "application/json", volume | {"size": "10"}) != []
    assert document.answer_complaints(operation, 200, "text/html", volume) != []
    assert document.answer_complaints(operation, 200, "application/json", None) != []


def test_a_time_that_is_no_time_is_a_complaint(document):
    operation, _ = document.find("GET", "/v2/billing/pods")
    assert document.read_query(operation, "startTime=2026-12-01T00:00:00Z").complaints == ()
    assert document.read_query(operation, "startTime=yesterday").complaints != ()


def test_a_path_is_matched_before_it_is_decoded(document):
    operation, path = document.find("GET", "/v2/catalog/gpus/NVIDIA%20H200")
    assert (operation.id, path) == ("getGpuType", {"id": "NVIDIA H200"})
    assert document.find("GET", "/v2/registries/delegations")[0].id == "listDelegations"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/pods", 404), ("PUT", "/v2/pods", 405)])
def test_a_path_or_method_outside_the_document_is_told(document, method, path, status):
    with pytest.raises(UndocumentedError) as caught:
        document.find(method, path)
    assert caught.value.status == status


def test_a_query_is_typed_and_its_unknown_parameters_are_named(document):
    operation, _ = document.find("GET", "/v2/catalog/gpus")
    query = document.read_query(operation, "include=AVAILABILITY&product=POD&count=8&cudaVersions=12.8,13.0&gpu=x")
    assert query.values == {
        "include": ["AVAILABILITY"],
        "product": ["POD"],
        "count": 8,
        "cudaVersions": ["12.8", "13.0"],
    }
    assert (query.complaints, query.unknown) == ((), ("gpu",))


@pytest.mark.parametrize("query", ["count=0", "count=eight", "countryCodes=us", "minCudaVersion=x", "count=1&count=2"])
def test_a_malformed_parameter_is_a_complaint(document, query):
    assert document.read_query(document.find("GET", "/v2/catalog/gpus")[0], query).complaints != ()


def examples(document):
    """Each example of a body, with the pointer of its schema."""
    for operation in document.operations:
        for pointer, part in bodies(document, operation):
            for content_type, content in part.get("content", {}).items():
                for example in content.get("examples", {}).values():
                    yield f"{pointer}/content/{content_type.replace('/', '~1')}/schema", example["value"]


def bodies(document, operation):
    described = document.contents["paths"][operation.template][operation.method.lower()]
    yield f"{operation.pointer}/requestBody", described.get("requestBody", {})
    for status, answer in described["responses"].items():
        if "$ref" not in answer:
            yield f"{operation.pointer}/responses/{status}", answer
    for name, answer in document.contents["components"]["responses"].items():
        yield f"#/components/responses/{name}", answer
