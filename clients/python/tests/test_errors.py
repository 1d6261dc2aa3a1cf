"""Errors: what they say, and that they survive the way to another process."""

from __future__ import annotations

import copy
import pickle
import unittest
from collections.abc import Iterator

from fakehost import deliver
from hostcase import RequestCase

import omnibus
from omnibus.codec import encode
from omnibus.errors import HostError, again, code_name, host_error
from omnibus.gpu import DeviceLost, DriverError


def kinds(base: type[Exception]) -> Iterator[type[Exception]]:
    """The classes below one, it included."""
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


class TextTest(unittest.TestCase):
    def test_host_errors_carry_code_and_text(self) -> None:
        for code in range(20):
            with self.subTest(code):
                self.assertEqual(str(host_error(code, "there is no place")), "there is no place")
                self.assertIn(code_name(code), str(host_error(code, "")))
        self.assertEqual(str(omnibus.Refused(4, "not you")), "the host refused the connection: not you")
        self.assertEqual(str(omnibus.Refused(4, "")), "the host refused the connection: denied")


class PickleTest(RequestCase):
    """Pickling an object of a connection, as multiprocessing does for a spawned process, raises TypeError."""

    def test_connection_cannot_be_pickled(self) -> None:
        self.host.send(deliver(3, 1, encode("A")))
        result = next(self.request)
        for value in (self.client, self.client.exchange(), self.request, result, [{"bus": self.client}]):
            with self.subTest(type(value).__name__), self.assertRaisesRegex(TypeError, "connect there"):
                pickle.dumps(value)


class CopyTest(unittest.TestCase):
    """A pool of processes hands errors on by pickle, and waits for ever for one that cannot be read."""

    def test_every_error_can_be_sent_to_another_process(self) -> None:
        made: list[Exception] = []
        for kind in set(kinds(omnibus.OmnibusError)):
            if issubclass(kind, (HostError, omnibus.Refused)):
                e: Exception = kind(11, "no")
            elif issubclass(kind, omnibus.RequestEnded):
                e = kind("talk", "think->talk", "k", 4, "no")
            elif issubclass(kind, DriverError):
                e = kind("cuInit", 3, "no")
            else:
                e = kind("no")
            made.append(e)
        self.assertTrue({DeviceLost, omnibus.Taken, omnibus.DeadlineExceeded} <= {type(e) for e in made})
        for e in made:
            for way in (lambda e: pickle.loads(pickle.dumps(e)), copy.copy, again):
                with self.subTest(type(e).__name__):
                    got = way(e)
                    self.assertEqual((type(got), str(got), got.args, got.__dict__),
                                     (type(e), str(e), e.args, e.__dict__))  # fmt: skip
                    self.assertIsNot(got, e)
