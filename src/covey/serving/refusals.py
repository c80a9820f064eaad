"""What a client is told when a request is not answered."""

from __future__ import annotations


class RefusedError(Exception):
    """A request that is not answered: an HTTP status, and a sentence with what was expected and what came.

    Args:
        status: of HTTP.
        message: for the client.
        retry_after: seconds after which it is worth coming again.
    """

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the answer."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
