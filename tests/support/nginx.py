"""A real nginx on loopback before one gateway, with the proxy settings that a test gives it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from cluster.processes import free_ports, running

NGINX = Path("/usr/sbin/nginx")
START_SECONDS = 10.0

CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location = /nginx-alive {{ return 204; }}
    location / {{
      proxy_pass {gateway};
      proxy_http_version 1.1;
      {settings}
    }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, gateway: str, settings: str = "") -> Iterator[str]:
    """Its URL; it is gone at the end of the block."""
    assert NGINX.exists(), "nginx is missing; run tests/apt-packages.sh"
    folder.mkdir(exist_ok=True)
    [port] = free_ports(1)
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, gateway=gateway, settings=settings))
    command: list[str | Path] = [NGINX, "-p", folder, "-c", config, "-e", folder / "error.log"]
    with running(command, folder / "nginx.log") as process:
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                httpx2.get(f"{url}/nginx-alive", timeout=2)
                break
            except httpx2.TransportError:
                process.require_alive()
                assert time.monotonic() < end, f"nginx does not listen on {url}"
                time.sleep(0.05)
        yield url
