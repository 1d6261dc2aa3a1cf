"""vLLM's caches between instances of vLLM, over a real exchange: see realengine for what is vLLM's own."""

from __future__ import annotations

import importlib
import inspect
import pickle
import random
import types
import unittest
from typing import Any

import fakehost  # noqa: F401  (finds the package)
import realengine
import realhost
from realengine import Instance, of

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


def setUpModule() -> None:
    realengine.load()


def prompt(length: int, seed: int = 0) -> list[int]:
    r = random.Random(f"{length} {seed}")
    return [r.randrange(500) for _ in range(length)]


class CacheCase(unittest.TestCase):
    def setUp(self) -> None:
        self.exchange = realhost.Exchange()
        self.addCleanup(self.exchange.close)

    def instance(self, **options: Any) -> Instance:
        return Instance(self, socket=self.exchange.socket, **options)

    def assertAllFree(self, *instances: Instance) -> None:
        for i in instances:
            idle = i.ask("idle")
            self.assertEqual(idle["requests"], 0)


class KVTest(CacheCase):
    def alone(self, tokens: list[int], count: int) -> list[int]:
        """The output of an instance without a connector."""
        i = Instance(self, blocks=200)
        i.ask("add", "r", tokens, count)
        made: list[int] = i.ask("until", "r")["tokens"]
        i.kill()
        return made

    def pair(self, **options: Any) -> tuple[Instance, Instance]:
        return (self.instance(kv_role="kv_producer", blocks=200, **options),
                self.instance(kv_role="kv_consumer", blocks=200, order=(0, 2, 1, 3), **options))  # fmt: skip

    def prefill(self, p: Instance, name: str, tokens: list[int]) -> tuple[dict[str, Any], list[int]]:
        p.ask("add", name, tokens, 1, dict(PREFILL))
        result = p.ask("until", name)
        self.assertTrue(result["params"]["do_remote_prefill"])
        return result["params"], result["tokens"]

    def test_prefill_to_decode(self) -> None:
        """The tokens equal those of one instance, and no values stay, for prompts of many lengths."""
        p, d = self.pair(extra={"part_bytes": 5000})
        for length in (1, 15, 16, 17, 100, 333):
            with self.subTest(length):
                tokens = prompt(length)
                params, first = self.prefill(p, f"p{length}", tokens)
                d.ask("add", f"d{length}", tokens, 5, params)
                got = d.ask("until", f"d{length}")
                want = self.alone(tokens, 5)
                self.assertEqual((first, got["tokens"]), (want[:1], want))
                self.assertEqual([p.ask("idle")["blocks"], d.ask("idle")["blocks"], self.exchange.entries()], [0, 0, 0])

    def test_many_at_once(self) -> None:
        p, d = self.pair()
        prompts = {f"r{i}": prompt(20 + i * 7, i) for i in range(12)}
        for name, tokens in prompts.items():
            params, _ = self.prefill(p, name, tokens)
            d.ask("add", name, tokens, 3, params)
        for name, tokens in prompts.items():
            self.assertEqual(d.ask("until", name)["tokens"], self.alone(tokens, 3))
        self.assertAllFree(p, d)
        self.assertEqual(self.exchange.entries(), 0)

    def test_cached_blocks_of_the_decoder_are_not_loaded(self) -> None:
        """A prefix that is in vLLM's own cache."""
        p, d = self.pair(extra={"lease": "1h"})
        tokens = prompt(100)
        for name, length in (("a", 64), ("b", 100), ("c", 100), ("d", 64)):
            params, _ = self.prefill(p, name, tokens[:length])
            d.ask("add", name, tokens[:length], 4, params)
            self.assertEqual(d.ask("until", name)["tokens"], self.alone(tokens[:length], 4))
            self.assertAllFree(p, d)
        self.exchange.emptied()

    def test_the_prefill_instance_is_killed(self) -> None:
        p, d = self.pair(extra={"lease": 2})
        tokens = prompt(100)
        params, _ = self.prefill(p, "p", tokens)
        p.kill()
        d.ask("add", "d", tokens, 4, params)
        self.assertEqual(d.ask("until", "d")["tokens"], self.alone(tokens, 4))  # computed by itself
        self.assertAllFree(d)

    def test_policy_fail(self) -> None:
        """vLLM's default policy for blocks that cannot be loaded."""
        p, d = self.pair(extra={"lease": 1}, policy="fail")
        params, _ = self.prefill(p, "p", prompt(100))
        p.kill()
        d.ask("add", "d", prompt(100), 4, params)
        got = d.ask("until", "d")
        self.assertEqual((got["finish"], got["tokens"]), ("error", []))
        self.assertAllFree(d)

    def test_the_host_is_killed(self) -> None:
        p, d = self.pair()
        tokens = prompt(100)
        params, _ = self.prefill(p, "p", tokens)
        p.ask("idle")
        self.exchange.kill()
        d.ask("add", "d", tokens, 4, params)
        self.assertEqual(d.ask("until", "d")["tokens"], self.alone(tokens, 4))
        params, _ = self.prefill(p, "p2", tokens)  # whose blocks come free without a host, too
        self.assertAllFree(p, d)
        self.exchange.start()
        other = prompt(80)
        params, _ = self.prefill(p, "p3", other)
        d.ask("add", "d3", other, 4, params)
        self.assertEqual(d.ask("until", "d3")["tokens"], self.alone(other, 4))
        self.assertAllFree(p, d)

    def test_aborted_before_it_is_scheduled(self) -> None:
        p, d = self.pair(extra={"lease": "1h"})
        params, _ = self.prefill(p, "p", prompt(100))
        p.ask("idle")
        self.assertTrue(self.exchange.entries())
        d.ask("add", "d", prompt(100), 4, params)
        d.ask("abort", "d")
        self.assertAllFree(d)
        self.exchange.emptied()

    def test_aborted_while_it_loads(self) -> None:
        p, d = self.pair()
        params, _ = self.prefill(p, "p", prompt(100))
        never = {**params, "remote_request_id": "never"}
        d.ask("add", "d", prompt(100), 4, never)
        d.ask("steps", 5)
        d.ask("abort", "d")
        self.assertEqual(d.ask("idle")["blocks"], 0)

    def test_an_aborted_prefill_hands_over_nothing(self) -> None:
        p, _ = self.pair(budget=16)
        p.ask("add", "p", prompt(300), 1, dict(PREFILL))
        p.ask("steps", 3)
        p.ask("abort", "p")
        self.assertEqual((p.ask("idle")["blocks"], self.exchange.entries()), (0, 0))

    def test_the_deadline(self) -> None:
        """Untaken blocks are removed, and the cache blocks are free at once."""
        p, d = self.pair(extra={"lease": 1})
        tokens = prompt(100)
        params, _ = self.prefill(p, "p", tokens)
        self.assertEqual(p.ask("idle")["blocks"], 0)
        self.exchange.emptied()
        d.ask("add", "d", tokens, 4, params)
        self.assertEqual(d.ask("until", "d")["tokens"], self.alone(tokens, 4))

    def test_a_prompt_larger_than_the_arena(self) -> None:
        p, d = self.pair(extra={"arena_bytes": 16 << 10, "part_bytes": 6 << 10})
        tokens = prompt(700)
        params, _ = self.prefill(p, "p", tokens)
        d.ask("add", "d", tokens, 2, params)
        while not d.ask("made", "d"):
            p.ask("steps", 1)
            d.ask("steps", 1)
        self.assertEqual(d.ask("until", "d")["tokens"], self.alone(tokens, 2))
        self.assertAllFree(p, d)

    def test_offers_that_do_not_fit(self) -> None:
        """With wrong parameters of a router the decoder computes the prompt itself."""
        p, d = self.pair()
        tokens = prompt(50)
        want = self.alone(tokens, 3)
        for i, (name, value) in enumerate((
            ("tp_size", 2), ("remote_block_size", 32), ("remote_num_tokens", 49), ("remote_prompt_hash", "x"),
            ("remote_engine_id", None),
        )):  # fmt: skip
            with self.subTest(name):
                params, _ = self.prefill(p, f"p{i}", tokens)
                d.ask("add", f"d{i}", tokens, 3, {**params, name: value})
                self.assertEqual(d.ask("until", f"d{i}")["tokens"], want)
                self.assertAllFree(d)

    def test_another_prompt_of_the_same_length(self) -> None:
        """Prompts differ by their tokens, and by their images."""
        p, d = self.pair()
        params, _ = self.prefill(p, "p", prompt(50))
        other = prompt(50, 1)
        d.ask("add", "d", other, 3, params)
        self.assertEqual(d.ask("until", "d")["tokens"], self.alone(other, 3))
        requests = [
            types.SimpleNamespace(prompt_token_ids=[1, 2], mm_features=[types.SimpleNamespace(identifier=image)]) for image in "ab"
        ]
        a, b = map(of("omnibus.caches.kv", "_hash"), requests)
        self.assertNotEqual(a, b)

    def test_preempted_after_the_load(self) -> None:
        """A preempted decoder recomputes loaded blocks, and does not load them again."""
        p, d = self.instance(kv_role="kv_producer", blocks=200), self.instance(kv_role="kv_consumer", blocks=12, prefixes=False)
        prompts = {name: prompt(60, i) for i, name in enumerate("ab")}
        for name, tokens in prompts.items():
            params, _ = self.prefill(p, name, tokens)
            d.ask("add", name, tokens, 60, params)
        for name, tokens in prompts.items():
            self.assertEqual(d.ask("until", name)["tokens"], self.alone(tokens, 60))
        self.assertGreater(d.ask("idle")["preemptions"], 0)
        self.assertAllFree(p, d)

    def test_request_ids_that_are_no_keys(self) -> None:
        p, d = self.pair()
        for name in ("a/../b", "x" * 300, "\u00e4 b", "r_1_2_3"):
            tokens = prompt(40, len(name))
            params, _ = self.prefill(p, name, tokens)
            d.ask("add", name, tokens, 3, params)
            self.assertEqual(d.ask("until", name)["tokens"], self.alone(tokens, 3))
        self.assertAllFree(p, d)
        self.assertEqual(self.exchange.entries(), 0)


