"""Messages on their way into a run in flight: durable before the answer, idempotent by key (engine.md, section 5)."""

import hashlib
from base64 import b32encode
from collections.abc import Callable
from typing import Literal

from kubeharness.core.errors import DispatchConflict, NoRunInFlight, NotFound
from kubeharness.core.ids import ConversationId, InboxId
from kubeharness.core.lane import InboxMessage
from kubeharness.core.text import clean_text
from kubeharness.engine.patience import answering, only
from kubeharness.engine.ports import Store, Waker

Via = Literal["steer", "followup"]


class Steering:
    """Puts messages into the inbox of a lane; the worker that holds it reads them at its next seam."""

    def __init__(self, store: Store, waker: Waker, randomness: Callable[[int], bytes]) -> None:
        self._store = store
        self._waker = waker
        self._randomness = randomness

    async def put(
        self,
        conversation: ConversationId,
        *,
        session: str,
        via: Via,
        body: str,
        key: str | None,
        principal: str | None,
    ) -> InboxId:
        """Make the message durable. Raises NoRunInFlight, DispatchConflict for a key with other content."""
        body = clean_text(body)
        message = InboxMessage(
            id=self._id(conversation, key),
            conversation=conversation,
            via=via,
            body=body,
            digest=hashlib.sha256(f"{via}\n{body}".encode()).hexdigest(),
            principal=principal,
        )
        try:
            async with answering():
                only(await self._store.inbox_put([message]))
        except NotFound:  # nobody ever spoke in this session
            raise NoRunInFlight(session) from None
        except DispatchConflict:  # say it with the caller's own key
            raise DispatchConflict(key or message.id) from None
        self._waker.touched([conversation], work=True)
        return message.id

    def _id(self, conversation: ConversationId, key: str | None) -> InboxId:
        raw = self._randomness(20) if key is None else hashlib.sha256(f"{conversation}\n{key}".encode()).digest()
        return InboxId("msg_" + b32encode(raw).decode().lower()[:26])
