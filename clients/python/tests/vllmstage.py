"""Stages of a deployment of vLLM-Omni, in a process each: vLLM-Omni's own code moves their values.

Real, from $OMNIBUS_VLLM_OMNI:

- the loader of a deployment: `load_omni_transfer_config`, `get_stage_connector_spec`,
  `resolve_omni_kv_config_for_stage`, `resolve_connector_spec` and the factory;
- the engine's `OmniChunkTransferAdapter` and the model runner's `OmniConnectorModelRunnerMixin`, with their threads,
  and the diffusion worker's `DiffusionStagePayloadMixin`: they make the keys, and they put, get and clean up;
- SharedMemoryConnector and the serializer.

Stand-ins:

- torch and vLLM, as in `realvllm`;
- PyYAML, where it is missing: deployments are YAML in flow style, which JSON is;
- the scheduler and the orchestrator, in whose place a test gives commands, and their requests;
- the lines of `OmniEngineArgs.create_model_config` that give a stage its connector;
- the manager of KV caches, whose connector is all that `DiffusionStagePayloadMixin` needs.

`get_stage_connector_spec` is compiled alone from its module, since that imports the engine. The adapter of vLLM-Omni's
adapter.py is not run: 0.30 does not call it.

The put, get and cleanup of each connector are watched. A value is missing after `POLLS` gets found nothing that began
when the stage before had put it.
"""

from __future__ import annotations

import ast
import base64
import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from typing import Any

import realvllm

POLLS = 10  # gets that find nothing before a value counts as missing
PATIENCE = 60.0  # seconds for a call of vLLM-Omni's threads to happen at all
CHUNK, WHOLE, HANDED = "chunk", "whole payload", "handed payload"  # the ways of a value


class Deployments:
    """A process that has loaded vLLM-Omni. Each stage is a fork of it, from before any connector was made."""

    def __init__(self) -> None:
        realvllm.skip_without()
        self.folder = tempfile.mkdtemp(prefix="omnibus-stages-")
        self.path = os.path.join(self.folder, "stages.sock")
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            self.close()
            raise AssertionError("vLLM-Omni cannot be loaded")

    def stages(self, deployment: str, *which: tuple[int, int]) -> list[Stage]:
        """Stages of a deployment, by number and replica."""
        path = os.path.join(self.folder, "deployment.yaml")
        with open(path, "w") as f:
            f.write(deployment)
        stages = [Stage(self.path, path, number, replica) for number, replica in which]
        for stage in stages:
            stage.open()
        return stages

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        shutil.rmtree(self.folder)


class Stage:
    """A stage, as a test asks it."""

    def __init__(self, socket_path: str, deployment: str, number: int, replica: int) -> None:
        self.log = tempfile.NamedTemporaryFile("r", prefix="omnibus-stage-")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(2 * PATIENCE)
        self.socket.connect(socket_path)
        self.lines = self.socket.makefile("rw")
        self._tell([deployment, number, replica, self.log.name])

    def open(self) -> None:
        """Wait for its connectors: class and role of the one of the engine, and of the one of the manager of KV caches."""
        self.connectors = self._answer()

    def put(self, way: str, request: str, size: int = 0, last: bool = True) -> Any:
        """Send a value to the next stage: one of a size, or without a size the last one got. The handle, or whether it was put."""
        return self._ask("put", way, request, size, last)

    def get(self, way: str, request: str, handle: Any = None, seconds: float = 2.0) -> str | None:
        """The digest of the value that arrives, or None: of a handed payload after some seconds, by default vLLM-Omni's."""
        digest: str | None = self._ask("get", way, request, handle, seconds)
        return digest

    def abort(self, request: str) -> list[str]:
        """End a request before its last chunk: the keys that were cleaned up."""
        keys: list[str] = self._ask("abort", request)
        return keys

    def close(self) -> str:
        """End it, once. The result is its log."""
        if not self.log.closed:
            self.socket.shutdown(socket.SHUT_WR)
            self.lines.read()
            self.lines.close()
            self.socket.close()
            self.logged = self.log.read()
            self.log.close()
        return self.logged

    def _ask(self, *message: Any) -> Any:
        self._tell(message)
        return self._answer()

    def _tell(self, message: Any) -> None:
        print(json.dumps(message), file=self.lines, flush=True)

    def _answer(self) -> Any:
        line = self.lines.readline()
        if not line:
            raise AssertionError(f"the stage ended: {self.close()}")
        return json.loads(line)


def content(request: str, size: int) -> bytes:
    """The data of a value."""
    return random.Random(f"{request} {size}").randbytes(size)


