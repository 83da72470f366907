"""POST /agents/{agent}/{id}: admit, and wait for the end if asked to. A plain ASGI route, for speed."""

import re

from kubeharness.api.asgi import Headers, Send, answer, while_connected
from kubeharness.api.call import Call
from kubeharness.api.wire import DispatchBody, ended_json, order, receipt_json
from kubeharness.core.codec import dumps
from kubeharness.engine.runtime import Ended

TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


async def dispatch(call: Call, send: Send) -> None:
    """202 with the receipt; with `?wait=true` 200 with the outcome, or 202 when the time is over."""
    await call.require("dispatch")
    waits = call.flag("wait")
    seconds = call.seconds("timeout", at_most=call.settings.wait_seconds)
    if waits:
        await call.require("read")
    body = await call.body(DispatchBody)
    address = call.address(body.session)
    receipt = await call.runtime.dispatch(
        order(
            body,
            namespace=address.namespace,
            agent=address.agent,
            instance=address.instance,
            dispatch_id=call.key(body.dispatch_id),
            principal=call.principal.name,
            traceparent=_traceparent(call),
        )
    )
    headers: Headers = [(b"location", call.link(f"/submissions/{receipt.submission_id}").encode())]
    if receipt.replayed:
        headers.append((b"idempotency-replayed", b"true"))
    if waits:
        # The run goes on if the caller leaves meanwhile: only the waiting ends (C20).
        ended = await while_connected(call.receive, call.runtime.wait(receipt.submission_id, seconds))
        if isinstance(ended, Ended):
            await answer(send, 200, dumps(ended_json(ended)), headers)
            return
    await answer(send, 202, dumps(receipt_json(receipt)), headers)


def _traceparent(call: Call) -> str | None:
    raw = call.headers.get(b"traceparent", b"")
    return raw.decode() if TRACEPARENT.match(raw) else None
