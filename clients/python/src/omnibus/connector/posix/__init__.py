"""Stores with names: values in files of /dev/shm that processes of one user open by themselves, without a host.

The Go package connector/posix has the same files, and says what lies where and why; either end may be Go. Two things
are otherwise here:

- Nothing is mapped. Values, books and locks go through system calls, so a file that somebody shortens is an error,
  where in a Go process it is a SIGBUS.
- A value is copied when it is got, and pinned for that long. So whoever got it holds nothing of the store.
"""

from .end import Store

__all__ = ["Store"]
