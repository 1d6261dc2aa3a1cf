package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// SharedMemory is the connector type of edges for which a file names none.
const SharedMemory = "SharedMemoryConnector"

// CudaIPC is the connector type of edges in the bus's own store whose tensors stay on their GPU: it
// says what tensor_transport and min_bytes say on an edge.
const CudaIPC = "CudaIpcConnector"

// runs reports whether this build runs a type.
func runs(connectorType string) bool {
	return slices.Contains([]string{SharedMemory, CudaIPC, "MooncakeConnector", "MooncakeStoreConnector", "MooncakeTransferEngineConnector", "NixlConnector", "YuanrongConnector"}, connectorType)
}

// A Connector says how the messages of an edge travel.
type Connector struct {
	// Name is the connector's key under connectors, empty for one that is
	// automatic or defined in place.
	Name string `json:"name,omitempty"`
	// Type is the class, such as SharedMemoryConnector.
	Type string `json:"type"`
	// Extra are the settings of the connector, and those that the models on
	// both ends read from it. The keys that the type defines have been
	// checked; all others stand as they were written, with their variables
	// replaced.
	Extra Settings `json:"extra,omitempty"`
	// Auto marks the connector of an edge for which the file names none.
	Auto bool     `json:"auto,omitempty"`
	Pos  Position `json:"pos,omitzero"`
}

// String returns the name, if there is one, and the type.
func (c Connector) String() string {
	switch {
	case c.Auto:
		return c.Type + " (automatic)"
	case c.Name == "":
		return c.Type
	}
	return c.Name + " (" + c.Type + ")"
}

// ThresholdBytes returns shm_threshold_bytes, the size above which a payload
// of a SharedMemoryConnector goes into shared memory, and whether it is set.
func (c Connector) ThresholdBytes() (int64, bool) {
	value, _ := c.Extra.Get("shm_threshold_bytes")
	bytes, ok := value.(int64)
	return bytes, ok
}

// dropIn is what the Python client is called in vLLM-Omni's files.
const dropIn = "OmnibusConnector"

// maxConnectorBytes bounds the name of a connector.
const maxConnectorBytes = 128

// The modes of a SharedMemoryConnector: in this project's store, or in segments
// that vLLM-Omni can read.
const (
	modeKey     = "mode"
	modeRing    = "ring"
	modeSegment = "segment"
)

// connectorTypes are the types by their full names, for suggestions. Others
// of the same families are valid too.
var connectorTypes = []string{
	SharedMemory,
	CudaIPC,
	"MooncakeConnector", "MooncakeStoreConnector", "MooncakeTransferEngineConnector",
	"MoriConnector", "MoriTransferEngineConnector",
	"NixlConnector",
	"YuanrongConnector", "YuanrongTransferEngineConnector",
}

// families are the transports of other programs, by the first part of their
// types' names, each with what it moves data between.
var families = map[string]string{
	"CudaIpc":  "the GPUs of one host",
	"Mooncake": "hosts",
	"Mori":     "hosts",
	"Nixl":     "hosts",
	"Yuanrong": "hosts",
}

// family returns the family of a type that is valid but not run here.
func family(connectorType string) (string, bool) {
	rest, ok := strings.CutSuffix(connectorType, "Connector")
	for prefix := range families {
		if ok && strings.HasPrefix(rest, prefix) {
			return prefix, true
		}
	}
	return "", false
}

// advice says what to do about a connector that this build cannot run.
func (c Connector) advice() string {
	prefix, _ := family(c.Type)
	if c.Type == "YuanrongTransferEngineConnector" {
		return fmt.Sprintf("its engine reads through an NPU and libascendcl.so; use YuanrongConnector, whose values go through memory of the host, or %s within one host", SharedMemory)
	}
	return fmt.Sprintf("it moves data between %s; place both stages on one host and use %s, or run the edge with vLLM-Omni",
		families[prefix], SharedMemory)
}

// connectors reads the named definitions. One that is refused is still in the
// map, so that references to it are not reported as undefined.
func (c *checker) connectors(n *node) map[string]Connector {
	defined := make(map[string]Connector)
	if n != nil && n.kind == kindList {
		c.notef(n.pos, "connectors is a list, which vLLM-Omni does not read: edges have their automatic connectors; write a map of names, such as shm: {name: %s}", SharedMemory)
		return defined
	}
	if n == nil || !c.isMap(n, "connectors") {
		return defined
	}
	for _, e := range n.entries {
		if !printable(e.key, maxConnectorBytes) {
			c.problemf(e.pos, "a connector's name must be text of at most %d printable bytes, not %q", maxConnectorBytes, shorten(e.key))
			continue
		}
		connector := c.connector(fmt.Sprintf("the connector %q", e.key), e.value)
		connector.Name, connector.Pos = e.key, e.pos
		defined[e.key] = connector
	}
	return defined
}

// connectorParts are what a definition consists of.
type connectorParts struct {
	name          string
	nameAt, extra *node
}

