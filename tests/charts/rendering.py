"""The chart as `helm template` renders it: pure, offline, always as the same release."""

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cluster import binaries

Document = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
CHART = CHARTS / "kubeharness"
CRDS = CHARTS / "kubeharness-crds"
PROFILES = Path(__file__).parent / "profiles"
GOLDEN = Path(__file__).parent / "golden"
NAMES = ("default", "namespaced", "httproute", "ingress", "dev-postgres", "external-dsn")
RELEASE, NAMESPACE = "kubeharness", "kubeharness-system"
SECONDS = 30.0


class HelmRefused(Exception):
    """Helm did not render; `said` is why."""

    def __init__(self, said: str) -> None:
        super().__init__(said)
        self.said = said


@dataclass(frozen=True, slots=True)
class Rendered:
    """What came out, as text and as objects."""

    text: str

    @property
    def objects(self) -> list[Document]:
        """Every object, in Helm's order."""
        return [document for document in yaml.load_all(self.text, yaml.CSafeLoader) if document]

    def one(self, kind: str, name: str, namespace: str | None = None) -> Document:
        """The one object of that kind and name."""
        [found] = [
            document
            for document in self.of(kind)
            if document["metadata"]["name"] == name and namespace in (None, document["metadata"].get("namespace"))
        ]
        return found

    def of(self, kind: str) -> list[Document]:
        """All objects of a kind."""
        return [document for document in self.objects if document["kind"] == kind]

    def pods(self) -> dict[str, Document]:
        """Every pod that the objects make, by `kind/name`, as an object of its own."""
        found = {}
        for document in self.objects:
            template = document if document["kind"] == "Pod" else document.get("spec", {}).get("template")
            if template is not None:
                claims = [claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", ())]
                volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
                spec = {**template["spec"], "volumes": [*template["spec"].get("volumes", ()), *volumes]}
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": spec}
                found[f"{document['kind']}/{document['metadata']['name']}"] = pod
        return found


def helm(*arguments: str, input: str | None = None) -> str:
    """Run helm and return what it printed. Raises HelmRefused with what it said."""
    done = subprocess.run(
        [str(binaries.helm()), *arguments], input=input, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode != 0:
        raise HelmRefused(done.stderr + done.stdout)
    return done.stdout


def render(
    values: Document | None = None,
    *,
    profile: str | None = None,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> Rendered:
    """Render with a profile, and these values over it; what was rendered once is not again. Raises HelmRefused."""
    return _rendered(json.dumps(values or {}), profile, release, namespace)


@cache
def _rendered(values: str, profile: str | None, release: str, namespace: str) -> Rendered:
    return Rendered(template(values, profile=profile, release=release, namespace=namespace))


def template(values: str = "{}", *, profile: str | None, release: str = RELEASE, namespace: str = NAMESPACE) -> str:
    """Render now. Raises HelmRefused."""
    files = ("--values", str(PROFILES / f"{profile}.yaml")) if profile else ()
    return helm("template", release, str(CHART), "--namespace", namespace, *files, "--values", "-", input=values)