def settings(**more: Any) -> Any:
    """Stands in for a VllmConfig, with the fields that the connectors read."""
    parallel = types.SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, rank=0)
    parallel.__dict__.update(more.pop("parallel", {}))
    return types.SimpleNamespace(
        parallel_config=parallel, model_config=None, use_v2_model_runner=True, kv_transfer_config=None, ec_transfer_config=None, **more
    )


class ShapesTest(CacheCase):
    """Pages of any shape, kind and layout, byte for byte, between the workers of two processes."""

    COUNT = 200

    @staticmethod
    def case(seed: int) -> tuple[dict[str, Any], int, list[int], int, Any]:
        """Caches, their number of blocks, the blocks of a request, and the size of parts, all by a number."""
        torch = importlib.import_module("torch")
        r = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        dtypes = [torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int8, torch.float8_e4m3fn, torch.float8_e5m2]
        blocks = r.randrange(2, 30)
        caches: dict[str, Any] = {}
        for i in range(r.randrange(1, 6)):
            dtype = r.choice(dtypes) if seed % 3 else torch.bfloat16
            ratio = r.choice((1, 1, 2))
            shape = [blocks * ratio, r.randrange(1, 5), r.choice((1, 4, 16)), r.choice((1, 3, 8, 64, 128))]
            raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), dtype=torch.uint8, generator=g)
            caches[f"layer{i}"] = raw.view(dtype)
        if seed % 5 == 0:
            caches["shares"] = caches["layer0"]
        ids = r.sample(range(blocks), r.randrange(1, blocks + 1))
        return caches, blocks, ids, r.choice((1, 300, 10_000, 1 << 20)), r

    @staticmethod
    def worker(socket: str, role: str, caches: dict[str, Any], blocks: int, part: int) -> Any:
        c = importlib.import_module("vllm.config")
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        torch = importlib.import_module("torch")
        config = settings()
        config.kv_transfer_config = c.KVTransferConfig(
            kv_connector="OmnibusKVConnector", kv_connector_module_path="omnibus.caches.kv", kv_role=role,
            kv_connector_extra_config={"socket": socket, "part_bytes": part},
        )  # fmt: skip
        config.scheduler_config = types.SimpleNamespace(disable_hybrid_kv_cache_manager=True)
        spec = interface.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
        caches_config = interface.KVCacheConfig(blocks, [], [interface.KVCacheGroupSpec(list(caches), spec)])
        factory = of("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory")
        role = of("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorRole").WORKER
        connector = factory.create_connector(config, role, caches_config)
        connector.register_kv_caches(caches)
        return connector

    @staticmethod
    def offer(seed: int, ids: list[int]) -> Any:
        return of("omnibus.caches.handover", "Offer")("engine", f"r{seed}", 1, 16, len(ids) * 16, "h", 4e9)

    @classmethod
    def step(cls, connector: Any, meta: Any) -> tuple[set[str], set[str], set[int]]:
        connector.bind_connector_metadata(meta)
        connector.start_load_kv(None)
        results = connector.get_transfer_results(set())
        invalid = connector.get_block_ids_with_load_errors()
        connector.clear_connector_metadata()
        return results.finished_sending, results.finished_recving, invalid

    @classmethod
    def produce(cls, pipe: Any, socket: str) -> None:
        meta = of("omnibus.caches.kv", "Meta")
        for seed in range(cls.COUNT):
            caches, blocks, ids, part, _ = cls.case(seed)
            connector = cls.worker(socket, "kv_producer", caches, blocks, part)
            sent, _, _ = cls.step(connector, meta(sends=[(cls.offer(seed, ids), "r", ids)]))
            while "r" not in sent:
                sent, _, _ = cls.step(connector, meta())
            pipe.send(seed)
            pipe.recv()
            connector.shutdown()

    def test_byte_for_byte(self) -> None:
        context = realengine.multiprocessing.get_context("fork")
        pipe, theirs = context.Pipe()
        process = context.Process(target=self.produce, args=(theirs, self.exchange.socket), daemon=True)
        process.start()
        self.addCleanup(process.kill)
        torch = importlib.import_module("torch")
        meta = of("omnibus.caches.kv", "Meta")
        for seed in range(self.COUNT):
            self.assertEqual(pipe.recv(), seed)
            caches, blocks, ids, part, r = self.case(seed)
            mine = {}
            for name, cache in caches.items():
                if name == "shares":
                    continue
                order = r.choice(((0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3)))
                if cache.shape[0] != blocks and order[0]:
                    order = (0, 1, 2, 3)
                kind = torch.uint8 if cache.element_size() == 1 else cache.dtype
                zeros = torch.zeros([cache.shape[i] for i in order], dtype=kind).view(cache.dtype)
                mine[name] = zeros.permute([order.index(i) for i in range(4)])
            if "shares" in caches:
                mine["shares"] = mine["layer0"]
            connector = self.worker(self.exchange.socket, "kv_consumer", mine, blocks, part)
            first = r.randrange(len(ids))
            own = r.sample(range(blocks), len(ids) - first)
            _, loaded, invalid = self.step(connector, meta(loads=[(self.offer(seed, ids), "r", own, first)]))
            while "r" not in loaded:
                _, loaded, invalid = self.step(connector, meta())
            self.assertEqual(invalid, set())
            connector.shutdown()
            pipe.send(None)
            for name, cache in caches.items():
                want = cache.unflatten(0, (blocks, -1))[ids[first:]].contiguous().view(torch.uint8)
                got = mine[name].unflatten(0, (blocks, -1))
                self.assertTrue(torch.equal(got[own].contiguous().view(torch.uint8), want), (seed, name))
                rest = [b for b in range(blocks) if b not in own]
                self.assertFalse(got[rest].flatten().view(torch.uint8).any(), (seed, name))


