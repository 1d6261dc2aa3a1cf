"""The buffer of one payload, and the envelope that travels with it."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Protocol

from . import wire
from .errors import Finished
from .sessionbase import SessionBase


class Envelope(NamedTuple):
    """An emission's labels, the edge it goes to, and the delivery that it is emitted for."""

    delivery: int
    edge: int
    key: str
    attrs: wire.Attrs
    last: bool

    @property
    def flags(self) -> int:
        return wire.LAST if self.last else 0


class _PutMethod(Protocol):
    """Sends a buffer, or frees it."""

    def send(self, n: int, e: Envelope) -> None: ...

    def abort(self) -> None: ...


class Buffer:
    """Memory for one payload, to be filled in place and sent.

    A context manager, which aborts an unsent buffer at its end. It belongs to one
    thread. Arrays made of `view` must not be written to after `send`: readers
    would see it.
    """

    __slots__ = ("view", "size", "_session", "_method", "_envelope")

    def __init__(self, s: SessionBase, method: _PutMethod, view: memoryview, e: Envelope) -> None:
        self.view = view  #: the memory to fill, writable
        self.size = len(view)
        self._session = s
        self._method: _PutMethod | None = method
        self._envelope = e

    def send(self, n: int | None = None, *, key: str = "", attrs: wire.Attrs | None = None, last: bool = False) -> None:
        """Send the first n bytes, or all. Does not wait. After a `ValueError` the buffer can still be sent."""
        n = self.size if n is None else n
        if not 0 <= n <= self.size:
            raise ValueError(f"send of {n} bytes from a buffer of {self.size}")
        if key or attrs:
            wire.check_labels(key, attrs or {})
        e = self._envelope
        if key or attrs or last:
            e = e._replace(key=key or e.key, attrs=attrs or e.attrs, last=last or e.last)
        method = self._check_unsent()
        try:
            method.send(n, e)
        except BaseException:
            method.abort()
            raise
        finally:
            self._method = None
            self._release()

    def abort(self) -> None:
        """Free the buffer. After `send` it does nothing."""
        if self._method is not None:
            self._session.check_process()
            method, self._method = self._method, None
            self._release()
            method.abort()

    def _check_unsent(self) -> _PutMethod:
        if self._method is None:
            raise Finished("the buffer was sent or aborted before")
        return self._method

    def _release(self) -> None:
        try:
            self.view.release()
        except BufferError:
            pass  # an array of the caller only keeps the memory mapped

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
