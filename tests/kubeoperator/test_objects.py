"""What the watches saw: deletions and successors under one name, late events, answers to our own writes."""

from typing import Any

from kubeharness_operator.objects import AGENTS, Key, Objects

KEY = Key(AGENTS, "ns", "demo")


def seen(uid: str, version: int, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ns",
            "name": "demo",
            "uid": uid,
            "resourceVersion": str(version),
            "generation": 3,
            "managedFields": [{"manager": "kubectl"}],
        },
        **more,
    }


def uid_of(objects: Objects) -> str | None:
    found = objects.get(KEY)
    return found.uid if found else None


def test_what_was_seen_last_is_kept_without_managed_fields() -> None:
    objects = Objects()
    key = objects.put(AGENTS, seen("u1", 5, spec={"a": 1}))
    found = objects.get(key)

    assert key == KEY
    assert found is not None
    assert (found.uid, found.version, found.generation) == ("u1", "5", 3)
    assert "managedFields" not in found.document["metadata"]
    assert found.document["kind"] == "Agent"
    assert found.status == {}


def test_a_deletion_removes_only_the_uid_that_it_names() -> None:
    objects = Objects()
    objects.put(AGENTS, seen("u1", 5))
    objects.put(AGENTS, seen("u2", 9))
    objects.remove(AGENTS, seen("u1", 8))

    assert uid_of(objects) == "u2"

    objects.remove(AGENTS, seen("u2", 10))

    assert uid_of(objects) is None


def test_a_late_event_of_the_predecessor_does_not_bring_it_back() -> None:
    objects = Objects()
    objects.put(AGENTS, seen("u2", 9))
    objects.put(AGENTS, seen("u1", 7))

    assert uid_of(objects) == "u2"


def test_a_list_counts_even_if_the_versions_went_back_as_after_a_restore() -> None:
    objects = Objects()
    objects.put(AGENTS, seen("u1", 900))
    objects.put(AGENTS, seen("u1", 12), listed=True)
    found = objects.get(KEY)

    assert found is not None
    assert found.version == "12"


def test_the_answer_to_our_own_write_revives_nothing() -> None:
    objects = Objects()
    objects.put(AGENTS, seen("u1", 5))
    objects.refresh(AGENTS, seen("u1", 6))
    found = objects.get(KEY)

    assert found is not None
    assert found.version == "6"

    objects.remove(AGENTS, seen("u1", 7))
    objects.refresh(AGENTS, seen("u1", 6))

    assert uid_of(objects) is None


def test_a_status_that_is_no_object_reads_as_empty() -> None:
    objects = Objects()
    objects.put(AGENTS, seen("u1", 5, status=None))
    found = objects.get(KEY)

    assert found is not None
    assert found.status == {}