class ECTest(CacheCase):
    MEDIA = [("image-a", 4, 20), ("image-b", 30, 10)]

    def encode(self, p: Instance, name: str, media: Any = MEDIA) -> Any:
        p.ask("add", name, prompt(60), 1, None, media)
        return p.ask("until", name)["ec_params"]

    def go_on(self, c: Instance, name: str, media: Any = MEDIA, ec: Any = None) -> tuple[str, int]:
        """The outcome of a request, and the number of items that its instance has encoded by then."""
        c.ask("add", name, prompt(60), 2, None, media, ec)
        finish = c.ask("until", name)["finish"]
        encodings: int = c.ask("idle")["encodings"]
        return finish, encodings

    def test_encoded_once(self) -> None:
        p, c = self.instance(ec_role="ec_producer", prefixes=False), self.instance(ec_role="ec_consumer", prefixes=False)
        params = self.encode(p, "p")
        self.assertEqual(set(params), {"image-a", "image-b"})
        self.assertEqual(self.exchange.entries(), 2)
        self.assertEqual(self.go_on(c, "c"), ("length", 0))
        self.assertEqual(self.exchange.entries(), 0)
        self.assertEqual(self.go_on(c, "again"), ("length", 0))  # from vLLM's own cache

    def test_a_second_consumer_encodes_again(self) -> None:
        p = self.instance(ec_role="ec_producer", prefixes=False)
        c = [self.instance(ec_role="ec_consumer", prefixes=False) for _ in range(2)]
        self.encode(p, "p")
        self.assertEqual([self.go_on(i, "c") for i in c], [("length", 0), ("length", 2)])

    def test_a_part_is_there(self) -> None:
        p, c = self.instance(ec_role="ec_producer", prefixes=False), self.instance(ec_role="ec_consumer", prefixes=False)
        self.encode(p, "p", self.MEDIA[:1])
        self.assertEqual(self.go_on(c, "c"), ("length", 1))

    def test_the_producer_is_killed(self) -> None:
        p, c = self.instance(ec_role="ec_producer", prefixes=False), self.instance(ec_role="ec_consumer", prefixes=False)
        self.encode(p, "p")
        p.kill()
        self.assertEqual(self.go_on(c, "c"), ("length", 2))

    def test_the_producer_is_killed_after_the_take(self) -> None:
        """A taken item stays, also if producer and host die before the model runs."""
        p, c = self.instance(ec_role="ec_producer", prefixes=False), self.instance(ec_role="ec_consumer", prefixes=False)
        self.encode(p, "p")
        c.ask("add", "c", prompt(60), 2, None, self.MEDIA)
        c.ask("steps", 1)
        p.kill()
        self.exchange.kill()
        self.assertEqual(c.ask("until", "c")["finish"], "length")
        self.assertEqual(c.ask("idle")["encodings"], 0)

    def test_the_host_is_killed(self) -> None:
        p, c = self.instance(ec_role="ec_producer", prefixes=False), self.instance(ec_role="ec_consumer", prefixes=False)
        self.exchange.kill()
        self.encode(p, "p")
        self.assertEqual(self.go_on(c, "c"), ("length", 2))
        self.exchange.start()
        self.encode(p, "p2", [("image-c", 0, 8)])
        self.assertEqual(self.go_on(c, "c2", [("image-c", 0, 8)]), ("length", 2))

    def test_a_request_that_cannot_be_encoded_here(self) -> None:
        """With ec_transfer_params the router may have sent no pixels: the request fails, and can be retried."""
        c = self.instance(ec_role="ec_consumer", prefixes=False)
        self.assertEqual(self.go_on(c, "c", ec={"image-a": {"metadata": {}}}), ("error", 0))

    def test_aborted_after_the_take(self) -> None:
        p, c = self.instance(ec_role="ec_producer", prefixes=False), self.instance(ec_role="ec_consumer", prefixes=False)
        self.encode(p, "p")
        c.ask("add", "c", prompt(60), 2, None, self.MEDIA)
        c.ask("steps", 1)
        c.ask("abort", "c")
        c.ask("idle")
        self.assertEqual(self.go_on(c, "next"), ("length", 2))
        self.assertEqual(self.exchange.entries(), 0)

    def test_the_oldest_item_is_removed_for_space(self) -> None:
        p = self.instance(ec_role="ec_producer", prefixes=False, extra={"max_items": 3})
        c = self.instance(ec_role="ec_consumer", prefixes=False)
        for i in range(5):
            self.encode(p, f"p{i}", [(f"image-{i}", 0, 8)])
        self.assertEqual(self.exchange.entries(), 3)
        self.assertEqual([self.go_on(c, f"c{i}", [(f"image-{i}", 0, 8)])[1] for i in (1, 2, 4)], [1, 1, 1])


