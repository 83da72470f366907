"""containerd's own client, pointed at a node's containerd."""

import re
import subprocess
from pathlib import Path

from cluster.errors import ImportFailed

_IMPORT_SECONDS = 120.0
_UNPACKED = re.compile(r"^unpacking (\S+) \(sha256:", re.MULTILINE)


def ctr(executable: Path, folder: Path, *args: str, timeout: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run ctr in the namespace of containerd in which a kubelet's containers and images are."""
    command = [str(executable), "--address", str(folder / "containerd.sock"), "--namespace", "k8s.io", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def import_image(executable: Path, folder: Path, archive: Path) -> list[str]:
    """Give the node the images of an archive (OCI or docker); return their names. Raises ImportFailed."""
    done = ctr(executable, folder, "images", "import", str(archive), timeout=_IMPORT_SECONDS)
    names = _UNPACKED.findall(done.stdout)
    if done.returncode != 0 or not names:
        raise ImportFailed(archive, (done.stderr or done.stdout).strip())
    return names