def digest(data: bytes) -> str:
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}"


# The process of the stage.


def processor(transfer_manager: Any, multimodal_output: Any, request: Any, is_finished: bool = False) -> Any:
    """The stage's custom_process_next_stage_input_func: the payload for an output of the model."""
    keys = importlib.import_module("vllm_omni.data_entry_keys")
    payload = keys.OmniPayloadStruct(
        latent=multimodal_output["latent"], codes=keys.CodesStruct(audio=tensor(b"\0" * 8, "int64"))
    )
    return payload if transfer_manager.is_chunked else keys.to_dict(payload)


def tensor(data: bytes, dtype: str = "uint8") -> Any:
    torch = importlib.import_module("torch")
    return torch.frombuffer(bytearray(data), torch.uint8).view(getattr(torch, dtype))


@dataclasses.dataclass
class Request:
    """The fields of a request of vLLM that vLLM-Omni's transports read."""

    request_id: str
    external_req_id: str
    ended: bool = False
    resumable: bool = False
    num_computed_tokens: int = 0
    prompt_token_ids: list[int] = dataclasses.field(default_factory=list)

    def is_finished(self) -> bool:
        return self.ended


class Watch:
    """The outcomes of a connector's puts and gets, and the keys that are cleaned up."""

    def __init__(self, connector: Any) -> None:
        self.cond = threading.Condition()
        self.puts: list[bool] = []
        self.missed = 0
        self.cleaned: list[str] = []
        put, get, cleanup = connector.put, connector.get, connector.cleanup

        def watched_put(*args: Any, **kwargs: Any) -> Any:
            result = put(*args, **kwargs)
            with self.cond:
                self.puts.append(result[0])
                self.cond.notify_all()
            return result

        def watched_get(*args: Any, **kwargs: Any) -> Any:
            result = get(*args, **kwargs)
            with self.cond:
                self.missed += result is None
                self.cond.notify_all()
            return result

        def watched_cleanup(key: str) -> None:
            cleanup(key)
            with self.cond:
                self.cleaned.append(key)
                self.cond.notify_all()

        connector.put, connector.get, connector.cleanup = watched_put, watched_get, watched_cleanup

    def next_call(self) -> None:
        """Wait for a call, or for a moment: vLLM-Omni takes note of a value after the get."""
        with self.cond:
            self.cond.wait(0.002)

    def until(self, condition: Any) -> None:
        with self.cond:
            if not self.cond.wait_for(condition, PATIENCE):
                raise AssertionError("vLLM-Omni made no such call")


class Chunks:
    """The chunk adapter of the engine's scheduler."""

    def __init__(self, model_config: Any) -> None:
        module = importlib.import_module("vllm_omni.distributed.omni_connectors.transfer_adapter.chunk_transfer_adapter")
        config = types.SimpleNamespace(
            model_config=model_config, scheduler_config=types.SimpleNamespace(max_num_seqs=8)
        )
        self.adapter: Any = type("Adapter", (module.OmniChunkTransferAdapter,), {"is_chunked": True})(config)
        self.connector = self.adapter.connector
        self.watch = Watch(self.connector)
        self.requests: dict[str, Request] = {}

    def request(self, name: str) -> Request:
        return self.requests.setdefault(name, Request(f"internal-{name}", name))

    def put(self, name: str, data: bytes, last: bool) -> bool:
        request = self.request(name)
        request.ended = last
        before = len(self.watch.puts)
        self.adapter.save_async({"latent": tensor(data)}, request)
        self.watch.until(lambda: len(self.watch.puts) > before)
        return self.watch.puts[-1]

    def get(self, name: str, handle: Any, seconds: float) -> Any:
        request, watch = self.request(name), self.watch
        ready, missed = self.adapter._finished_load_reqs, watch.missed
        self.adapter.load_async(request)
        while request.request_id not in ready:  # and vLLM-Omni's thread polls
            if watch.missed - missed >= POLLS:
                self.adapter.cleanup_receiver(request.request_id)
                return None
            watch.next_call()
        ready.discard(request.request_id)
        return request.additional_information["latent"]  # type: ignore[attr-defined]

    def abort(self, name: str) -> list[str]:
        request, watch = self.request(name), self.watch
        sent = self.adapter._sender_tokens[name].num_puts
        self.adapter.cleanup(request.request_id, name)
        watch.until(lambda: len(watch.cleaned) >= sent)
        return watch.cleaned

    def close(self) -> None:
        self.adapter.shutdown()


