// Package config reads the file that describes a pipeline, checks all of it,
// and returns a plain, resolved description: stages in topological order, the
// edges between them, and the settings of the bus. It starts nothing; Build
// and BuildHost turn the description into what bus.Open takes.
//
// # Files
//
// The files are those of vLLM-Omni, in YAML or JSON, in both of its shapes:
//
//	stage_args:                    # older
//	  - stage_id: 0
//	    output_connectors: {to_stage_1: shm}
//	  - stage_id: 1
//	    input_connectors: {from_stage_0: shm}
//	runtime:
//	  defaults: {window_size: -1, max_inflight: 1}
//	  connectors:
//	    shm: {name: SharedMemoryConnector, extra: {shm_threshold_bytes: 65536}}
//	  edges:
//	    - {from: 0, to: 1, window_size: -1}
//
//	connectors: {...}              # newer: the same sections at the top
//	stages: [...]
//	edges: [...]
//
// An edge exists when any of three places names it: the connectors of a stage
// (input_connectors, output_connectors), the list edges, or a stage's
// engine_input_source. The connectors decide the transport; where only the
// other places name an edge it gets a SharedMemoryConnector, marked Auto. The
// window comes from the entry under edges, else from runtime.defaults. A stage
// with final_output that has a next stage sends what it makes to the caller too.
//
// Settings that belong to the models are kept, in order and with their types,
// and handed on (Stage.Settings, Pipeline.Settings, Connector.Extra). The
// bus's own settings live under a key named omnibus: at the top, in a stage
// and in an entry of edges. There every key must be known, and elsewhere these keys
// are refused, but for those that vLLM-Omni has as well (env, max_inflight):
//
//	omnibus: {name, ring_bytes, large_bytes, slots, max_requests, inline_bytes, serializer,
//	          stall_timeout, exchange_ttl, memory, socket, allow_uids, http,
//	          wait, main, grace}
//	stage:   {handler, replicas, max_inflight, state, attempts, replay, join, alone,
//	          batch: {size, wait}, exec, env, cwd, attach, routing, unordered,
//	          restart, max_restarts, grace, start_timeout, handle_timeout,
//	          first_timeout}
//	edge:    {window_bytes, policy, tensor_transport, min_bytes}
//
// docs/running.md has their meaning and defaults. Sizes are whole numbers of bytes
// or text with a unit ("64MiB"); durations are text ("30s"). A numeric field left
// out stays zero, which means that the bus chooses; the defaults live with the
// bus, not here.
//
// # Files on top of others
//
// base_config names a file that this one stands on, relative to its own
// folder: that is read first, and this one is laid over it. That file may stand
// on another, up to 16 in all, and none on itself. Each value counts, and is
// reported, where it was written ([Position.File]); paths in it are relative to
// the folder of the file that was named ([Pipeline.Path]). What is merged is
// vLLM-Omni's choice, but for runtime and omnibus:
//
//	stages, stage_args      by stage_id; new ones are added at the end
//	in a stage              keys replace; engine_args, engine_extras,
//	                        default_sampling_params, default_pooling_params and
//	                        subtalker_sampling_params merge at every level
//	connectors, runtime     merge at every level
//	omnibus, also of stages merges at every level; a null takes a setting away
//	platforms               by name, and each like a file
//	any other key           replaces, lists and maps as a whole
//
// Options.Platform chooses an entry of platforms, which is laid over the file
// and those below it by the same rules, except that it adds no stages, and that
// in a stage the maps above merge at one level, and so do env and runtime. The
// error of an unknown platform lists the known ones. Entries that are not chosen
// are not checked.
//
// # Variables
//
// ${NAME} in a text stands for a variable of the environment, wherever in the
// file the text is, but not in keys:
//
//	${NAME}                  the variable; one that is not set is a problem
//	${oc.env:NAME}           the same, as vLLM-Omni's loader writes it
//	${oc.env:NAME,default}   the default where it is not set; 'a, b' in quotes
//	\${                     the two characters (\\${NAME}: a backslash and the variable)
//
// A variable holds text; where a number or true or false is wanted, the text
// may spell one, and one that a connector's type defines is handed on as what it
// spells. What a variable holds is not looked at for more variables. $NAME
// stays as it is, for shells. Only texts that count are looked at: not those
// below others, nor in a platform that is not chosen. The variables are those that
// [Options.LookupEnv] knows; without it none is set.
//
// # Schema
//
// [Schema] is a JSON Schema of the files, for editors: docs/pipeline.schema.json
// in the repository, or what `omnibus schema` prints. It is made of the tables
// by which Parse reads a file (tables.go), and refuses no file that Parse
// accepts for all its platforms. A file that only others stand on need not be a
// whole one, and may be refused by it.
//
// # Errors
//
// Parse reports everything that is wrong with a file at once: the error is a
// [Problems], sorted by position, and each [Problem] prints as
// file:line:column: message. Lines and columns count from 1; a column is a
// character, not a byte. What is valid but deserves attention, such as a
// connector that this build cannot run, is a [Note].
//
// # Trust
//
// A file may come from anywhere. Its size, its nesting, and the number of its
// values after aliases are expanded are bounded (MaxFileBytes, MaxDepth,
// MaxValues) before anything recursive looks at it. A file and those that it
// stands on share the bound on values, and their texts with variables have 1 MiB
// together. YAML tags are refused. No input makes this package panic.
//
// A file is code as much as data: the user that starts a pipeline runs the
// command lines under exec, and a file that may read the environment can put any
// variable into a process or a message. The caller decides whether to trust the
// author. base_config may name any path, also absolute ones and those with "..".
// A program that reads files of untrusted authors bounds them by [Options.Open],
// for example with an os.Root, and sets no LookupEnv.
//
// # Concurrency
//
// The functions share no state. Parse does not change a Pipeline after it has
// returned it; any number of goroutines may read it.
package config
