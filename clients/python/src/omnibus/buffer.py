"""Room for one payload, and what travels beside it."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Protocol

from . import wire
from .errors import Finished
from .locked import Core


class Envelope(NamedTuple):
    """What travels beside an emission's payload, where it goes, and the delivery that it is for."""

    delivery: int
    edge: int
    key: str
    attrs: wire.Attrs
    last: bool

    @property
    def flags(self) -> int:
        return wire.LAST if self.last else 0


class _Way(Protocol):
    """How a buffer is sent, and given back."""

    def send(self, n: int, e: Envelope) -> None: ...

    def abort(self) -> None: ...


class Buffer:
    """Room for one payload, to be filled in place and sent.

    A context manager: what was not sent by its end is aborted. It belongs to
    one thread. Arrays made of `view` must not be written to after `send`: readers
    would see it.
    """

    __slots__ = ("view", "size", "_session", "_way", "_envelope")

    def __init__(self, s: Core, way: _Way, view: memoryview, e: Envelope) -> None:
        self.view = view  #: the memory to fill, writable
        self.size = len(view)
        self._session = s
        self._way: _Way | None = way
        self._envelope = e

    def send(self, n: int | None = None, *, key: str = "", attrs: wire.Attrs | None = None, last: bool = False) -> None:
        """Send the first n bytes, or all. Does not wait. A `ValueError` leaves the buffer to be sent otherwise."""
        n = self.size if n is None else n
        if not 0 <= n <= self.size:
            raise ValueError(f"send of {n} bytes from a buffer of {self.size}")
        if key or attrs:
            wire.check_labels(key, attrs or {})
        e = self._envelope
        if key or attrs or last:
            e = e._replace(key=key or e.key, attrs=attrs or e.attrs, last=last or e.last)
        way = self._untaken()
        try:
            way.send(n, e)
        except BaseException:
            way.abort()
            raise
        finally:
            self._way = None
            self._release()

    def abort(self) -> None:
        """Give the room back. After `send` it does nothing."""
        if self._way is not None:
            self._session.check_process()
            way, self._way = self._way, None
            self._release()
            way.abort()

    def _untaken(self) -> _Way:
        if self._way is None:
            raise Finished("the buffer was sent or aborted before")
        return self._way

    def _release(self) -> None:
        try:
            self.view.release()
        except BufferError:
            pass  # somebody's array keeps the memory mapped, no more

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
