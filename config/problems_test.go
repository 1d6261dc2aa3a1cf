package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
)

// two is a pipeline of the stages a and b, to which a test adds.
const two = "stages: [{stage_id: a}, {stage_id: b}]\n"

type problemTest struct {
	name string
	text string
	want []string // line:column: message
}

var problemTests = []problemTest{
	// The file as a whole.
	{"empty", "", []string{"1:1: the file is empty: it needs stage_args or stages"}},
	{"only comments", "# nothing\n", []string{"1:1: the file is empty: it needs stage_args or stages"}},
	{"not UTF-8", "a: é\nb: \xff", []string{"2:4: the byte 0xff is not UTF-8"}},
	{"NUL", "a: \x00", []string{"1:4: a NUL byte in the text"}},
	{"not YAML", "stages: [1\na: b", []string{"2:1: not YAML: ',' or ']' must be specified"}},
	{"tab indentation", "a:\n\tb: 1", []string{"2:1: not YAML: found character '\t' that cannot start any token"}},
	{"two documents", two + "---\n" + two, []string{"2:1: a second document starts here: a pipeline file holds one"}},
	{"not a map", "- 1", []string{"1:1: a pipeline file must be a map of keys, not a list"}},
	{"neither shape", "engine: 1", []string{"1:1: this is no pipeline file: it has neither stages nor stage_args at the top"}},
	{"neither shape, but for a letter", "omnibus: {}\nstage: []", []string{
		"1:1: this is no pipeline file: it has neither stages nor stage_args at the top",
		`2:1: unknown key "stage" in the file: is "stages" meant? (all: base_config, connectors, edges, omnibus, pipeline, platforms, runtime, stage_args, stages; one of the model goes under engine_args of its stage)`,
	}},
	{"both shapes", "stages: [{stage_id: 0}]\nstage_args: []", []string{"2:1: the file has both stage_args, the older shape, and stages, the newer one: keep one of them"}},
	{"no stage", "stages: []", []string{"1:9: the pipeline has no stage"}},
	{"null stages", "edges: []\nstages:", []string{"2:1: the pipeline has no stage"}},
	{"stages not a list", "stages: {a: 1}", []string{"1:9: the stages must be a list, not a map"}},
	{"base file", "base_config: x.yaml\n" + two, []string{"1:14: base_config names another file, and this program reads this one alone: merge the two into one"}},
	{"a section in two places", "edges: []\nruntime:\n  edges: []\n" + two, []string{"3:3: edges stands both at the top and under runtime: keep one of them"}},
	{"sections that are no maps", "runtime: 1\nconnectors: []\nomnibus: x\n" + two, []string{
		"1:10: runtime must be a map of keys, not the number 1",
		`3:10: the omnibus settings must be a map of keys, not the text "x"`,
	}},

	// Tensors.
	{"tensors", two + `edges: [{from: a, to: b, omnibus: {tensor_transport: cuda, min_bytes: -1}}]`, []string{
		`2:54: tensor_transport must be one of default, cuda_ipc, cuda_ipc_pool, not the text "cuda"`,
		`2:71: min_bytes must be a size in bytes, or text such as "64MiB", not the number -1`,
	}},
	{"tensors in files", `
stages: [{stage_id: a}, {stage_id: b, input_connectors: {from_stage_a: files}}]
connectors: {files: {name: SharedMemoryConnector, extra: {mode: segment}}}
edges: [{from: a, to: b, omnibus: {tensor_transport: cuda_ipc}}]
`, []string{"4:54: the edge a -> b has the tensor_transport cuda_ipc, and files (SharedMemoryConnector), whose values hold no memory of GPUs: use a SharedMemoryConnector of mode ring, or tensor_transport: default"}},
	{"tensors by connector and by edge", `
stages: [{stage_id: a}, {stage_id: b, input_connectors: {from_stage_a: gpu}}, {stage_id: c, input_connectors: {from_stage_a: gpu}}]
connectors: {gpu: {name: CudaIpcConnector, extra: {tensor_transport: cuda_ipc_pool, min_bytes: 4096}}}
edges: [{from: a, to: b, omnibus: {tensor_transport: cuda_ipc}}, {from: a, to: c, omnibus: {tensor_transport: default, min_bytes: 1KiB}}]
`, []string{
		"4:54: the edge a -> b has tensor_transport: cuda_ipc and min_bytes: 0, and its connector gpu (CudaIpcConnector) has cuda_ipc_pool and 4096: write them in one of the two places",
		"4:111: the edge a -> c has tensor_transport: default and min_bytes: 1024, and its connector gpu (CudaIpcConnector) has cuda_ipc_pool and 4096: write them in one of the two places",
	}},
	{"options of CudaIpcConnector", `
stages: [{stage_id: a}, {stage_id: b, input_connectors: {from_stage_a: gpu}}]
connectors: {gpu: {name: CudaIpcConnector, extra: {tensor_transport: default, min_bytes: 64KiB, mode: cuda}}}
`, []string{
		`3:70: tensor_transport of CudaIpcConnector must be cuda_ipc or cuda_ipc_pool, not the text "default"`,
		`3:90: min_bytes of CudaIpcConnector must be a whole number of at least 0, not the text "64KiB"`,
	}},

	// YAML itself.
	{"repeated keys", "stages:\n- stage_id: 0\n  k: 1\n  k: 2\n  m: {x: 1, x: 2, x: 3}", []string{
		`4:3: the key "k" is repeated, first on line 3: only one can count`,
		`5:13: the key "x" is repeated, first on line 5: only one can count`,
		`5:19: the key "x" is repeated, first on line 5: only one can count`,
	}},
	{"tag", two + "k: !!python/object:os.system {}", []string{"2:4: the tag !!python/object:os.system: tags are not supported, write the value without it"}},
	{"undefined alias", two + "k: *x", []string{"2:4: the alias *x: no complete value before it is named &x"}},
	{"a value inside itself", two + "k: &x [*x]", []string{"2:8: the alias *x: no complete value before it is named &x"}},
	{"merge of a number", two + "k: {<<: 1}", []string{"2:9: << takes a map or a list of maps, not the number 1"}},
	{"not finite", two + "k: [.inf, -.inf, .nan]", []string{
		"2:5: not a finite number: stages receive their settings as JSON, which has no infinity and no NaN",
		"2:11: not a finite number: stages receive their settings as JSON, which has no infinity and no NaN",
		"2:18: not a finite number: stages receive their settings as JSON, which has no infinity and no NaN",
	}},
	{"too large a number", two + "k: 18446744073709551616", []string{"2:4: the number 18446744073709551616 does not fit in 64 bits: quote it if it is text"}},
	{"null key", two + "~: 1", []string{"2:1: a key must be plain text"}},

	// Stages.
	{"a stage that is no map", "stages: [1]", []string{"1:10: a stage must be a map of keys, not the number 1"}},
	{"no id", "stages:\n  - {x: 1}", []string{"2:5: the stage has no stage_id"}},
	{"no id, but for a letter", "stages:\n  - {x: 1, stageid: 1}", []string{
		"2:5: the stage has no stage_id",
		`2:12: unknown key "stageid" in a stage: is "stage_id" meant? (all: engine_input_source, final_output, final_output_type, input_connectors, max_inflight, omnibus, output_connectors, runtime, stage_id; one of the model goes under engine_args of its stage)`,
	}},
	{"ids of wrong types", "stages: [{stage_id: -1}, {stage_id: 1.5}, {stage_id: true}, {stage_id: ''}, {stage_id: ' a'}, {stage_id: \"a\\n\"}, {stage_id: [0]}]", []string{
		"1:21: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without \"->\" and \"/\", not the number -1",
		"1:37: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without \"->\" and \"/\", not the number 1.5",
		"1:54: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without \"->\" and \"/\", not true",
		`1:72: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without "->" and "/", not the text ""`,
		`1:88: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without "->" and "/", not the text " a"`,
		`1:106: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without "->" and "/", not the text "a\n"`,
		"1:125: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without \"->\" and \"/\", not a list",
	}},
	{"a stage without an id hides no other problem and causes none", "stages: [{stage_id: -1}, {stage_id: b, engine_input_source: [a], final_output: 1}]", []string{
		"1:21: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without \"->\" and \"/\", not the number -1",
		"1:80: final_output must be true or false, not the number 1",
	}},
	{"repeated stage, as number and text", "stages:\n- stage_id: 1\n- stage_id: \"1\"", []string{"3:13: the stage 1 is defined twice, first on line 2"}},
	{"numbers of a stage", "stages:\n- stage_id: 0\n  max_inflight: 0\n  runtime: {max_inflight: -1}", []string{
		"3:17: max_inflight must be a whole number from 1 to 4096, not the number 0",
		"4:27: max_inflight must be a whole number from 1 to 4096, not the number -1",
	}},
	{"runtime of a stage", "stages:\n- stage_id: 0\n  runtime: gpu", []string{`3:12: the stage's runtime must be a map of keys, not the text "gpu"`}},

	// The settings of the bus.
	{"junk under omnibus", "omnibus: {ring_byte: 1}\nstages:\n- stage_id: 0\n  omnibus: {replica: 2, batch: {seize: 1}}", []string{
		`1:11: unknown key "ring_byte" in the omnibus settings: the nearest is "ring_bytes" (all: allow_uids, exchange_ttl, grace, http, inline_bytes, large_bytes, main, max_requests, memory, name, ring_bytes, serializer, slots, socket, stall_timeout, wait)`,
		`4:13: unknown key "replica" in the stage's omnibus settings: the nearest is "replicas" (all: alone, attach, attempts, batch, cwd, env, exec, first_timeout, grace, handle_timeout, handler, join, max_inflight, max_restarts, replay, replicas, restart, routing, start_timeout, state, unordered)`,
		`4:33: unknown key "seize" in batch: the nearest is "size" (all: size, wait)`,
	}},
	{"junk under an edge's omnibus", two + "edges:\n- {from: a, to: b, omnibus: {polcy: block}}", []string{
		`3:30: unknown key "polcy" in the edge's omnibus settings: the nearest is "policy" (all: min_bytes, policy, tensor_transport, window_bytes)`,
	}},
	{"settings of the bus at wrong places", "wait: park\nexec: [x]\nruntime: {tensor_transport: cuda_ipc}\nmemory: heap\ngrace: 1s\nstages:\n- stage_id: 0\n  attach: true\n  ring_bytes:\n  state: none\n  runtime: {replicas: 2}", []string{
		`1:1: misplaced key "wait" in the file: it is a setting of the bus, and belongs under omnibus at the top of the file; one of the model goes under engine_args of its stage`,
		`2:1: misplaced key "exec" in the file: it is a setting of the bus, and belongs under omnibus in a stage; one of the model goes under engine_args of its stage`,
		`3:11: misplaced key "tensor_transport" in runtime: it is a setting of the bus, and belongs under omnibus in an entry of edges; one of the model goes under engine_args of its stage`,
		`4:1: misplaced key "memory" in the file: it is a setting of the bus, and belongs under omnibus at the top of the file; one of the model goes under engine_args of its stage`,
		`5:1: misplaced key "grace" in the file: it is a setting of the bus, and belongs under omnibus at the top of the file or in a stage; one of the model goes under engine_args of its stage`,
		`8:3: misplaced key "attach" in a stage: it is a setting of the bus, and belongs under omnibus in a stage; one of the model goes under engine_args of its stage`,
		`9:3: misplaced key "ring_bytes" in a stage: it is a setting of the bus, and belongs under omnibus at the top of the file; one of the model goes under engine_args of its stage`,
		`10:3: misplaced key "state" in a stage: it is a setting of the bus, and belongs under omnibus in a stage; one of the model goes under engine_args of its stage`,
		`11:13: misplaced key "replicas" in the stage's runtime: it is a setting of the bus, and belongs under omnibus in a stage; one of the model goes under engine_args of its stage`,
	}},
	{"mistyped keys beside those of the model", "stages:\n- stage_id: 0\n  input_conectors: {}\n  engine_args: {}\negdes: []", []string{
		`3:3: unknown key "input_conectors" in a stage: is "input_connectors" meant? (all: engine_input_source, final_output, final_output_type, input_connectors, max_inflight, omnibus, output_connectors, runtime, stage_id; one of the model goes under engine_args of its stage)`,
		`5:1: unknown key "egdes" in the file: is "edges" meant? (all: base_config, connectors, edges, omnibus, pipeline, platforms, runtime, stage_args, stages; one of the model goes under engine_args of its stage)`,
	}},
	{"bus values", "omnibus:\n  name: a/b\n  ring_bytes: 64XiB\n  slots: 0\n  max_requests: 1.5\n  inline_bytes: -1\n  serializer: pickle\n  stall_timeout: 30\n  memory:\n  wait: nap\n" + two, []string{
		`2:9: name must be text of at most 64 letters, digits, '.', '_' and '-', not the text "a/b"`,
		`3:15: ring_bytes must be a positive size in bytes, or text such as "64MiB", not the text "64XiB"`,
		"4:10: slots must be a whole number from 1 to 2147483647, not the number 0",
		"5:17: max_requests must be a whole number from 1 to 1048576, not the number 1.5",
		`6:17: inline_bytes must be a positive size in bytes, or text such as "64MiB", not the number -1`,
		`7:15: serializer must be one of msgpack, omni, raw, not the text "pickle"`,
		`8:18: stall_timeout must be a positive duration such as "30s" or "500ms", not the number 30`,
		"9:3: memory must be one of shared, heap, not null",
		`10:9: wait must be one of park, balanced, poll, not the text "nap"`,
	}},
	{"stage values", "stages:\n- stage_id: 0\n  omnibus:\n    handler: 1\n    replicas: two\n    state: all\n    replay: 1\n    exec: run\n    env: {A: 1, \"B=\": x}\n    cwd: ''\n    restart: sometimes\n    grace: -1s\n    batch: 3", []string{
		"4:14: handler must be text, not the number 1",
		`5:15: replicas must be a whole number from 1 to 4096, not the text "two"`,
		`6:12: state must be one of none, request, not the text "all"`,
		"7:13: replay must be true or false, not the number 1",
		`8:11: exec must be a list of a program and its arguments, such as ["python3", "talker.py"], not the text "run"`,
		"9:14: the variable A must be text, not the number 1: quote it",
		`9:17: "B=" cannot be the name of an environment variable`,
		`10:10: cwd must be text, not the text ""`,
		`11:14: restart must be one of always, on-failure, never, not the text "sometimes"`,
		`12:12: grace must be a positive duration such as "30s" or "500ms", not the text "-1s"`,
		"13:12: batch must be a map of keys, not the number 3",
	}},
	{"exec elements", "stages:\n- stage_id: 0\n  omnibus: {exec: ['', 1]}", []string{
		`3:20: an element of exec must be text, not the text "": quote it`,
		"3:24: an element of exec must be text, not the number 1: quote it",
	}},
	{"exec of nothing", "stages:\n- stage_id: 0\n  omnibus: {exec: []}", []string{
		`3:19: exec must be a list of a program and its arguments, such as ["python3", "talker.py"], not an empty list`,
	}},
	{"exec and attach", "stages:\n- stage_id: 0\n  omnibus: {exec: [a], attach: true}", []string{
		"3:32: attach waits for a process that another program starts, and exec starts one: keep one of them",
	}},
	{"numbers that begin with a zero", "stages:\n- {stage_id: a, engine_args: {n: 010, m: 08, k: -007, ok: [0, 0.5, -0, 0x10, '08']}}", []string{
		"2:34: the number 010 begins with a zero: some programs read it as octal, and others as decimal. Leave the zero out, or quote it if it is text",
		"2:42: the number 08 begins with a zero: some programs read it as octal, and others as decimal. Leave the zero out, or quote it if it is text",
		"2:49: the number -007 begins with a zero: some programs read it as octal, and others as decimal. Leave the zero out, or quote it if it is text",
	}},
	{"a colon that is no end of a key", "stages:\n- {stage_id: a, engine_args: {b:1}}", []string{
		`2:32: no space behind the colon: YAML takes b:1 for one text, and some programs for a pair. Add a space, or quotes`,
	}},
	{"routing of a stage with state", "stages:\n- stage_id: 0\n  omnibus: {exec: [a], routing: least-queue}", []string{
		"3:33: routing least-queue needs state: none, because a process that keeps state must see all of a request",
		"3:33: routing least-queue gives the messages of a request to several processes, whose results come in any order: say unordered: true if that is meant, or leave routing out",
	}},
	{"values of the host", "omnibus:\n  socket: 1\n  allow_uids: 1000\n  main: run\n  grace: 5\n  http: []\n" + two, []string{
		"2:11: socket must be text, not the number 1",
		"3:15: allow_uids must be a list of the numbers of users, such as [1000], not the number 1000",
		`4:9: main must be a list of a program and its arguments, such as ["python3", "talker.py"], not the text "run"`,
		`5:10: grace must be a positive duration such as "30s" or "500ms", not the number 5`,
		`6:9: http must be the path of a socket, such as ./http.sock, or a loopback address, such as "127.0.0.1:9464", not a list`,
	}},
	{"users", "omnibus:\n  allow_uids: [me, -1, 4294967295, 1000]\n" + two, []string{
		"2:16: an element of allow_uids must be the number of a user (see `id -u`), not the text \"me\"",
		"2:20: an element of allow_uids must be the number of a user (see `id -u`), not the number -1",
		"2:24: an element of allow_uids must be the number of a user (see `id -u`), not the number 4294967295",
	}},
	{"open to the network", "omnibus: {http: '0.0.0.0:9464'}\n" + two, []string{
		`1:17: http: "0.0.0.0:9464" is not a loopback address: what is served there has no protection, so use 127.0.0.1, [::1] or localhost, or the path of a socket, and put a server of your own before it`,
	}},
	{"no place for HTTP", "omnibus: {http: here}\n" + two, []string{
		`1:17: http: "here" is neither the path of a socket, which has a slash, nor an address such as 127.0.0.1:9464`,
	}},
	{"no port for HTTP", "omnibus: {http: 'localhost:http'}\n" + two, []string{
		`1:17: http: "localhost:http" has no port from 0 to 65535`,
	}},
	{"a heap that others cannot read", "omnibus: {memory: heap}\nstages:\n- stage_id: 0\n  omnibus: {exec: [a]}", []string{
		"1:19: memory must be shared, or left out, because the file has stages with processes of their own, which cannot read this one's heap",
	}},
	{"join with one input", "stages:\n- stage_id: 0\n- stage_id: 1\n  engine_input_source: [0]\n  omnibus: {join: true}", []string{
		"5:19: join waits for several inputs, and the stage 1 has 1",
	}},
	{"join with none", "stages:\n- stage_id: 0\n  omnibus: {join: true}", []string{"3:19: join waits for several inputs, and the stage 0 has 0"}},

	// Connectors.
	{"a stage that a list of edges has left out", "edges: [{from: 0, to: 1}]\nstages: [{stage_id: 0}, {stage_id: 1}, {stage_id: 2}]", []string{
		"2:51: no edge leads to the stage 2 or away from it: add one to edges, or say omnibus: {alone: true} if requests go to it and to the others side by side",
	}},
	{"options of NIXL", "connectors: {n: {name: NixlConnector, extra: {host: auto, zmq_port: 0, backends: [UCX], role: boss, lease_seconds: -1}}}\nstages: [{stage_id: 0}]", []string{
		`1:95: role of NixlConnector must be both or sender or receiver, not the text "boss"`,
		"1:116: lease_seconds of NixlConnector must be a number of seconds of at least 0, or text such as \"30s\", not the number -1",
	}},
	{"backends that NIXL has and this build does not use", "connectors: {n: {name: NixlConnector, extra: {backends: [UCX, GDS]}}}\nstages: [{stage_id: 0}]", []string{
		"1:57: backends of NixlConnector must be UCX, or a list of it, not a list",
	}},
	{"options of an engine that does not run here", "connectors: {y: {name: YuanrongTransferEngineConnector, extra: {rpc_port: 0, memory_pool_size: 1GB}}}\nstages: [{stage_id: 0}]", []string{
		"1:75: rpc_port of YuanrongTransferEngineConnector must be a whole number from 1 to 65535, or auto, not the number 0",
		`1:96: memory_pool_size of YuanrongTransferEngineConnector must be a whole number of at least 0, not the text "1GB"`,
	}},
	{"text that is no port", "connectors: {m: {name: MooncakeTransferEngineConnector, extra: {zmq_port: '70000', sender_zmq_port: port}}}\nstages: [{stage_id: 0}]", []string{
		`1:75: zmq_port of MooncakeTransferEngineConnector must be a whole number from 0 to 65535, not the text "70000"`,
		`1:101: sender_zmq_port of MooncakeTransferEngineConnector must be a whole number from 1 to 65535, not the text "port"`,
	}},
	{"undefined connector", "stages:\n- stage_id: 0\n- stage_id: 1\n  input_connectors: {from_stage_0: shn}\nconnectors: {shm: {name: SharedMemoryConnector}}", []string{
		`4:36: undefined connector "shn": the nearest that is defined is "shm"`,
	}},
	{"undefined connector, none defined", "stages:\n- {stage_id: 0, output_connectors: {to_stage_1: c}}\n- stage_id: 1", []string{
		`2:49: undefined connector "c": the file defines no connectors`,
	}},
	{"unknown connector type", "connectors:\n  c: {name: SharedMemConnector}\n  d: {name: mooncakeConnector}\n" + two, []string{
		`2:13: unknown connector type "SharedMemConnector": the nearest is SharedMemoryConnector`,
		`3:13: unknown connector type "mooncakeConnector": the nearest is MooncakeConnector`,
	}},
	{"unknown type in place", "stages:\n- stage_id: 0\n- stage_id: 1\n  input_connectors:\n    from_stage_0: {name: Redis}", []string{
		`5:26: unknown connector type "Redis": the nearest is MoriConnector`,
	}},
	{"malformed connectors", "connectors:\n  a: SharedMemoryConnector\n  b: {extra: {}}\n  c: {name: 1}\n  d: {name: SharedMemoryConnector, extras: {}}\n  e: {name: SharedMemoryConnector, extra: 1}\n" + two, []string{
		`2:6: the connector "a" must be a map of keys, not the text "SharedMemoryConnector"`,
		`3:6: the connector "b" has no name: it takes the type, such as name: SharedMemoryConnector`,
		"4:13: name must be text, not the number 1",
		`5:36: unknown key "extras" in the connector "d": the nearest is "extra" (all: extra, name)`,
		"6:43: extra must be a map of keys, not the number 1",
	}},
	{"values of extra", "connectors:\n  a:\n    name: SharedMemoryConnector\n    extra:\n      shm_threshold_bytes: -1\n      codec_chunk_frames: [25, x]\n      codec_streaming: 1\n      connector_get_sleep_s: soon\n  b: {name: MooncakeConnector, extra: {segment: 512MB, host: 1}}\n  c: {name: YuanrongConnector, extra: {port: 70000}}\n  d: {name: SharedMemoryConnector, extra: {store: a, readers: 64}}\n" + two, []string{
		"5:28: shm_threshold_bytes of SharedMemoryConnector must be a whole number of at least 0, not the number -1",
		"6:27: codec_chunk_frames of SharedMemoryConnector must be a whole number of at least 0, or a list of them, not a list",
		"7:24: codec_streaming of SharedMemoryConnector must be true or false, not the number 1",
		`8:30: connector_get_sleep_s of SharedMemoryConnector must be a number of at least 0, not the text "soon"`,
		`9:49: segment of MooncakeConnector must be a whole number of at least 0, not the text "512MB"`,
		"9:62: host of MooncakeConnector must be text, not the number 1",
		"10:46: port of YuanrongConnector must be a whole number from 1 to 65535, not the number 70000",
		"11:44: store of SharedMemoryConnector is gone: leave it out, and attach both processes to one host, which keeps the values, or take mode segment",
		"11:54: readers of SharedMemoryConnector is gone: leave it out, together with store",
	}},
	{"ends that disagree", "connectors:\n  shm: {name: SharedMemoryConnector}\n  tcp: {name: MooncakeConnector}\nstages:\n- stage_id: 0\n  output_connectors: {to_stage_1: shm}\n- stage_id: 1\n  input_connectors: {from_stage_0: tcp}", []string{
		"8:22: the ends of the edge 0 -> 1 disagree: stage 0 sends through shm (SharedMemoryConnector) (line 6), stage 1 receives through tcp (MooncakeConnector) (line 8)",
	}},
	{"ends that disagree, receiver first", "connectors:\n  shm: {name: SharedMemoryConnector}\n  tcp: {name: MooncakeConnector}\nstages:\n- stage_id: 1\n  input_connectors: {from_stage_0: tcp}\n- stage_id: 0\n  output_connectors: {to_stage_1: shm}", []string{
		"8:23: the ends of the edge 0 -> 1 disagree: stage 0 sends through shm (SharedMemoryConnector) (line 8), stage 1 receives through tcp (MooncakeConnector) (line 6)",
	}},
	{"malformed references", "stages:\n- stage_id: 0\n  input_connectors: {to_stage_1: x, '0': x, from_stage_: x}\n  output_connectors: [x]\n- stage_id: 1\n  input_connectors: {from_stage_0: 1}", []string{
		`3:22: the key "to_stage_1" in input_connectors must be from_stage_ and the id of a stage, such as from_stage_0`,
		`3:37: the key "0" in input_connectors must be from_stage_ and the id of a stage, such as from_stage_0`,
		`3:45: the key "from_stage_" in input_connectors must be from_stage_ and the id of a stage, such as from_stage_0`,
		"4:22: output_connectors must be a map of keys, not a list",
		"6:36: from_stage_0 must name a connector or define one, not the number 1",
	}},

	// Edges.
	{"unknown stages", "stages:\n- stage_id: 0\n  engine_input_source: [7]\n  output_connectors: {to_stage_8: {name: SharedMemoryConnector}}\nedges:\n- {from: 9, to: 0}", []string{
		"3:25: unknown stage 7: the file has 0",
		"4:23: unknown stage 8: the file has 0",
		"6:3: unknown stage 9: the file has 0",
	}},
	{"more than a bus takes", `
stages: [{stage_id: a/b}, {stage_id: "a->b"}, {stage_id: ` + strings.Repeat("x", 100) + `}, {stage_id: a, omnibus: {replicas: 4097, max_inflight: 4097, max_restarts: 1001, exec: [x]}}]
runtime: {defaults: {window_size: 1048577}}
omnibus: {max_requests: 1048577}
`, []string{
		`2:21: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without "->" and "/", not the text "a/b"`,
		`2:38: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without "->" and "/", not the text "a->b"`,
		`2:58: stage_id must be a whole number of at least 0, or text of at most 99 printable bytes without "->" and "/", not the text "` + strings.Repeat("x", 40) + `..."`,
		"2:195: replicas must be a whole number from 1 to 4096, not the number 4097",
		"2:215: max_inflight must be a whole number from 1 to 4096, not the number 4097",
		"2:235: max_restarts must be a whole number from 1 to 1000, not the number 1001",
		"3:35: window_size must be a whole number from 1 to 1048576, or -1 to leave it to the byte window, not the number 1048577",
		"4:25: max_requests must be a whole number from 1 to 1048576, not the number 1048577",
	}},
	{"malformed edges", two + "edges:\n- a\n- {from: a}\n- {to: b}\n- {}\n- {from: a, to: [b]}\n- {from: a, to: b, windowsize: 1}\n- {from: ~, to: b}", []string{
		`3:3: an edge must be a map of keys, not the text "a"`,
		"4:3: the edge has no to",
		"5:3: the edge has no from",
		"6:3: the edge has no from",
		"6:3: the edge has no to",
		"7:17: to must be a whole number of at least 0, or text of at most 99 printable bytes without \"->\" and \"/\", not a list",
		`8:20: unknown key "windowsize" in an edge: the nearest is "window_size" (all: from, max_inflight, omnibus, to, window_size)`,
		"9:4: from must be a whole number of at least 0, or text of at most 99 printable bytes without \"->\" and \"/\", not null",
	}},
	{"edges not a list", "edges: {from: a, to: b}\n" + two, []string{"1:8: edges must be a list of {from, to}, not a map"}},
	{"windows", "runtime: {defaults: {window_size: 0, max_inflight: 0, windows: 1}}\n" + two + "edges:\n- {from: a, to: b, window_size: -2, max_inflight: 0, omnibus: {window_bytes: 0, policy: drop}}", []string{
		"1:35: window_size must be a whole number from 1 to 1048576, or -1 to leave it to the byte window, not the number 0",
		"1:52: max_inflight must be a whole number from 1 to 4096, not the number 0",
		`1:55: unknown key "windows" in runtime.defaults: the nearest is "window_size" (all: max_inflight, window_size)`,
		"4:33: window_size must be a whole number from 1 to 1048576, or -1 to leave it to the byte window, not the number -2",
		"4:51: max_inflight must be a whole number from 1 to 4096, not the number 0",
		`4:78: window_bytes must be a positive size in bytes, or text such as "64MiB", not the number 0`,
		`4:89: policy must be one of block, fail, drop-oldest, not the text "drop"`,
	}},
	{"window as text", two + "edges: [{from: a, to: b, window_size: many}]", []string{
		`2:39: window_size must be a whole number from 1 to 1048576, or -1 to leave it to the byte window, not the text "many"`,
	}},
	{"repeated edge", two + "edges:\n- {from: a, to: b}\n- {from: a, to: b}", []string{"4:3: the edge a -> b is listed twice, first on line 3"}},
	{"repeated source", "stages: [{stage_id: 0}, {stage_id: 1, engine_input_source: [0, '0']}]", []string{"1:64: engine_input_source names the stage 0 twice"}},
	{"source not a list", "stages: [{stage_id: 0}, {stage_id: 1, engine_input_source: 0}]", []string{"1:60: engine_input_source must be a list of stages, such as [0], not the number 0"}},
	{"self-loop", two + "edges: [{from: a, to: a}]", []string{"2:9: an edge leads from the stage a to itself"}},
	{"self-loop of a source", "stages: [{stage_id: 0, engine_input_source: [0]}]", []string{"1:46: an edge leads from the stage 0 to itself"}},
	{"cycle", "stages: [{stage_id: 0}, {stage_id: 1}, {stage_id: 2}, {stage_id: 3}]\nedges:\n- {from: 2, to: 0}\n- {from: 0, to: 1}\n- {from: 3, to: 0}\n- {from: 1, to: 2}", []string{
		"6:3: the edges form a cycle: 0 -> 1 -> 2 -> 0",
	}},
	{"two cycles, one leading to the other", "stages: [{stage_id: a}, {stage_id: b}, {stage_id: c}, {stage_id: d}]\nedges: [{from: a, to: b}, {from: b, to: a}, {from: b, to: c}, {from: c, to: d}, {from: d, to: c}]", []string{
		"2:27: the edges form a cycle: a -> b -> a",
		"2:81: the edges form a cycle: c -> d -> c",
	}},
	{"all at once", "stages:\n- stage_id: 0\n  omnibus: {x: 1}\n- stage_id: 0\nedges:\n- {from: 0}\nomnibus: {slots: 0}", []string{
		`3:13: unknown key "x" in the stage's omnibus settings: the nearest is "cwd" (all: alone, attach, attempts, batch, cwd, env, exec, first_timeout, grace, handle_timeout, handler, join, max_inflight, max_restarts, replay, replicas, restart, routing, start_timeout, state, unordered)`,
		"4:13: the stage 0 is defined twice, first on line 2",
		"6:3: the edge has no to",
		"7:18: slots must be a whole number from 1 to 2147483647, not the number 0",
	}},
}

