"""Image archives of one static executable, written without any engine: what `ctr images import` takes."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write_archive(path: Path, name: str, executable: Path) -> Path:
    """Write an OCI archive of an image `name` that holds this executable at its root and runs it as nobody.

    Equal content gives equal bytes.
    """
    layer = _tar({executable.name: (executable.read_bytes(), 0o755)})
    config = _json(
        {
            "architecture": _architecture(executable),
            "os": "linux",
            "config": {"Entrypoint": [f"/{executable.name}"], "User": "65532:65532"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer)],
        }
    )
    named = _descriptor(_MANIFEST, manifest) | {
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    }
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [named]}),
        **{f"blobs/sha256/{_digest(blob).partition(':')[2]}": blob for blob in (layer, config, manifest)},
    }
    path.write_bytes(_tar({name: (content, 0o644) for name, content in files.items()}))
    return path


def _architecture(executable: Path) -> str:
    """As Go calls it, from the ELF header."""
    machine = int.from_bytes(executable.read_bytes()[18:20], "little")
    return {0x3E: "amd64", 0xB7: "arm64"}[machine]


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
