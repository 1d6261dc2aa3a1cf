"""Three stages of a deployment with the connector on some or all edges: `vllmstage` lists vLLM-Omni's own parts.

A stage of vLLM-Omni's engine has one connector for both directions, that of its incoming edge. A stage of its diffusion
engine has one for both directions, too: that of its outgoing edge.
"""

from __future__ import annotations

import json
import os
import unittest
from typing import Any

import fakehost  # noqa: F401  (finds the package)
import realhost
import vllmstage
from vllmstage import CHUNK, HANDED, WHOLE

SHARED_MEMORY = {"name": "SharedMemoryConnector", "extra": {"codec_chunk_frames": 25}}
SIZES = (100, 10_000, 1_000_000)


def deployment(first: dict[str, Any], second: dict[str, Any], replicas: int = 1) -> str:
    """A deployment's YAML, in flow style: three stages, and the connectors of the two edges between them."""
    return json.dumps(
        {
            "async_chunk": True,
            "connectors": {"first": first, "second": second},
            "stages": [
                {"stage_id": 0, "output_connectors": {"to_stage_1": "first"}},
                {"stage_id": 1, "input_connectors": {"from_stage_0": "first"}, "num_replicas": replicas,
                 "output_connectors": {"to_stage_2": "second"}},
                {"stage_id": 2, "input_connectors": {"from_stage_1": "second"}},
            ],
        }
    )  # fmt: skip


