"""Instances of vLLM without a GPU and without a model, each in a process of its own.

$OMNIBUS_VLLM is where vLLM 0.30.0 is unpacked; torch and what vLLM imports have to be installed. An instance has vLLM's own
configuration, scheduler, block pool, connector factories, and the runner's calls of connectors (`v1/worker/gpu`). Stand-ins:
the model, which is `Model` below, its configuration file, and the lines of the engine's loop.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import unittest
import zlib
from typing import Any

import fakehost  # noqa: F401  (finds the package)

ROOT = os.environ.get("OMNIBUS_VLLM", "")

CONFIG = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "ffn_dim": 128, "max_position_embeddings": 2048, "vocab_size": 512, "word_embed_proj_dim": 64, "torch_dtype": "float16",
}  # fmt: skip

HEADS, WIDTH = 2, 16  # of the model's KV cache, with elements of two bytes


def load() -> None:
    """Import vLLM, once for all instances, which are forked. Skips the test where it cannot be had."""
    if not ROOT:
        raise unittest.SkipTest("OMNIBUS_VLLM does not say where vLLM 0.30.0 is")
    if importlib.util.find_spec("torch") is None:
        raise unittest.SkipTest("vLLM needs torch, which is not here")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)
    for name in ("vllm.v1.core.sched.scheduler", "vllm.v1.worker.gpu.kv_connector", "vllm.v1.worker.gpu.ec_connector"):
        importlib.import_module(name)
    _model_folder()


def of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


@functools.cache
def _model_folder() -> str:
    folder = tempfile.mkdtemp(prefix="omnibus-model-")
    unittest.addModuleCleanup(_model_folder.cache_clear)
    unittest.addModuleCleanup(shutil.rmtree, folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(CONFIG, f)
    return folder


class Model:
    """Writes KV that depends on token, position and layer, and samples a token that depends on all KV of a request."""

    def __init__(self, options: dict[str, Any], layers: list[str]) -> None:
        torch = importlib.import_module("torch")
        self.block_size, blocks = options["block_size"], options["blocks"]
        shape = (blocks, HEADS, self.block_size, WIDTH)
        order = options.get("order", (0, 1, 2, 3))
        self.caches = {}
        for layer in layers:
            raw = torch.full([shape[i] for i in order], 0x7E, dtype=torch.uint8).repeat_interleave(2, -1).view(torch.bfloat16)
            self.caches[layer] = raw.permute([order.index(i) for i in range(4)])
        self.tokens: dict[str, list[int]] = {}
        self.blocks: dict[str, list[int]] = {}

    def update(self, output: Any) -> None:
        for r in output.scheduled_new_reqs:
            self.tokens[r.req_id] = list(r.prefill_token_ids or r.prompt_token_ids)  # more than a prompt after a preemption
            self.blocks[r.req_id] = list(r.block_ids[0])
        cached = output.scheduled_cached_reqs
        for name, new in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if new is not None:
                resumed = name in cached.resumed_req_ids
                self.blocks[name] = list(new[0]) if resumed else self.blocks[name] + list(new[0])

    def computed(self, output: Any) -> dict[str, int]:
        found = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        return {**found, **dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))}

    def row(self, cache: Any, name: str, position: int) -> Any:
        return cache[self.blocks[name][position // self.block_size], :, position % self.block_size]

    def run(self, output: Any) -> list[list[int]]:
        torch = importlib.import_module("torch")
        sampled = []
        computed = self.computed(output)
        for name, count in output.num_scheduled_tokens.items():
            tokens, begin = self.tokens[name], computed[name]
            for position in range(begin, begin + count):
                for i, cache in enumerate(self.caches.values()):
                    number = (tokens[position] * 64 + position * 2 + i) % 30_000
                    row = torch.full((HEADS, WIDTH), number, dtype=torch.int16)
                    self.row(cache, name, position).copy_(row.view(torch.bfloat16))
            if begin + count < len(tokens):
                sampled.append([])
                continue
            read = 0
            for cache in self.caches.values():
                for position in range(len(tokens)):
                    row = self.row(cache, name, position).contiguous().view(torch.uint8)
                    read = zlib.crc32(bytes(row.flatten().tolist()), read)
            tokens.append(read % 500)
            sampled.append([tokens[-1]])
        return sampled


class Engine:
    """The engine's loop, one step at a time."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        config = self.config = vllm_config(options)
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # not before: the configuration asks for Triton and a GPU then
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        torch = importlib.import_module("torch")
        layers = [f"model.layers.{i}.attn" for i in range(3)]
        spec = interface.FullAttentionSpec(
            block_size=options["block_size"], num_kv_heads=HEADS, head_size=WIDTH // 2, dtype=torch.bfloat16
        )
        groups = [interface.KVCacheGroupSpec(layers, spec)]
        self.caches_config = interface.KVCacheConfig(options["blocks"], [], groups)
        config.cache_config.num_gpu_blocks = options["blocks"]
        manager = of("vllm.v1.structured_output", "StructuredOutputManager")(config)
        self.scheduler = of("vllm.v1.core.sched.scheduler", "Scheduler")(
            config, self.caches_config, manager, block_size=options["block_size"], log_stats=False
        )
        self.model = Model(options, layers)
        self.encoded: dict[str, Any] = {}
        self.encodings = 0  # made here
        self.preemptions = 0
        self.kv, self.ec = self.connectors()
        hasher = of("vllm.utils.hashing", "sha256")
        importlib.import_module("vllm.v1.core.kv_cache_utils").init_none_hash(hasher)
        self.hasher = of("vllm.v1.core.kv_cache_utils", "get_request_block_hasher")(options["block_size"], hasher)
        self.results: dict[str, dict[str, Any]] = {}

    def connectors(self) -> tuple[Any, Any]:
        """The workers' sides, as a worker makes them."""
        runner = importlib.import_module("vllm.v1.worker.gpu.kv_connector")
        of_ec = importlib.import_module("vllm.v1.worker.gpu.ec_connector")
        if self.config.kv_transfer_config is not None:
            # What ensure_kv_transfer_initialized does, which asks the ranks of a tensor parallel group for one engine_id.
            factory = of("vllm.distributed.kv_transfer.kv_connector.factory", "KVConnectorFactory")
            role = of("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorRole").WORKER
            state = importlib.import_module("vllm.distributed.kv_transfer.kv_transfer_state")
            state._KV_CONNECTOR_AGENT = factory.create_connector(self.config, role, self.caches_config)
        if self.config.ec_transfer_config is None:
            return runner.get_kv_connector(self.config, self.model.caches), of_ec.NO_OP_EC_CONNECTOR
        of("vllm.distributed.ec_transfer", "ensure_ec_transfer_initialized")(self.config)
        # The model here has no encoder, for which the scheduler has no budget: it is given one.
        self.scheduler.max_num_encoder_input_tokens = 1000
        self.scheduler.encoder_cache_manager = of("vllm.v1.core.encoder_cache_manager", "EncoderCacheManager")(
            cache_size=self.options.get("cache_size", 1000)
        )
        return runner.get_kv_connector(self.config, self.model.caches), of_ec.ActiveECConnector(self.config, self.encoded)

    def add(self, name: str, tokens: list[int], max_tokens: int, params: Any = None, media: Any = (), ec: Any = None) -> None:
        sampling = of("vllm.sampling_params", "SamplingParams")(
            max_tokens=max_tokens, ignore_eos=True, extra_args={"kv_transfer_params": params, "ec_transfer_params": ec}
        )
        inputs = importlib.import_module("vllm.multimodal.inputs")
        features = [
            inputs.MultiModalFeatureSpec(None, "image", h, inputs.PlaceholderRange(offset=at, length=length))
            for h, at, length in media
        ]
        request = of("vllm.v1.request", "Request")(name, tokens, sampling, None, mm_features=features, block_hasher=self.hasher)
        self.results[name] = {"tokens": [], "finish": None, "params": None, "ec_params": None}
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        status = of("vllm.v1.request", "RequestStatus").FINISHED_ABORTED
        self.scheduler.finish_requests(name, status)

    def step(self) -> bool:
        """One step of the engine; False: it has nothing to do."""
        if not self.scheduler.has_requests():
            return False
        output = self.scheduler.schedule()
        self.preemptions += len(output.preempted_req_ids or ())
        for outputs in self.scheduler.update_from_output(output, self.execute(output)).values():
            for o in outputs.outputs:
                result = self.results[o.request_id]
                result["tokens"] += o.new_token_ids
                if o.finish_reason is not None:
                    result["finish"] = str(o.finish_reason)
                    result["params"] = o.kv_transfer_params
                    result["ec_params"] = o.ec_transfer_params
        return True

    def execute(self, output: Any) -> Any:
        """The model runner's calls, in its order."""
        result = of("vllm.v1.outputs", "ModelRunnerOutput")
        for h in output.free_encoder_mm_hashes:
            self.encoded.pop(h, None)
        self.model.update(output)
        if not output.total_num_scheduled_tokens:
            empty = self.kv.no_forward(output)
            return result.with_ec_conn_output(empty, self.ec.no_forward(output).ec_connector_output)
        self.kv.pre_forward(output)
        with self.ec.maybe_get_output(output) as ec_output:
            self.encode(output)
        sampled = self.model.run(output)
        self.kv.finish_forward()
        names = list(output.num_scheduled_tokens)
        return result(
            names, {name: i for i, name in enumerate(names)}, sampled, ec_connector_output=ec_output,
            kv_connector_output=self.kv.post_forward(output.finished_req_ids),
        )  # fmt: skip

    def encode(self, output: Any) -> None:
        """The encoder, and the check of vLLM's runner that all that a step needs has been encoded."""
        torch = importlib.import_module("torch")
        for name, indexes in output.scheduled_encoder_inputs.items():
            for i in indexes:
                feature = self.scheduler.requests[name].mm_features[i]
                n = feature.mm_position.length
                self.encoded[feature.identifier] = encoding(feature.identifier, n)
                self.encodings += 1
        computed = self.model.computed(output)
        for name, count in output.num_scheduled_tokens.items():
            for feature in self.scheduler.requests[name].mm_features:
                at, n = feature.mm_position.offset, feature.mm_position.length
                if at < computed[name] + count and computed[name] < at + n:
                    found = self.encoded.get(feature.identifier)
                    assert found is not None, f"Encoder cache miss for {feature.identifier}."
                    assert torch.equal(found, encoding(feature.identifier, n)), "garbage in the encoder cache"

    def until(self, name: str) -> dict[str, Any]:
        """Step until a request has ended."""
        limit = time.monotonic() + 120
        while time.monotonic() < limit:
            if self.results[name]["finish"] is not None:
                self.step()  # in which the workers are told
                return self.results[name]
            self.step()
        raise AssertionError(f"{name} does not end: {self.scheduler.requests[name].status}")

    def idle(self) -> dict[str, int]:
        """Step until there is nothing to do; how many blocks are in use then, beside the null block, and what was encoded."""
        limit = time.monotonic() + 120
        while time.monotonic() < limit:
            if not self.step():
                pool = self.scheduler.kv_cache_manager.block_pool
                used = self.options["blocks"] - 1 - pool.get_num_free_blocks()
                return {
                    "blocks": used, "requests": len(self.scheduler.requests), "encodings": self.encodings,
                    "preemptions": self.preemptions,
                }  # fmt: skip
        raise AssertionError(f"it goes on: {self.scheduler.requests}")

    def made(self, name: str) -> list[int]:
        """The tokens of a request so far."""
        tokens: list[int] = self.results[name]["tokens"]
        return tokens

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def close(self) -> None:
        self.scheduler.shutdown()
        for module, name in (("kv_transfer", "ensure_kv_transfer_shutdown"), ("ec_transfer", "ensure_ec_transfer_shutdown")):
            of(f"vllm.distributed.{module}", name)()


