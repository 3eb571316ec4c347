"""The server's ends of the pipes to one engine process."""

from __future__ import annotations

import zmq
import zmq.asyncio


class Pipes:
    """Two bound sockets: requests go out, replies come in.

    Their context is that of the process and is never ended: to end one can, in rare cases, take for ever, though its
    sockets were closed without lingering.
    """

    def __init__(self, stem: str) -> None:
        """`stem` is where they are, up to their names. Raises: ZMQError when they cannot be bound."""
        self.addresses = f"{stem}.requests", f"{stem}.replies"
        context = zmq.asyncio.Context.instance()
        self.requests, self.replies = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        try:
            self.requests.bind(self.addresses[0])
            self.replies.bind(self.addresses[1])
        except zmq.ZMQError:
            self.close()
            raise

    def close(self) -> None:
        """Give up what nobody has taken yet."""
        self.requests.close(linger=0)
        self.replies.close(linger=0)