class StagesTest(unittest.TestCase):
    deployments: vllmstage.Deployments
    exchange: realhost.Exchange

    @classmethod
    def setUpClass(cls) -> None:
        cls.exchange = realhost.Exchange()
        cls.addClassCleanup(cls.exchange.close)
        cls.deployments = vllmstage.Deployments()
        cls.addClassCleanup(cls.deployments.close)

    def setUp(self) -> None:
        self.prefix = f"omnibus-test-{os.getpid()}-{self._testMethodName}"
        self.running: list[vllmstage.Stage] = []

    def tearDown(self) -> None:
        self.end()
        self.assertFalse([n for n in os.listdir("/dev/shm") if self.prefix in n])
        self.exchange.emptied()

    def ring(self, **extra: Any) -> dict[str, Any]:
        return {"name": "OmnibusConnector", "extra": {"socket": self.exchange.socket, "codec_chunk_frames": 25, **extra}}

    def segment(self, **extra: Any) -> dict[str, Any]:
        return {"name": "OmnibusConnector", "extra": {"mode": "segment", "codec_chunk_frames": 25, **extra}}

    def start(self, first: dict[str, Any], second: dict[str, Any], replicas: int = 1) -> list[vllmstage.Stage]:
        """The stages of a deployment: the first, the last, and the replicas of the middle one."""
        self.end()
        which = [(0, 0), (2, 0), *((1, replica) for replica in range(replicas))]
        self.running = self.deployments.stages(deployment(first, second, replicas), *which)
        return self.running

    def end(self) -> str:
        """End the stages. The result is their logs."""
        logged = "".join(stage.close() for stage in self.running)
        self.running = []
        return logged

    def lost(
        self, first: vllmstage.Stage, last: vllmstage.Stage, *middle: vllmstage.Stage, seconds: float = 2.0
    ) -> list[tuple[str, int, int]]:
        """Send values of all ways and sizes through the stages. Way, size and target of each value that does not arrive."""
        lost = []
        for turn, (way, request, size, done) in enumerate(self.values()):
            source = first
            for number, target in (1, middle[turn // len(SIZES) % len(middle)]), (2, last):
                told = source.put(way, request, size if source is first else 0, done)
                got = target.get(way, request, told, seconds) if told else None
                if got != vllmstage.digest(vllmstage.content(request, size)):
                    self.assertIsNone(got)
                    lost.append((way, size, number))
                    break
                source = target
        return lost

    def values(self) -> list[tuple[str, str, int, bool]]:
        """Way, request, size, and whether it is the last of its request: chunks of two requests, and whole payloads."""
        chunks = [(CHUNK, f"{self.prefix}-{r}", size, size == SIZES[-1]) for r in ("a", "b") for size in SIZES]
        wholes = [(way, f"{self.prefix}-{way[:5]}-{size}", size, True) for way in (WHOLE, HANDED) for size in SIZES]
        return chunks + wholes

    def assertAllArrive(self, first: dict[str, Any], second: dict[str, Any], replicas: int = 1) -> None:
        self.assertEqual(self.lost(*self.start(first, second, replicas)), [])

    def test_no_edge_switched(self) -> None:
        first, last, middle = self.start(SHARED_MEMORY, SHARED_MEMORY)
        self.assertEqual(self.lost(first, last, middle), [])
        shared = "SharedMemoryConnector"
        self.assertEqual(first.connectors, [[shared, "sender"], [shared, "sender"]])
        self.assertEqual(middle.connectors, [[shared, "receiver"], [shared, "sender"]])
        self.assertEqual(last.connectors, [[shared, "receiver"], [shared, "receiver"]])

    def test_ring_on_the_first_edge_alone(self) -> None:
        """The middle stage puts into the exchange, and the last one looks in /dev/shm. The host says so ten seconds later."""
        first, last, middle = self.start(self.ring(), SHARED_MEMORY)
        self.assertEqual([c[0] for c in middle.connectors], ["OmnibusConnector", "SharedMemoryConnector"])
        lost = self.lost(first, last, middle, seconds=0.1)
        chunks = [(CHUNK, size, 2) for _ in range(2) for size in SIZES]
        wholes = [(WHOLE, size, 2) for size in SIZES]
        handed = [(HANDED, size, 1) for size in SIZES]  # a middle stage for diffusion looks in /dev/shm
        self.assertEqual(lost, chunks + wholes + handed)

    def test_ring_on_the_second_edge_alone(self) -> None:
        """The middle stage puts into /dev/shm, and a get that finds nothing in the exchange takes the segment of that key."""
        self.assertAllArrive(SHARED_MEMORY, self.ring())

    def test_segment_on_the_first_edge_alone(self) -> None:
        self.assertAllArrive(self.segment(), SHARED_MEMORY)

    def test_segment_on_the_second_edge_alone(self) -> None:
        self.assertAllArrive(SHARED_MEMORY, self.segment())

    def test_ring_on_both_edges(self) -> None:
        self.assertAllArrive(self.ring(), self.ring())

    def test_segment_on_both_edges(self) -> None:
        self.assertAllArrive(self.segment(), self.segment())

    def test_shm_threshold_bytes_has_no_effect(self) -> None:
        """The option has no effect on SharedMemoryConnector either. Most gets of vLLM-Omni have the key and no metadata."""
        for make in (self.ring, self.segment):
            switched = make(shm_threshold_bytes=65_536)
            with self.subTest(switched):
                self.assertAllArrive(switched, switched)

    def test_replicas_of_the_middle_stage(self) -> None:
        """All replicas have the same connector, and a key does not name a replica."""
        for switched in (self.ring(), self.segment()):
            with self.subTest(switched):
                self.assertAllArrive(switched, switched, replicas=2)

    def test_an_aborted_request_is_cleaned_up_by_its_keys(self) -> None:
        """The chunks of an aborted request are removed, and no value of a request whose name begins alike."""
        for kind, switched in ("shared memory", SHARED_MEMORY), ("ring", self.ring()), ("segment", self.segment()):
            with self.subTest(kind):
                first, _, middle = self.start(switched, switched)
                aborted = f"{self.prefix}-{kind[0]}"
                others = [f"{aborted}_0", f"{aborted}_0_0", f"{aborted}_0_1", f"{aborted}0"]
                for request in others:
                    first.put(CHUNK, request, 100)
                first.put(CHUNK, aborted, 100, last=False)
                first.put(CHUNK, aborted, 10_000, last=False)
                self.assertEqual(first.abort(aborted), [f"{aborted}_0_0", f"{aborted}_0_1"])
                self.assertIsNone(middle.get(CHUNK, aborted))
                for request in others:
                    want = vllmstage.digest(vllmstage.content(request, 100))
                    self.assertEqual(middle.get(CHUNK, request), want, request)
                first.put(CHUNK, aborted, 100)  # a later request may have the same name
                self.assertEqual(middle.get(CHUNK, aborted), vllmstage.digest(vllmstage.content(aborted, 100)))


if __name__ == "__main__":
    unittest.main()