func TestProblems(t *testing.T) {
	for _, tt := range problemTests {
		t.Run(tt.name, func(t *testing.T) {
			got := problemsOf(t, "p.yaml", tt.text)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// problemsOf returns the problems without the name of the file.
func problemsOf(t *testing.T, name, text string) []string {
	t.Helper()
	return problemsWith(t, name, text, Options{})
}

func problemsWith(t *testing.T, name, text string, opts Options) []string {
	t.Helper()
	p, err := Parse(name, []byte(text), opts)
	if err == nil {
		t.Fatalf("accepted as %+v", p)
	}
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatalf("%T instead of problems: %v", err, err)
	}
	var lines []string
	for _, problem := range problems {
		line, ok := strings.CutPrefix(problem.Error(), name+":")
		if !ok {
			t.Errorf("%q does not begin with the file", problem)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestBounds(t *testing.T) {
	bomb := "a0: &a0 [x, x]\n"
	for i := range 40 {
		bomb += fmt.Sprintf("a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
	}
	deepAlias := "a0: &a0 [x]\n"
	for i := range 80 {
		deepAlias += fmt.Sprintf("a%d: &a%d [*a%d]\n", i+1, i+1, i)
	}
	tests := []struct{ name, text, want string }{
		{"bytes", strings.Repeat("#", MaxFileBytes+1), "1:1: the file has more than 4194304 bytes, the most that is read"},
		{"brackets", strings.Repeat("[", maxIndicators), "1:65: nested more than 64 levels deep"},
		{"braces", strings.Repeat("{a: ", maxIndicators/2), "1:257: nested more than 64 levels deep"},
		{"dashes", strings.Repeat("- ", maxIndicators), "1:129: nested more than 64 levels deep"},
		{"explicit keys", strings.Repeat("? ", maxIndicators), "1:65: nested more than 64 levels deep"},
		{"anchors", strings.Repeat("&a ", maxIndicators), "1:193: nested more than 64 levels deep"},
		{"tags", strings.Repeat("!a ", maxIndicators), "1:129: nested more than 64 levels deep"},
		{"indicators", strings.Repeat("[", MaxFileBytes), "1:131073: more than 131072 characters that structure YAML: the file is too large"},
		{"keys", strings.Repeat("k:\n", maxKeys+1), "8193:2: more than 8192 keys: the file is too large"},
		{"values", "k: [" + strings.Repeat("1,", MaxValues) + "]", "1:131073: more than 65536 values once aliases are expanded"},
		{"alias bomb", bomb, "14:18: more than 65536 values once aliases are expanded"},
		{"nested aliases", deepAlias, "64:12: nested more than 64 levels deep once aliases are expanded"},
		{"stages", "stages: [" + strings.Repeat("{stage_id: 0}, ", 1) + manyStages(bus.MaxStages) + "]", "1:17343: more than 1024 stages"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := problemsOf(t, "p.yaml", tt.text)
			if got[0] != tt.want {
				t.Errorf("got %q, want %q", got[0], tt.want)
			}
		})
	}
}

// TestLongTexts: a problem quotes what stands in the file, and not all of it.
func TestLongTexts(t *testing.T) {
	const most = 1000
	long, digits := strings.Repeat("k", 100_000), strings.Repeat("9", 100_000)
	stage := "stages:\n- stage_id: 0\n  final_output: true\n"
	for _, text := range []string{
		stage + "omnibus:\n  " + long + ": 1\n",
		stage + long + ": 1\n" + long + ": 2\n",
		stage + "x: " + digits + "\n",
		stage + "x: !" + long + " 1\n",
		stage + "x: *" + long + "\n",
		stage + "x: ${" + long + "}\n",
		stage + "x: ${oc.env:" + long + "}\n",
		stage + "connectors:\n  c: {name: " + long + "}\n",
		stage + "  input_connectors: {" + long + ": 1}\n",
		stage + "  input_connectors: {from_stage_0: " + long + "}\n",
		stage + "  omnibus: {env: {" + long + ": 1}}\n",
		stage + "  omnibus: {env: {a=" + long + ": x}}\n",
	} {
		for _, problem := range problemsOf(t, "p.yaml", text) {
			if len(problem) > most {
				t.Errorf("%.60q: a problem of %d bytes: %.100s", text[len(stage):], len(problem), problem)
			}
		}
	}
}

func manyStages(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{stage_id: %d}, ", i+1)
	}
	return b.String()
}

func TestDepthAtTheBound(t *testing.T) {
	nested := func(levels int) string {
		return "k: " + strings.Repeat("[", levels) + strings.Repeat("]", levels) + "\nstages: [{stage_id: 0}]"
	}
	// The top-level map is a level too.
	mustParse(t, nested(MaxDepth-1))
	problemsOf(t, "p.yaml", nested(MaxDepth))
}

func TestManyProblemsAreCut(t *testing.T) {
	got := problemsOf(t, "p.yaml", two+"edges: ["+strings.Repeat("x, ", 300)+"]")
	if len(got) != maxProblems+1 || got[maxProblems] != "2:309: 200 more problems from here on: correct those above first" {
		t.Errorf("%d problems, the last %q", len(got), got[len(got)-1])
	}
}

func TestSharedValuesAreReportedOnce(t *testing.T) {
	got := problemsOf(t, "p.yaml", "x: &x {replicas: 0}\nstages: [{stage_id: 0, omnibus: *x}, {stage_id: 1, omnibus: *x}]")
	if len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

// TestTextsAreRead: what a file says is what YAML says.
func TestTextsAreRead(t *testing.T) {
	const file = "stages:\r\n- stage_id: a\r\n  engine_args: {url: http://x:80/y, at: 12:30, two: \"a\r\n    b\", 'c':1, l: ['a:b']}\r\n  block: |\r\n    1\r\n    2\r\n"
	p, err := Parse("crlf.yaml", []byte(file), Options{})
	if err != nil {
		t.Fatal(err)
	}
	args, _ := p.Stages[0].Settings.Get("engine_args")
	block, _ := p.Stages[0].Settings.Get("block")
	got, err := json.Marshal([]any{args, block})
	if want := `[{"url":"http://x:80/y","at":"12:30","two":"a b","c":1,"l":["a:b"]},"1\n2\n"]`; string(got) != want || err != nil {
		t.Errorf("it has %s, %v, want %s", got, err, want)
	}
}