// connector reads one definition, {name: Type, extra: {...}}.
func (c *checker) connector(what string, n *node) Connector {
	connector := Connector{Pos: n.pos}
	var parts connectorParts
	known := c.closed(n, what, c.connectorFields(&parts))
	connector.Type = parts.name
	switch {
	case !known:
	case parts.nameAt == nil:
		c.problemf(n.pos, "%s has no name: it takes the type, such as name: %s", what, SharedMemory)
	case connector.Type != "":
		c.connectorType(parts.nameAt, connector.Type)
	}
	if parts.extra != nil {
		connector.Extra = c.extra(connector.Type, parts.extra)
	}
	return connector
}

func (c *checker) connectorType(at *node, name string) {
	if _, ok := family(name); ok || name == SharedMemory {
		return
	}
	if name == dropIn {
		c.problemf(at.pos, "%s is for vLLM-Omni's own processes: in this file the same connector is called %s", name, SharedMemory)
		return
	}
	c.problemf(at.pos, "unknown connector type %q: the nearest is %s", shorten(name), nearestType(name))
}

// nearestType is the type that a name ends with, as names of other programs for these types do, or else the nearest.
func nearestType(name string) string {
	for _, known := range connectorTypes {
		if strings.HasSuffix(name, known) {
			return known
		}
	}
	return nearest(name, connectorTypes)
}

// extra keeps all settings of a connector and checks those that its type
// defines.
func (c *checker) extra(connectorType string, n *node) Settings {
	if !c.isMap(n, "extra") {
		return nil
	}
	rules := extraRules[connectorType]
	known := slices.DeleteFunc(slices.Sorted(maps.Keys(rules)), func(key string) bool { return rules[key].gone() })
	entries := slices.Clone(n.entries)
	for i, e := range entries {
		if e.value.kind == kindNull {
			continue
		}
		rule, ok := rules[e.key]
		if rule.gone() {
			c.problemf(e.pos, "%s of %s is gone: %s", e.key, connectorType, rule.want)
			continue
		}
		if !ok {
			if near := nearest(e.key, known); likely(e.key, near) {
				c.notef(e.pos, "%q is kept for the stages; is %q meant?", e.key, near)
			}
			continue
		}
		// What variables spell, and the text of a port, is a number only where the rule does not want it as text.
		value := *e.value
		value.variable = value.variable || rule.digits && value.kind == kindString
		if spelt := value.scalar(); rule.ok(spelt) {
			entries[i].value = spelt
		} else if !e.value.unset && !rule.ok(e.value) {
			c.problemf(e.value.pos, "%s of %s must be %s, not %s", e.key, connectorType, rule.want, describe(e.value))
		}
	}
	return c.settings(entries)
}

// An extraRule is the type of a value under extra.
type extraRule struct {
	want   string
	ok     func(*node) bool
	takes  schema
	digits bool // text may spell the number
}

// noMore is the rule of a setting that there was once, with what to do instead. It has no ok:
// only a null is accepted, which takes the setting out of the file below.
func noMore(instead string) extraRule {
	return extraRule{want: instead, takes: schema{"enum": []any{nil}, "description": "It is gone: " + instead + "."}}
}

func (r extraRule) gone() bool { return r.takes != nil && r.ok == nil }

func wholeNumber(from, to int64) extraRule {
	want := fmt.Sprintf("a whole number from %d to %d", from, to)
	if to == math.MaxInt64 {
		want = fmt.Sprintf("a whole number of at least %d", from)
	}
	return extraRule{want: want, ok: func(n *node) bool {
		v, ok := n.value.(int64)
		return ok && v >= from && v <= to
	}, takes: orVariable(integer(from, to))}
}

// port is a rule of a port, which vLLM-Omni also takes, and has by default, as text.
func port(from int64) extraRule {
	rule := wholeNumber(from, math.MaxUint16)
	rule.takes, rule.digits = anyOf(rule.takes, schema{"type": "string", "pattern": "^[0-9]{1,5}$"}), true
	return rule
}

// oneText is a rule of text that is one of some.
func oneText(choices ...string) extraRule {
	return extraRule{want: strings.Join(choices, " or "), ok: reads(connector.Option{Kind: connector.Text, Choices: choices}), takes: oneOf(choices...)}
}

// isDuration accepts what an option does that is opened with the setting.
func isDuration(least time.Duration) func(*node) bool {
	return reads(connector.Option{Kind: connector.Duration, Min: int64(least)})
}

func reads(option connector.Option) func(*node) bool {
	return func(n *node) bool {
		_, err := option.Read(n.value)
		return err == nil
	}
}

