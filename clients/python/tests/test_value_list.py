"""Each value of the list arrives as the list says, by each way, or is refused by its sender."""

from __future__ import annotations

import base64
import operator
import re
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import realvllm
import valuelist
from realhost import Exchange, Host, Pipeline
from segmentcase import SegmentCase
from valuelist import ARRIVES, NONE, PATH, REFUSED, Answers, Row, same, wrapped

import omnibus
from omnibus import PayloadError, Tensor, codec, sources, tensor
from omnibus.connector import OmnibusConnector
from omnibus.msgpack import Ext
from omnibus.omni import decoder, marks

Way = Callable[[Any], Any]

MSGPACK_ANSWERS, BUNDLE_ANSWERS = operator.attrgetter("msgpack"), operator.attrgetter("bundle")
OMNI_ANSWERS, TENSOR_ANSWERS = operator.attrgetter("omni"), operator.attrgetter("tensor")


def by(number: int) -> Way:
    def way(v: Any) -> Any:
        payload = memoryview(codec.encode(v, number))
        try:
            return codec.decode(payload, number)
        except PayloadError as e:
            raise AssertionError(f"its receiver refuses it: {e}") from e

    return way


def by_tensor(v: Any) -> Any:
    """As an emission does it."""
    source = sources.of(v)
    assert source is not None and source.fill is not None
    payload = bytearray(tensor.payload_bytes(source.dtype, source.shape))
    source.fill(tensor.write_header(memoryview(payload), source.dtype, source.shape))
    return tensor.view(payload)


class ListCase(unittest.TestCase):
    def setUp(self) -> None:
        super().setUp()
        patch = mock.patch.dict(marks._modules, {"torch": None})  # which has other tensors
        patch.start()
        self.addCleanup(patch.stop)

    def check(self, way: Way, answers: Callable[[Answers], str], path: str = "") -> None:
        """Send all values by a way; `path` is to what is sent."""
        self.assertGreater(len(valuelist.cases()), 200)
        for r, i, v in valuelist.cases():
            answer = answers(r.answers)
            if answer == NONE:
                continue
            with self.subTest(r.name, i=i, v=repr(type(v)), nested=False):
                self.one(way, r, v, v, answer, path)
            if answers is not TENSOR_ANSWERS and not r.outermost:
                with self.subTest(r.name, i=i, v=repr(type(v)), nested=True):
                    self.one(way, r, v, wrapped(v), answer, path + PATH)

    def one(self, way: Way, r: Row, v: Any, sent: Any, answer: str, path: str) -> None:
        if answer == REFUSED:
            with self.assertRaisesRegex(PayloadError, "" if r.outermost else re.escape(path)):
                way(sent)
            return
        want, got = ARRIVES[answer].of(v), way(sent)
        if sent is not v:
            want = wrapped(want)
        self.assertTrue(same(got, want), f"{got!r:.200}, want {want!r:.200}")


class CodecTest(ListCase):
    def test_msgpack(self) -> None:
        self.check(by(codec.MSGPACK), MSGPACK_ANSWERS)

    def test_bundle(self) -> None:
        self.check(by(codec.BUNDLE), BUNDLE_ANSWERS)

    def test_omni(self) -> None:
        self.check(by(codec.OMNI), OMNI_ANSWERS)

    def test_omni_without_numpy(self) -> None:
        """An array is a Tensor, or the dictionary that it travels as, and an array again where NumPy is."""
        for r, i, v in valuelist.cases():
            if valuelist.np is None or not isinstance(v, valuelist.np.ndarray) or r.answers.omni == REFUSED:
                continue
            with self.subTest(r.name, i=i):
                payload = memoryview(codec.encode(wrapped(v), codec.OMNI))
                with mock.patch.dict(marks._modules, {"numpy": None}):
                    there = codec.decode(payload, codec.OMNI)
                    again = codec.encode(there, codec.OMNI)
                t = there["a"][3]
                if isinstance(t, Tensor):
                    self.assertTrue(same(t.numpy(), v.view(valuelist.np.ndarray)))
                else:
                    self.assertIs(type(t), dict)
                    self.assertTrue(same(codec.decode(memoryview(again), codec.OMNI), wrapped(v)))

    def test_tensor(self) -> None:
        self.check(by_tensor, TENSOR_ANSWERS)


def through(c: OmnibusConnector) -> Way:
    """By a connector, whose health names the reason of a refused value."""

    def way(v: Any) -> Any:
        ok, size, metadata = c.put("0", "1", "key", v)
        if not ok:
            failed = re.fullmatch("put 'key': PayloadError: (.*)", c.health()["last_error"], re.DOTALL)
            assert failed, c.health()["last_error"]
            raise PayloadError(failed[1])
        got = c.get("0", "1", "key", metadata)
        assert got is not None, c.health()["last_error"]
        assert got[1] == size
        return got[0]

    return way


class SegmentTest(ListCase, SegmentCase):
    def test_segment(self) -> None:
        self.check(through(self.connector()), OMNI_ANSWERS)


class RingTest(ListCase, SegmentCase):
    def test_ring(self) -> None:
        host = Exchange()
        self.addCleanup(host.close)
        c = OmnibusConnector({"socket": host.socket})
        self.addCleanup(c.close)
        self.check(through(c), OMNI_ANSWERS)


class RealTest(unittest.TestCase):
    """vLLM-Omni's own serializer."""

    def test_same_bytes_unless_one_refuses(self) -> None:
        real = realvllm.Real()
        self.addCleanup(real.close)
        both = 0
        for (r, i, v), text in zip(valuelist.cases(missing="PIL.Image"), real.ask("listed"), strict=True):
            if not text or r.answers.omni == REFUSED or isinstance(v, Ext):  # which to that serializer is a dataclass
                continue
            theirs, ours = base64.b64decode(text), codec.encode(v, codec.OMNI)
            both += 1
            with self.subTest(r.name, i=i):
                alike = theirs == ours or same(decoder.decode(theirs), decoder.decode(ours))
                self.assertTrue(alike, f"{ours[:99]!r}, want {theirs[:99]!r}")
        self.assertGreater(both, 100)


class Queue(Host):
    """The owner of a tensor queue."""

    def command(self) -> list[str]:
        return ["queue", "values", "--socket", self.socket]


class QueueTest(ListCase):
    def test_queue(self) -> None:
        host = Queue()
        self.addCleanup(host.close)
        host.start()
        q = omnibus.TensorQueue(path=host.socket)
        self.addCleanup(q.close)

        def way(v: Any) -> Any:
            q.put("r", "s", {"x": v})
            return q.get()[2]["x"]

        self.check(way, BUNDLE_ANSWERS, "['inputs']['x']")


class StageTest(ListCase):
    def test_stage(self) -> None:
        """To a stage and back. Values with tensors become bundles, and others msgpack."""
        host = Pipeline(4, stage="def echo(value):\n    return [value]\n")
        self.addCleanup(host.close)
        client = omnibus.connect(host.socket)
        self.addCleanup(client.close)

        def way(v: Any) -> Any:
            with client.submit([v]) as request:
                return request.values()[0][0][0]

        self.check(way, lambda a: a.msgpack if a.bundle == REFUSED else a.bundle, "[0]")


if __name__ == "__main__":
    unittest.main()
