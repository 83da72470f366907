"""What to do about each finding, in the words of those who will do it."""

APPLY = (
    "Apply the one that comes with Kubeharness, `kubectl apply -f docs/examples/doctor` (in the namespace that the URL "
    "means, else say --namespace), or name one of yours with --agent; a Scripted provider costs nothing"
)
UNREACHABLE = (
    "look from inside: `kubectl port-forward service/<release>-gateway 8484:8484`, then --direct "
    "http://127.0.0.1:8484; if that is well, it is DNS, the load balancer, TLS or a firewall"
)
NO_BACKEND = (
    "the hop has no ready gateway behind it, or no route for this host and path: `kubectl get pods,endpointslices` of "
    "the release, `kubectl describe ingress` or `httproute`; a pod that is not ready says why on its /readyz: "
    "`kubectl port-forward pod/<gateway> 8484:8484` and --direct http://127.0.0.1:8484"
)
DATABASE = (
    "mend the DSN in the Secret that `database.existingSecret` names (key `url`), or the database itself; for a schema "
    "that is not this build's look at the migrate Job, or run `kubeharness migrate`. No restart is needed: pods try "
    "again"
)
NOT_READY = "wait, if it starts or closes; else do what the sentence says; `kubectl logs` of the gateway has the same"
NO_WORKER = (
    "`kubectl get deployment <release>-worker`: are there replicas, and are their pods ready? `kubectl logs` of a pod "
    "that is not says why. Without a cluster: run `kubeharness worker` on the same database"
)
NOT_CLAIMED = (
    "raise `worker.replicas` or KUBEHARNESS_WORKER_SLOTS if they are full; see their logs for a revision that they "
    "refuse and their KUBEHARNESS_POOL; a worker that was killed counts as alive for a minute: try again after it"
)
SLOW = "see the worker's log for this submission; a slow model is slow on any path: try docs/examples/doctor"
RUN_FAILED = "do what the sentence says; `kubectl describe kha <agent>` and the worker's log have the rest"
BUFFERING = (
    "let the hop pass on what comes: nginx `proxy_buffering off` (and no `proxy_ignore_headers X-Accel-Buffering`), "
    'ingress-nginx annotation `nginx.ingress.kubernetes.io/proxy-buffering: "off"`, Apache `flushpackets=on`, Envoy '
    "without its buffer filter, Traefik without the buffering middleware; a CDN: no caching or transforming here"
)
COMPRESSED = (
    "take text/event-stream out of what the hop compresses: nginx `gzip_types`, Traefik compress "
    "`excludedContentTypes`, a CDN's rule; compressing holds a stream back"
)
NOT_A_STREAM = "a hop rewrites the answer's headers, or another service answers on this path; let it pass them on"
LIFETIME_CUT = (
    "turn off the limit on a whole answer: Envoy and Gateway API `timeouts.request: 0s` (the chart's HTTPRoute says "
    "so), GKE BackendConfig `timeoutSec`, HAProxy `timeout tunnel`, Azure and AWS request timeouts; clients resume by "
    "Last-Event-ID, so it costs reconnects, not messages"
)
STREAM_CUT = (
    "see the hop's log and whether gateways are being restarted (`kubectl get pods`); clients resume by Last-Event-ID"
)
IDLE_CUT = (
    "nginx `proxy_read_timeout 3600s`, ingress-nginx annotation "
    '`nginx.ingress.kubernetes.io/proxy-read-timeout: "3600"`, HAProxy `timeout server` and `timeout tunnel`, AWS ALB '
    "`idle_timeout.timeout_seconds`, Traefik `respondingTimeouts.idleTimeout`, Envoy `stream_idle_timeout`"
)


def idle_cut(seconds: float, heartbeat: float) -> str:
    """For a hop that ends what says nothing for so long."""
    return (
        f"raise the hop's idle or read timeout above 15 s, better to minutes: it cuts after about {seconds:.0f} s, and "
        f"the gateway's heartbeat comes every {heartbeat:.0f} s: {IDLE_CUT}. If that changes nothing, its limit "
        "is on the whole answer: raise its request timeout"
    )


def prefix_stripped(path: str) -> str:
    """For links that lack the prefix."""
    return (
        f"tell the gateway its prefix: chart value `pathPrefix: {path}`, or KUBEHARNESS_ROOT_PATH={path}; it then "
        "works whether or not the hop takes the prefix off"
    )


def prefix_unknown(path: str) -> str:
    """For a prefix that is passed on to a gateway that was not told."""
    return f"{prefix_stripped(path)}. Or have the hop take {path or 'it'} off: then links lack it"


def agent_not_ready(name: str) -> str:
    """For an Agent whose newest generation is not in force."""
    return f"`kubectl describe kha {name}` names the condition; mend what it says, or see `kubeharness plan -f`"