class WorkerECTest(CacheCase):
    """The workers' side, with full memory, and with ranks."""

    def connector(self, role: str, ec_role: str, rank: int = 0, ranks: int = 1, **extra: Any) -> Any:
        config = settings(parallel={"rank": rank, "tensor_parallel_size": ranks})
        config.ec_transfer_config = of("vllm.config", "ECTransferConfig")(
            ec_connector="OmnibusECConnector", ec_connector_module_path="omnibus.caches.ec", ec_role=ec_role,
            ec_connector_extra_config={"socket": self.exchange.socket, **extra},
        )  # fmt: skip
        roles = of("vllm.distributed.ec_transfer.ec_connector.base", "ECConnectorRole")
        made = of("vllm.distributed.ec_transfer.ec_connector.factory", "ECConnectorFactory").create_connector(config, roles[role])
        self.addCleanup(made.shutdown)
        return made

    def take(self, connector: Any, *names: str) -> tuple[dict[str, int], set[str]]:
        connector.bind_connector_metadata(of("omnibus.caches.ec", "Meta")(takes=list(names)))
        connector.start_load_caches({})
        report = connector.build_connector_worker_meta()
        return dict(report.reading_thread), report.missing

    def test_the_arena_is_full(self) -> None:
        torch = importlib.import_module("torch")
        p = self.connector("WORKER", "ec_producer", arena_bytes=8 << 20)
        for i in range(6):
            p.save_caches({f"i{i}": torch.full((3 << 19,), i, dtype=torch.bfloat16)}, f"i{i}")
        with self.assertLogs("omnibus", "ERROR") as logs:
            p.save_caches({"large": torch.zeros(5 << 20, dtype=torch.bfloat16)}, "large")
        self.assertIn("TooLarge", logs.output[0])
        c = self.connector("WORKER", "ec_consumer")
        taken, missing = self.take(c, *(f"i{i}" for i in range(6)))
        self.assertIn("i5", taken)
        self.assertIn("i0", missing)
        cache: dict[str, Any] = {}
        c.bind_connector_metadata(of("omnibus.caches.ec", "Meta")(loads=["i5"]))
        c.start_load_caches(cache)
        self.assertTrue(torch.equal(cache["i5"], torch.full((3 << 19,), 5, dtype=torch.bfloat16)))

    def test_ranks_have_values_of_their_own(self) -> None:
        torch = importlib.import_module("torch")
        tensor = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
        for rank in range(2):
            self.connector("WORKER", "ec_producer", rank, 2).save_caches({"a": tensor}, "a")
        metas = []
        for rank in range(2):
            c = self.connector("WORKER", "ec_consumer", rank, 2)
            c.bind_connector_metadata(of("omnibus.caches.ec", "Meta")(takes=["a", "b"]))
            c.start_load_caches({})
            metas.append(pickle.loads(pickle.dumps(c.build_connector_worker_meta())))
        both = metas[0].aggregate(metas[1])
        self.assertEqual((dict(both.reading_thread), both.missing), ({"a": 2}, {"b"}))

    def test_other_ranks_are_refused(self) -> None:
        torch = importlib.import_module("torch")
        self.connector("WORKER", "ec_producer", 0, 2).save_caches({"a": torch.zeros(4)}, "a")
        with self.assertLogs("omnibus", "ERROR") as logs:
            self.assertEqual(self.take(self.connector("WORKER", "ec_consumer"), "a"), ({}, {"a"}))
        self.assertIn("tp_size is 2 there and 1 here", logs.output[0])

    def test_random_tensors(self) -> None:
        torch = importlib.import_module("torch")
        p, c = self.connector("WORKER", "ec_producer"), self.connector("WORKER", "ec_consumer")
        r = random.Random(3)
        for i in range(200):
            dtype = r.choice((torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int64, torch.bool))
            shape = [r.randrange(0, 40) for _ in range(r.randrange(0, 4))]
            size = dtype.itemsize
            for n in shape:
                size *= n
            raw = torch.randint(0, 2, (size,), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
            tensor = raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
            if tensor.ndim > 1 and i % 2:
                tensor = tensor.transpose(0, 1)
            p.save_caches({f"x{i}": tensor}, f"x{i}")
            self.assertEqual(self.take(c, f"x{i}"), ({f"x{i}": 1}, set()))
            c.bind_connector_metadata(of("omnibus.caches.ec", "Meta")(loads=[f"x{i}"]))
            cache: dict[str, Any] = {}
            c.start_load_caches(cache)
            got = cache[f"x{i}"]
            self.assertEqual((got.dtype, got.shape), (tensor.dtype, tensor.shape))
            self.assertTrue(torch.equal(got.flatten().view(torch.uint8), tensor.contiguous().flatten().view(torch.uint8)))


class ContractTest(unittest.TestCase):
    """The requirements of vLLM's base classes and factories."""

    def test_hooks_are_those_of_the_base(self) -> None:
        for module, name, base_module, base_name in (
            ("kv", "OmnibusKVConnector", "kv_transfer.kv_connector.v1.base", "KVConnectorBase_V1"),
            ("ec", "OmnibusECConnector", "ec_transfer.ec_connector.base", "ECConnectorBase"),
        ):
            cls, base = of(f"omnibus.caches.{module}", name), of(f"vllm.distributed.{base_module}", base_name)
            self.assertFalse(inspect.isabstract(cls))
            for hook, f in vars(cls).items():
                if hook.startswith("_") or not inspect.isfunction(f):
                    continue
                with self.subTest(name, hook=hook):
                    there = inspect.signature(getattr(base, hook)).parameters
                    here = inspect.signature(f).parameters
                    of_each = [[(p.name, p.kind, p.default) for p in side.values()] for side in (here, there)]
                    self.assertEqual(*of_each)

    def test_metadata_travel_to_workers(self) -> None:
        kv, ec = importlib.import_module("omnibus.caches.kv"), importlib.import_module("omnibus.caches.ec")
        offer = of("omnibus.caches.handover", "Offer")("e", "r", 1, 16, 5, "h", 1.5)
        meta = kv.Meta(sends=[(offer, "r", [1])], loads=[(offer, "r", [2], 0)], refused=[("r", [3], "why")])
        self.assertEqual(pickle.loads(pickle.dumps(meta)), meta)
        meta = ec.Meta(["a"], ["b"], ["c"])
        self.assertEqual(pickle.loads(pickle.dumps(meta)), meta)

    def kv(self, groups: Any = None, parallel: Any = None, **extra: Any) -> Any:
        interface, torch = importlib.import_module("vllm.v1.kv_cache_interface"), importlib.import_module("torch")
        spec = interface.FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
        made = [interface.KVCacheGroupSpec(["a"], s) for s in (groups or (lambda i, s: [s]))(interface, spec)]
        config = settings(parallel=parallel or {})
        config.kv_transfer_config = of("vllm.config", "KVTransferConfig")(
            kv_connector="OmnibusKVConnector", kv_connector_module_path="omnibus.caches.kv", kv_role="kv_both",
            kv_connector_extra_config=extra,
        )  # fmt: skip
        config.scheduler_config = types.SimpleNamespace(disable_hybrid_kv_cache_manager=True)
        role = of("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorRole").SCHEDULER
        factory = of("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory")
        return factory.create_connector(config, role, interface.KVCacheConfig(4, [], made))

    def test_an_offer_that_is_not_needed(self) -> None:
        """If another source has all tokens, the offered blocks are taken once, and dropped."""
        c = self.kv()
        offer = of("omnibus.caches.handover", "Offer")("e", "r", 1, 16, 40, "h", 4e9)
        request = types.SimpleNamespace(request_id="d", num_prompt_tokens=40, kv_transfer_params=offer.to_params())
        blocks = types.SimpleNamespace(get_block_ids=lambda: ([1, 2, 3],))
        self.assertEqual(c.get_num_new_matched_tokens(request, 16), (24, True))
        for _ in range(2):
            c.update_state_after_alloc(request, blocks, 0)
        self.assertEqual(c.build_connector_meta(None).loads, [(offer, "d", [], 2)])
        self.assertEqual(c.get_num_new_matched_tokens(request, 16), (0, False))

    def test_unsupported_configurations_are_refused(self) -> None:
        def sliding(i: Any, s: Any) -> Any:
            return [i.SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=s.dtype, sliding_window=32)]

        self.assertEqual(self.kv()._block_size, 16)
        for says, arguments in (
            ("has 2 KV cache groups: .*--disable-hybrid-kv-cache-manager", {"groups": lambda i, s: [s, s]}),
            ("is of kind SlidingWindowSpec", {"groups": sliding}),
            ("pipeline_parallel_size is 2", {"parallel": {"pipeline_parallel_size": 2}}),
            ("the extra config has leas", {"leas": 1}),
            ("lease must be", {"lease": -1}),
            ("part_bytes must be a whole number of at least 1", {"part_bytes": 0}),
        ):
            with self.subTest(says), self.assertRaisesRegex(ValueError, says):
                self.kv(**arguments)

    def test_a_page_larger_than_the_arena(self) -> None:
        torch = importlib.import_module("torch")
        c = self.kv(arena_bytes=1 << 20)
        with self.assertRaisesRegex(ValueError, "arena_bytes is 1048576, which has no room for a part of"):
            c.register_kv_caches({"a": torch.zeros(4, 1 << 20)})

    def test_caches_that_are_refused(self) -> None:
        torch = importlib.import_module("torch")
        for says, caches in (
            ("is of type list", {"a": [torch.zeros(4, 4)]}),
            ("is not made of 4 blocks", {"a": torch.zeros(5, 4)}),
            ("no KV caches", {}),
        ):
            with self.subTest(says), self.assertRaisesRegex(ValueError, says):
                self.kv().register_kv_caches(caches)

    def test_unsupported_consumers_are_refused(self) -> None:
        config = settings()
        config.use_v2_model_runner = False
        config.ec_transfer_config = of("vllm.config", "ECTransferConfig")(
            ec_connector="OmnibusECConnector", ec_connector_module_path="omnibus.caches.ec", ec_role="ec_consumer"
        )
        role = of("vllm.distributed.ec_transfer.ec_connector.base", "ECConnectorRole").SCHEDULER
        for says in ("VLLM_USE_V2_MODEL_RUNNER=1", "encoder-decoder"):
            with self.assertRaisesRegex(ValueError, says):
                of("omnibus.caches.ec", "OmnibusECConnector")(config, role)
            config.use_v2_model_runner, config.model_config = True, types.SimpleNamespace(is_encoder_decoder=True)


if __name__ == "__main__":
    unittest.main()