var (
	ruleText  = extraRule{want: "text", ok: func(n *node) bool { return n.kind == kindString }, takes: schema{"type": "string"}}
	ruleFlag  = extraRule{want: "true or false", ok: func(n *node) bool { return n.kind == kindBool }, takes: takesFlag}
	ruleBytes = wholeNumber(0, math.MaxInt64)
	rulePort  = port(1)
	// ruleAutoPort: the connector takes a free port for auto.
	ruleAutoPort = extraRule{want: rulePort.want + ", or auto", ok: func(n *node) bool {
		return n.value == "auto" || rulePort.ok(n)
	}, takes: anyOf(rulePort.takes, schema{"const": "auto"}), digits: true}
	// ruleFrames: some models take one number for each of their codecs.
	ruleFrames = extraRule{want: "a whole number of at least 0, or a list of them", ok: func(n *node) bool {
		return ruleBytes.ok(n) || n.kind == kindList && !slices.ContainsFunc(n.items, func(item *node) bool { return !ruleBytes.ok(item) })
	}, takes: anyOf(ruleBytes.takes, list(ruleBytes.takes))}
	ruleMode    = oneText(modeRing, modeSegment)
	ruleRole    = oneText("both", "sender", "receiver")
	rulePool    = wholeNumber(1, math.MaxInt64)
	ruleAnyPort = port(0) // which is a free one
	// ruleBackends: NIXL has others, which are not used.
	ruleBackends = extraRule{want: "UCX, or a list of it", ok: func(n *node) bool {
		return n.value == "UCX" || len(n.items) == 1 && n.items[0].value == "UCX"
	}, takes: anyOf(oneOf("UCX"), list(oneOf("UCX")))}
	ruleDuration = extraRule{
		want: `a number of seconds of at least 0, or text such as "30s"`, ok: isDuration(0),
		takes: anyOf(ruleSeconds.takes, schema{"type": "string"}),
	}
	// ruleTimeout: that 0 were no wait, no end of it or the default is anybody's guess.
	ruleTimeout = extraRule{
		want: `a number of seconds above 0, or text such as "30s"`, ok: isDuration(1),
		takes: anyOf(orVariable(schema{"type": "number", "exclusiveMinimum": 0}), schema{"type": "string"}),
	}
	ruleSeconds = extraRule{want: "a number of at least 0", ok: func(n *node) bool {
		f, ok := n.value.(float64)
		return ok && f >= 0 || ruleBytes.ok(n)
	}, takes: orVariable(schema{"type": "number", "minimum": 0})}
)

// extraRules are the settings that the connectors and the models of vLLM-Omni
// read from extra.
var extraRules = map[string]map[string]extraRule{
	SharedMemory: {
		modeKey:               ruleMode,
		"shm_threshold_bytes": ruleBytes,
		"ring_bytes":          wholeNumber(64<<10, math.MaxInt64),
		"store":               noMore("leave it out, and attach both processes to one host, which keeps the values, or take mode segment"),
		"readers":             noMore("leave it out, together with store"),
		"generation":          wholeNumber(1, 2),
		"ttl":                 ruleDuration,
		"timeout":             ruleTimeout,
		"codec_streaming":     ruleFlag, "codec_chunk_frames": ruleFrames,
		"codec_left_context_frames": ruleFrames, "initial_codec_chunk_frames": ruleFrames,
		"connector_get_sleep_s": ruleSeconds, "connector_get_max_wait": ruleSeconds, "connector_get_max_wait_first_chunk": ruleSeconds,
	},
	CudaIPC: {
		"tensor_transport": {want: "cuda_ipc or cuda_ipc_pool", ok: func(n *node) bool {
			return n.value == string(TensorsIPC) || n.value == string(TensorsPool)
		}, takes: oneOf(string(TensorsIPC), string(TensorsPool))},
		"min_bytes": ruleBytes, "shm_threshold_bytes": ruleBytes,
	},
	"MooncakeConnector":      mooncakeStore,
	"MooncakeStoreConnector": mooncakeStore,
	"MooncakeTransferEngineConnector": {
		"host": ruleText, "zmq_port": ruleAnyPort, "role": ruleRole, "sender_host": ruleText, "sender_zmq_port": rulePort, "protocol": ruleText,
		"device_name": ruleText, "memory_pool_size": rulePool, "memory_pool_device": oneText("cpu"), "buffer_ttl_seconds": ruleDuration,
		"timeout": ruleTimeout, "python": ruleText,
	},
	"NixlConnector": {
		"host": ruleText, "zmq_port": ruleAnyPort, "role": ruleRole, "sender_host": ruleText,
		"sender_zmq_port": rulePort, "memory_pool_size": rulePool, "lease_seconds": ruleDuration,
		"transfer_timeout_s": ruleTimeout, "timeout": ruleTimeout, "python": ruleText, "backends": ruleBackends,
	},
	"YuanrongTransferEngineConnector": {
		"host": ruleText, "zmq_port": ruleAutoPort, "rpc_port": ruleAutoPort, "protocol": ruleText, "device_name": ruleText,
		"memory_pool_size": ruleBytes, "memory_pool_device": ruleText, "role": ruleText, "sender_host": ruleText, "sender_zmq_port": ruleAutoPort,
	},
	"YuanrongConnector": {
		"host": ruleText, "port": rulePort, "get_sub_timeout_ms": ruleBytes,
		"ttl": ruleDuration, "timeout": ruleTimeout, "python": ruleText,
	},
}

var mooncakeStore = map[string]extraRule{
	"host": ruleText, "metadata_server": ruleText, "master": ruleText, "segment": ruleBytes, "localbuf": wholeNumber(1, math.MaxInt64),
	"proto": ruleText, "rdma": ruleText, "timeout": ruleTimeout, "python": ruleText,
}