class Wholes:
    """The transport of the worker's model runner."""

    def __init__(self, model_config: Any) -> None:
        module = importlib.import_module("vllm_omni.worker.omni_connector_model_runner_mixin")
        self.runner: Any = type("Runner", (module.OmniConnectorModelRunnerMixin,), {"is_chunked": False})()
        self.runner.init_omni_connectors(model_config)
        self.watch = Watch(self.runner.connector)

    def put(self, name: str, data: bytes, last: bool) -> bool:
        request = Request(f"internal-{name}", name, last)
        before = len(self.watch.puts)
        self.runner.send_full_payload_outputs(None, {request.request_id: ({"latent": tensor(data)}, request)})
        self.watch.until(lambda: len(self.watch.puts) > before)
        return self.watch.puts[-1]

    def get(self, name: str, handle: Any, seconds: float) -> Any:
        request, watch = Request(f"internal-{name}", name), self.watch
        missed = watch.missed
        self.runner.register_chunk_recv(request)
        while (results := self.runner.recv_full_payload_inputs(None)) is None:
            if watch.missed - missed >= POLLS:
                self.runner._pending_load_reqs.pop(request.request_id)
                return None
            watch.next_call()
        return results[request.request_id]["latent"]

    def close(self) -> None:
        self.runner.shutdown_omni_connectors()


class Handed:
    """The transport of a diffusion worker. A handle has the metadata of a put, and the orchestrator passes it on."""

    def __init__(self, transfer: Any, number: int) -> None:
        initialization = utils("initialization")
        config = initialization.resolve_omni_kv_config_for_stage(transfer, number)[0]
        spec = utils("config").ConnectorSpec(config["type"], {k: v for k, v in config.items() if k != "type"})
        factory = importlib.import_module("vllm_omni.distributed.omni_connectors.factory").OmniConnectorFactory
        self.connector = factory.create_connector(spec)
        module = importlib.import_module("vllm_omni.diffusion.worker.stage_payload")
        self.runner: Any = type("Worker", (module.DiffusionStagePayloadMixin,), {})()
        manager = types.SimpleNamespace(
            connector=self.connector,
            send_stages=(str(number), str(number + 1)),
            recv_stages=(str(number - 1), str(number)),
        )
        self.runner.init_omni_connectors(types.SimpleNamespace(stage_id=number), manager, synchronous=True)
        self.runner.od_config = types.SimpleNamespace(
            stage_id=number, stage_output_payload_keys=("latent",), stage_input_payload_keys=()
        )

    def put(self, name: str, data: bytes, last: bool) -> Any:
        output = types.SimpleNamespace(custom_output={"latent": tensor(data)})
        self.runner._maybe_send_stage_payload([Request(f"internal-{name}", name)], [output])
        handle = output.custom_output.get(self.runner._STAGE_PAYLOAD_HANDLE_KEY)
        return handle is not None and base64.b64encode(msgpack().encode(handle)).decode()

    def get(self, name: str, handle: Any, seconds: float) -> Any:
        handle = msgpack().decode(base64.b64decode(handle))  # vLLM-Omni sends it so
        got = self.runner.recv_stage_payload(
            name, *self.runner._kv_transfer_manager.recv_stages, handle=handle, retry_seconds=seconds
        )
        return None if got is None else got["latent"]

    def close(self) -> None:
        self.connector.close()


def msgpack() -> Any:
    return importlib.import_module("msgspec").msgpack


def utils(name: str) -> Any:
    return importlib.import_module(f"vllm_omni.distributed.omni_connectors.utils.{name}")


