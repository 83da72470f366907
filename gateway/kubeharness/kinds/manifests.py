"""YAML documents on disk → resources: our kinds, ConfigMap and Secret, for `dev`, `publish` and `plan`.

A document that is none, of another kind, or against its schema is a problem that names file, line and field, and
stops nothing else. What an API server would refuse is refused here with the same rules.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kubeharness.core.ids import DEFAULT_NAMESPACE, DNS_LABEL
from kubeharness.kinds.agent import AgentSpec
from kubeharness.kinds.common import API_VERSION, GROUP, Part, Raw
from kubeharness.kinds.documents import Document, parse
from kubeharness.kinds.limits import name_violations, violations_of
from kubeharness.kinds.modelprovider import ModelProviderSpec
from kubeharness.kinds.plain import plain_violations
from kubeharness.kinds.reading import Violation, read
from kubeharness.kinds.toolserver import ToolServerSpec

SUFFIXES = (".yaml", ".yml", ".json")
OURS: dict[str, type[Part]] = {
    "Agent": AgentSpec,
    "ModelProvider": ModelProviderSpec,
    "ToolServer": ToolServerSpec,
}
PLAIN = ("ConfigMap", "Secret")
_METADATA = (
    "name", "namespace", "labels", "annotations", "uid", "resourceVersion", "generation", "creationTimestamp",
    "managedFields", "ownerReferences", "finalizers", "selfLink",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """An object as it was written, sound, with its place."""

    kind: str
    namespace: str
    name: str
    document: Raw = field(repr=False)
    """With kind, metadata.name and metadata.namespace in place. May hold a Secret's data: never log it."""
    file: str
    line: int

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return (self.kind, self.namespace, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestProblem:
    """What is wrong with one document or file."""

    file: str
    line: int = 1
    """Of the document in the file."""
    field: str = ""
    message: str
    key: tuple[str, str, str] | None = None
    """Kind, namespace and name, as far as the document says them: whose last good version stays."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where}: {self.field}: {self.message}" if self.field else f"{where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What lies on disk."""

    resources: tuple[Resource, ...]
    problems: tuple[ManifestProblem, ...]

    def of(self, kind: str, namespace: str | None = None) -> tuple[Resource, ...]:
        """The resources of a kind, in a namespace or in all."""
        return tuple(r for r in self.resources if r.kind == kind and namespace in (None, r.namespace))

    def documents(self, kind: str, namespace: str) -> dict[str, Raw]:
        """The documents of a kind in a namespace by name, as compile takes them."""
        return {resource.name: resource.document for resource in self.of(kind, namespace)}


def load(paths: Sequence[str | Path], *, namespace: str = DEFAULT_NAMESPACE) -> Loaded:
    """Read every document at or below the paths. `namespace` is where those belong that name none."""
    resources: dict[tuple[str, str, str], Resource] = {}
    problems: list[ManifestProblem] = []
    for path, why in _files(paths):
        text, why = ("", why) if why else _text(path)
        if why:
            problems.append(ManifestProblem(file=str(path), message=why))
            continue
        for document in parse(text):
            read_one = _resource(document, str(path), namespace)
            if isinstance(read_one, list):
                problems += read_one
            elif (first := resources.setdefault(read_one.key, read_one)) is not read_one:
                message = (
                    f"{read_one.kind} {read_one.namespace}/{read_one.name} is in {first.file}:{first.line} already"
                )
                problems.append(ManifestProblem(file=str(path), line=read_one.line, message=message))
    return Loaded(tuple(resources.values()), tuple(problems))


def secret_data(secret: Resource) -> dict[str, bytes]:
    """The values of a Secret; `stringData` wins over `data`, as on a server."""
    values = {key: base64.b64decode(value) for key, value in (secret.document.get("data") or {}).items()}
    written = secret.document.get("stringData") or {}
    return values | {key: value.encode() for key, value in written.items()}


def _files(paths: Sequence[str | Path]) -> Iterator[tuple[Path, str]]:
    """Each file once, folders in the order of their names; or a path and why it cannot be read."""
    seen: set[str] = set()
    for path in map(Path, paths):
        if not path.exists():
            yield path, "does not exist"
        for file in _below(path) if path.is_dir() else [path] if path.exists() else []:
            real = os.path.realpath(file)
            if real not in seen:
                seen.add(real)
                yield file, ""


def _below(folder: Path) -> Iterator[Path]:
    """Hidden names are left out: a mounted ConfigMap keeps its copies behind them."""
    for at, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(at, name)


def _text(path: Path) -> tuple[str, str]:
    try:
        return path.read_text(encoding="utf-8-sig"), ""
    except UnicodeDecodeError as error:
        return "", f"is not UTF-8 at byte {error.start}"
    except OSError as error:
        return "", f"cannot be read: {error.strerror}"


def _resource(document: Document, file: str, namespace: str) -> Resource | list[ManifestProblem]:
    """One document as a resource, or everything that is wrong with it."""

    def problem(where: str, message: str, key: tuple[str, str, str] | None = None) -> ManifestProblem:
        return ManifestProblem(file=file, line=document.line, field=where, message=message, key=key)

    if document.error is not None:
        return [problem("", document.error)]
    raw = document.value
    if not isinstance(raw, dict):
        return [problem("", "must be an object with apiVersion, kind, metadata and spec")]
    kind = raw.get("kind")
    wrong = _not_ours(raw.get("apiVersion"), kind)
    if wrong or not isinstance(kind, str):
        return [problem(*wrong)] if wrong else []
    metadata = raw.get("metadata")
    violations = _metadata_violations(metadata)
    said = metadata if isinstance(metadata, dict) else {}
    place = str(said.get("namespace") or namespace)
    key = (kind, place, str(said.get("name") or ""))
    violations += _kind_violations(kind, raw)
    if violations:
        return [problem(item.field, item.message, key) for item in violations]
    whole = {**raw, "metadata": {**said, "namespace": place}}
    return Resource(kind=kind, namespace=place, name=key[2], document=whole, file=file, line=document.line)


def _not_ours(version: object, kind: object) -> tuple[str, str] | None:
    """Why a document is of no kind that we read."""
    known = f"one of {', '.join(OURS)} ({API_VERSION}), {' and '.join(PLAIN)} (v1)"
    if not isinstance(kind, str) or not isinstance(version, str):
        return "kind" if not isinstance(kind, str) else "apiVersion", f"is required: {known}"
    expected = API_VERSION if kind in OURS else "v1" if kind in PLAIN else None
    if expected is None or (version.split("/")[0] != GROUP and expected == API_VERSION):
        return "kind", f"{version} {kind} is not read here; put {known} below this path"
    if version != expected:
        return "apiVersion", f"must be {expected} for kind {kind}, not {version}"
    return None


def _metadata_violations(metadata: object) -> list[Violation]:
    if not isinstance(metadata, dict):
        return [Violation("metadata", "is required: an object with a name")]
    found = [
        Violation(f"metadata.{key}", f"is no field here; the fields are {', '.join(_METADATA[:4])}")
        for key in metadata
        if key not in _METADATA
    ]
    namespace = metadata.get("namespace")
    if namespace is not None and not (isinstance(namespace, str) and DNS_LABEL.match(namespace)):
        found.append(Violation("metadata.namespace", "must be a DNS label: 1-63 of a-z, 0-9 and '-'"))
    for name in ("labels", "annotations"):
        pairs = metadata.get(name)
        if pairs is not None and not isinstance(pairs, dict):
            found.append(Violation(f"metadata.{name}", "must be an object"))
        for key, value in pairs.items() if isinstance(pairs, dict) else ():
            if not isinstance(value, str):
                found.append(Violation(f"metadata.{name}.{key}", "must be a string; write the value in quotes"))
    return found


def _kind_violations(kind: str, raw: Raw) -> list[Violation]:
    """What is wrong beside the metadata."""
    if kind in PLAIN:
        return plain_violations(kind, raw)
    found = name_violations(raw)
    for key in raw.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        found.append(Violation(key, "is no field here; the fields are apiVersion, kind, metadata, spec"))
    spec = read(OURS[kind], raw.get("spec"), at="spec", strict=True)
    return found + (spec if isinstance(spec, list) else violations_of(raw))
