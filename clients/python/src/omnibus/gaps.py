"""What is free of a range of bytes."""

from __future__ import annotations

import bisect


class Gaps:
    """Gaps in order, none beside another. The first that fits is taken."""

    __slots__ = ("size", "_starts", "_ends")

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts, self._ends = [0], [size]

    def take(self, size: int) -> int | None:
        """Where there was room; None: nowhere."""
        for i, (start, end) in enumerate(zip(self._starts, self._ends)):
            if end - start >= size:
                self._starts[i] += size
                if self._starts[i] == end:
                    del self._starts[i], self._ends[i]
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """Have room that was taken be free again."""
        end = start + size
        i = bisect.bisect(self._starts, start)
        before = i > 0 and self._ends[i - 1] == start
        after = i < len(self._starts) and self._starts[i] == end
        if before and after:
            self._ends[i - 1] = self._ends[i]
            del self._starts[i], self._ends[i]
        elif before:
            self._ends[i - 1] = end
        elif after:
            self._starts[i] = start
        else:
            self._starts.insert(i, start)
            self._ends.insert(i, end)

    @property
    def empty(self) -> bool:
        """Whether nothing is taken."""
        return self._starts == [0] and self._ends == [self.size]