def load() -> None:
    """The modules of vLLM-Omni, over stand-ins for their other imports."""
    realvllm.load()
    nothing = type("Nothing", (), {})
    home = os.path.join(realvllm.ROOT, "vllm_omni")

    def no_group() -> Any:
        raise AssertionError("no process group was made")

    def stand_in(name: str, path: str = "", **names: Any) -> None:
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = [path]
        module.__dict__.update(names)

    stand_in("vllm.distributed")
    stand_in(
        "vllm.distributed.parallel_state", get_tp_group=no_group, get_tensor_model_parallel_rank=no_group,
        get_tensor_model_parallel_world_size=no_group,
    )  # fmt: skip
    stand_in("vllm.logger", init_logger=importlib.import_module("logging").getLogger)
    stand_in("vllm.v1")
    stand_in("vllm.v1.metrics")
    stand_in("vllm.v1.metrics.stats", PrefillStats=nothing)
    stand_in("vllm.v1.request", Request=Request, RequestStatus=nothing)
    stand_in("vllm.v1.utils", ConstantList=list)
    stand_in("vllm.v1.outputs", ModelRunnerOutput=nothing)
    stand_in("vllm_omni.inputs")
    stand_in("vllm_omni.inputs.data", OmniPromptType=nothing)
    stand_in("vllm_omni.metrics", OrchestratorAggregator=nothing)
    folders = (
        "outputs", "worker", "diffusion", "diffusion.worker", "distributed.omni_connectors.transfer_adapter",
        "distributed.omni_connectors.model_runner",
    )  # fmt: skip
    for folder in folders:
        stand_in(f"vllm_omni.{folder}", os.path.join(home, *folder.split(".")))
    stand_in("vllm_omni.outputs", OmniConnectorOutput=nothing)
    stand_in("vllm_omni.diffusion.data", DiffusionOutput=nothing)
    dummy = type("OmniDiffusionRequest", (), {"is_dummy_run_request_id": staticmethod(lambda name: False)})
    stand_in("vllm_omni.diffusion.request", OmniDiffusionRequest=dummy)
    stand_in("vllm_omni.diffusion.distributed")
    stand_in(
        "vllm_omni.diffusion.distributed.parallel_state", get_fs_group=no_group, get_hsdp_replicate_group=no_group,
        get_sp_group=no_group,
    )  # fmt: skip
    if importlib.util.find_spec("yaml") is None:
        stand_in("yaml", safe_load=json.load)
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))
    importlib.import_module("omnibus.connector").register()  # vLLM-Omni runs the entry point


def get_stage_connector_spec() -> Any:
    """The function of the engine that says which connector a stage has."""
    path = os.path.join(realvllm.ROOT, "vllm_omni", "engine", "stage_init_utils.py")
    with open(path) as f:
        tree = ast.parse(f.read())
    tree.body = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "get_stage_connector_spec"
    ]
    package: Any = sys.modules["vllm_omni.distributed.omni_connectors"]
    package.get_stage_connector_config = utils("initialization").get_stage_connector_config
    names = {"Any": Any, "TRANSFER_ENGINE_CONNECTOR_NAMES": utils("config").TRANSFER_ENGINE_CONNECTOR_NAMES}
    exec(compile(tree, path, "exec"), names)  # noqa: S102
    return names["get_stage_connector_spec"]


def model_config(transfer: Any, number: int, chunked: bool) -> Any:
    spec = get_stage_connector_spec()(transfer, number, chunked)
    connector = {"name": spec.get("name", "SharedMemoryConnector"), "extra": spec.get("extra", {}).copy()}
    connector["extra"]["stage_id"] = number
    return types.SimpleNamespace(
        stage_id=number, stage_connector_config=connector, async_chunk=chunked, worker_type="generation",
        custom_process_next_stage_input_func="vllmstage.processor",
    )  # fmt: skip


def serve(lines: Any, transfer: Any, number: int) -> None:
    """Run a stage until the test ends it."""
    chunks = Chunks(model_config(transfer, number, chunked=True))
    ways: dict[str, Any] = {
        CHUNK: chunks, WHOLE: Wholes(model_config(transfer, number, chunked=False)), HANDED: Handed(transfer, number)
    }  # fmt: skip

    def answer(message: Any) -> None:
        print(json.dumps(message), file=lines, flush=True)

    answer([[type(c).__name__, c.config.get("role")] for c in (chunks.connector, ways[HANDED].connector)])
    got: dict[tuple[str, str], bytes] = {}
    for line in lines:
        command, *arguments = json.loads(line)
        if command == "put":
            way, request, size, last = arguments
            answer(ways[way].put(request, content(request, size) if size else got[way, request], last))
        elif command == "get":
            way, request, handle, seconds = arguments
            value = ways[way].get(request, handle, seconds)
            if value is not None:
                got[way, request] = value.numpy().tobytes()
            answer(None if value is None else digest(got[way, request]))
        elif command == "abort":
            answer(chunks.abort(*arguments))
    for way in ways.values():
        way.close()


def main() -> None:
    sys.modules["vllmstage"] = sys.modules["__main__"]
    load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    print("ready", flush=True)
    while True:
        if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
            return  # the test is over
        connection, _ = listener.accept()
        if os.fork() == 0:
            break
        connection.close()
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup(connection.fileno())  # open until the process is gone, so that the test then reads its whole log
    lines = connection.makefile("rw")
    deployment, number, replica, log = json.loads(lines.readline())
    with open(log, "w") as f:
        os.dup2(f.fileno(), sys.stderr.fileno())
    os.environ["VLLM_OMNI_REPLICA_ID"] = str(replica)
    serve(lines, utils("initialization").load_omni_transfer_config(deployment), number)


if __name__ == "__main__":
    main()