def encoding(name: str, length: int) -> Any:
    torch = importlib.import_module("torch")
    return torch.randn(length, 32, generator=torch.Generator().manual_seed(zlib.crc32(name.encode()))).to(torch.bfloat16)


def vllm_config(options: dict[str, Any]) -> Any:
    """vLLM's own configuration, with the connectors that the options name."""
    c = importlib.import_module("vllm.config")
    model = c.ModelConfig(model=_model_folder(), skip_tokenizer_init=True, dtype="float16", seed=42)
    extra = {"socket": options.get("socket"), **options.get("extra", {})}
    kv = ec = None
    if "kv_role" in options:
        kv = c.KVTransferConfig(
            kv_connector="OmnibusKVConnector", kv_connector_module_path="omnibus.caches.kv", kv_role=options["kv_role"],
            kv_connector_extra_config=extra, kv_load_failure_policy=options.get("policy", "recompute"),
        )  # fmt: skip
    if "ec_role" in options:
        ec = c.ECTransferConfig(
            ec_connector="OmnibusECConnector", ec_connector_module_path="omnibus.caches.ec", ec_role=options["ec_role"],
            ec_connector_extra_config=extra,
        )  # fmt: skip
    config = c.VllmConfig(
        scheduler_config=c.SchedulerConfig(
            max_num_seqs=16, max_num_batched_tokens=options.get("budget", 64), max_model_len=2048, enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        model_config=model, kv_transfer_config=kv, device_config=c.DeviceConfig("cpu"),
        cache_config=c.CacheConfig(block_size=options["block_size"], enable_prefix_caching=options.get("prefixes", True)),
    )  # fmt: skip
    config.ec_transfer_config = ec  # only now: with a model of text alone it would be refused
    return config


class Instance:
    """An engine in a process of its own, which does what it is asked to."""

    def __init__(self, case: Any, **options: Any) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, {"block_size": 16, "blocks": 64, **options}), daemon=True)
        self.process.start()
        theirs.close()
        case.addCleanup(self.kill)
        self.answer()

    def answer(self) -> Any:
        ok, value = self.pipe.recv()
        if not ok:
            raise AssertionError(value)
        return value

    def ask(self, what: str, *arguments: Any) -> Any:
        self.pipe.send((what, arguments))
        return self.answer()

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(60)


def serve(pipe: Any, options: dict[str, Any]) -> None:
    try:
        importlib.import_module("torch").set_num_threads(1)
        engine = Engine(options)
        pipe.send((True, None))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        return
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, getattr(engine, what)(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
