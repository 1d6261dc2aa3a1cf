package layers

// module is the import path of the repository; packages are named relative to
// it below.
const module = "github.com/omnibus-runtime/omnibus"

// layer says what one part of the repository may import from the others.
// Parts are matched by path: "internal" stands for internal/... as well, but for
// what has a line of its own.
type layer struct {
	part   string
	may    []string // what its non-test files may import, besides itself
	reason string   // why no more
}

// layers lists every part, lowest first. A part that is not listed fails, so that
// the author of a new part has to choose its layer.
var layers = []layer{
	{
		part:   "internal",
		reason: "internal packages are small leaves that every layer shares; a package that needs a layer belongs into that layer",
	},
	{
		part:   "internal/wire",
		may:    []string{"messages"},
		reason: "it turns messages into bytes and back, and trusts neither host nor client: it knows no socket, no store and no bus, so that its tests need none",
	},
	{
		part:   "internal/lastactive",
		may:    []string{"actors"},
		reason: "it chooses the connection to poll; its users define the type of a connection",
	},
	{
		part:   "internal/peer",
		may:    []string{"internal/wire", "shmstore", "internal"},
		reason: "it moves packets and descriptors and watches processes; the bus defines their meaning",
	},
	{
		part:   "internal/accounts",
		may:    []string{"codec", "internal/wire", "shmstore", "internal"},
		reason: "it records which process has which payload, and in which memory; deliveries, requests and connections belong to the layers above, behind its interfaces",
	},
	{
		part:   "messages",
		reason: "messages define the data that is exchanged and depend on no sender or reader; every layer above ringbuf imports them",
	},
	{
		part:   "codec/internal",
		may:    []string{"codec", "codec/python", "internal"},
		reason: "it is the shared code of the serializers; the package of a format defines the format",
	},
	{
		part:   "codec",
		may:    []string{"codec/internal", "internal"},
		reason: "a codec turns bytes into values; it does not depend on the memory or the transport of the bytes",
	},
	{
		part:   "codec/proto",
		may:    []string{"codec"},
		reason: "it turns any message into bytes and treats those of this module like any other. Programs register it, and no layer may depend on it",
	},
	{
		part:   "codec/python",
		may:    []string{"codec", "codec/internal"},
		reason: "it is plain values, independent of the format",
	},
	{
		part:   "codec/omni",
		may:    []string{"codec", "codec/python", "codec/internal"},
		reason: "it is a leaf beside codec for programs that need the format; other programs do not link it",
	},
	{
		part:   "ringbuf",
		may:    []string{"internal"},
		reason: "the ring arranges chunks in a byte slice; it has no notion of an object, a handle or a process",
	},
	{
		part:   "shmstore",
		may:    []string{"ringbuf", "codec", "messages", "internal"},
		reason: "the store must work for a program that has no actors and no bus",
	},
	{
		part:   "shmstore/keyed",
		may:    []string{"shmstore", "codec", "internal/peer", "internal"},
		reason: "it adds keys to a store's objects, and a socket by which processes attach to the store, for programs with a bus or without",
	},
	{
		part:   "cudaipc",
		reason: "it is the interface to a GPU; its callers, and the allocation of memory, belong to the layers above",
	},
	{
		part:   "cudaipc/tlsf",
		reason: "it allocates ranges of a memory that it never reads or writes",
	},
	{
		part:   "cudaipc/drivertest",
		may:    []string{"cudaipc"},
		reason: "the suite requires of a driver only what the contract says",
	},
	{
		part:   "cudaipc/emul",
		may:    []string{"cudaipc", "internal"},
		reason: "it is a driver, and depends on no user of a driver",
	},
	{
		part:   "cudaipc/cuda",
		may:    []string{"cudaipc"},
		reason: "it is a driver, and depends on no user of a driver",
	},
	{
		part:   "codec/bundle",
		may:    []string{"codec", "codec/internal"},
		reason: "it describes the position of a tensor's bytes, in any kind of memory",
	},
	{
		part:   "cudaipc/pool",
		may:    []string{"cudaipc", "cudaipc/tlsf", "shmstore", "internal"},
		reason: "it gives a store a second memory; the lane defines its contents and its readers",
	},
	{
		part:   "cudaipc/lane",
		may:    []string{"cudaipc", "cudaipc/pool", "codec", "codec/bundle", "shmstore", "messages", "internal"},
		reason: "it carries tensors between processes that the bus, or a test, has introduced",
	},
	{
		part:   "actors",
		may:    []string{"shmstore", "ringbuf", "codec", "messages", "internal"},
		reason: "actors run stages; the bus defines the stages and edges",
	},
	{
		part:   "connector",
		may:    []string{"codec"},
		reason: "the contract depends on no transport: each has a folder of its own, and a program links the transports that it names",
	},
	{
		part:   "connector/connectortest",
		may:    []string{"connector", "codec"},
		reason: "the suite requires of a transport only what the contract says",
	},
	{
		part:   "connector/flow",
		may:    []string{"connector"},
		reason: "a handover works the same through every transport: it gets transports from the registry",
	},
	{
		part:   "connector/segment",
		may:    []string{"connector", "internal"},
		reason: "it is another program's format: it shares names in a file system, and no code of this project",
	},
	{
		part:   "connector/ring",
		may:    []string{"connector", "actors", "shmstore", "codec", "messages", "internal"},
		reason: "it is the store behind keys, with the writer actor that every store has; the code that gives it an exchange connects the processes",
	},
	{
		part:   "connector/shm",
		may:    []string{"connector", "connector/ring", "connector/segment", "shmstore"},
		reason: "it is the connector type of configurations, over transports that know no configuration; the bus uses it as an exchange, through the config that opens it",
	},
	{
		part:   "connector/bridge",
		may:    []string{"connector", "internal"},
		reason: "it calls another program, which has the clients of stores; it shares memory and a socket with that program, and nothing with the bus",
	},
	{
		part:   "internal/exchange",
		may:    []string{"connector", "connector/ring", "internal/accounts", "internal/wire", "shmstore", "internal"},
		reason: "it is a table of values and the memory that one process puts them into; the messages for its remote users belong to the bus",
	},
	{
		part:   "internal/directory",
		may:    []string{"cudaipc", "cudaipc/lane", "internal"},
		reason: "it is the table behind a lane's contract of a directory; its clients are publishers, and the messages that query it belong to the bus",
	},
	{
		part:   "bus",
		may:    []string{"connector", "connector/flow", "connector/ring", "cudaipc", "cudaipc/lane", "codec/bundle", "actors", "shmstore", "ringbuf", "codec", "messages", "internal/directory", "internal/exchange", "internal/lastactive", "internal/accounts", "internal/wire", "internal"},
		reason: "a program can build a bus from code alone, without configuration files, sockets or the command; the host's exchange is a transport over ring's table, and an edge with a connector is a path of flow, as between any two stages; the bus links no other transports",
	},
	{
		part:   "internal/hostnode",
		may:    []string{"bus", "connector", "cudaipc", "cudaipc/lane", "internal/wire", "messages", "shmstore", "internal"},
		reason: "it is the code that a host and a node share, as values: it has no connection and starts no goroutine",
	},
	{
		part:   "bus/host",
		may:    []string{"bus", "connector", "connector/ring", "cudaipc/lane", "codec", "messages", "shmstore", "internal/directory", "internal/exchange", "internal/lastactive", "internal/accounts", "internal/peer", "internal/hostnode", "internal/wire", "internal"},
		reason: "it is one end of a process boundary, and knows the other end only by its messages",
	},
	{
		part:   "bus/node",
		may:    []string{"bus", "connector", "cudaipc", "cudaipc/lane", "codec", "messages", "shmstore", "connector/ring", "internal/directory", "internal/exchange", "internal/lastactive", "internal/accounts", "internal/peer", "internal/hostnode", "internal/wire", "internal"},
		reason: "it is the other end of a process boundary, and knows the host only by its messages",
	},
	{
		part:   "internal/testbus",
		may:    []string{"bus", "codec", "cudaipc", "cudaipc/emul", "cudaipc/lane", "cudaipc/pool", "shmstore"},
		reason: "it is for tests of package bus and of the packages below it",
	},
	{
		part:   "bus/tensorqueue",
		may:    []string{"bus", "bus/host", "bus/node", "cudaipc", "cudaipc/lane", "codec", "shmstore", "internal"},
		reason: "it is a bus of one stage, for programs without a pipeline: it uses only the public interface of the bus",
	},
	{
		part:   "config",
		may:    []string{"bus", "connector", "connector/flow", "codec/omni", "actors", "shmstore", "ringbuf", "codec", "messages", "internal"},
		reason: "configuration describes a bus; the command line decides what to do with it",
	},
	{
		part:   "internal/host/child",
		reason: "it runs processes and does not know stages: the owner of a process defines its purpose",
	},
	{
		part:   "internal/host/doctor",
		reason: "it queries only the kernel, so that it works where nothing else does",
	},
	{
		part:   "internal/host",
		may:    []string{"internal/host/child", "config", "bus", "bus/host", "bus/node", "connector", "cudaipc/lane", "actors", "shmstore", "codec", "messages", "internal"},
		reason: "it is a program around the bus, only for the command; a program that embeds the bus links no process manager and no web server",
	},
	{
		part:   "bench",
		may:    []string{"bus", "bus/host", "bus/node", "bus/tensorqueue", "connector", "connector/bridge", "cudaipc", "cudaipc/cuda", "cudaipc/emul", "cudaipc/lane", "cudaipc/pool", "shmstore", "codec", "codec/omni", "messages", "internal"},
		reason: "it measures the bus as an embedding program sees it, and is a module of its own, which no part imports",
	},
	{
		part:   "cmd",
		may:    []string{"internal/host", "internal/host/doctor", "config", "connector", "connector/bridge", "connector/shm", "cudaipc", "cudaipc/cuda", "bus", "bus/host", "bus/node", "bus/tensorqueue", "actors", "shmstore", "ringbuf", "codec", "codec/omni", "codec/python", "messages", "internal"},
		reason: "commands are the top layer",
	},
	{
		part:   "examples",
		may:    []string{"config", "bus", "bus/host", "bus/node", "connector", "cudaipc", "cudaipc/cuda", "cudaipc/emul", "cudaipc/lane", "actors", "shmstore", "shmstore/keyed", "ringbuf", "codec", "codec/omni", "codec/proto", "codec/python", "messages"},
		reason: "an example may use only packages that its reader can import as well",
	},
}

// ban keeps packages from outside out of the parts it lists.
type ban struct {
	path   string   // an import path and everything below it
	from   []string // the parts that must not import it; empty: all
	except []string // the parts that may
	tests  bool     // whether the ban covers test files
	reason string
}

// socketless is why package bus, and the layers below it, use no socket.
const socketless = "a bus runs in one process; sockets and other processes are for bus/host and bus/node"

var bans = []ban{
	{
		path:   "net",
		from:   []string{"bus", "actors", "connector", "codec", "messages", "ringbuf"},
		except: []string{"bus/host", "bus/node", "connector/bridge"},
		reason: socketless,
	},
	{
		path:   "golang.org/x/sys/unix",
		from:   []string{"bus", "actors", "codec", "messages"},
		except: []string{"bus/host", "bus/node"},
		reason: socketless,
	},
	{
		path:   "github.com/asynkron/protoactor-go",
		except: []string{"actors", "bench", "examples"},
		reason: "its stock mailboxes and Stop lose messages in silence; only package actors handles that. Use the exports of actors",
	},
	{
		path:   "github.com/ebitengine/purego",
		except: []string{"cudaipc/cuda"},
		reason: "it makes a program dynamically linked, so it needs the build tag of cudaipc/cuda",
	},
	{
		path:   "net/http",
		except: []string{"internal/host", "examples"},
		reason: "the library serves nothing; return figures as values, which the host, or the program, serves",
	},
	{
		path:   "github.com/prometheus",
		except: []string{"internal/host"},
		reason: "the library counts and does not export; return figures as values, which internal/host turns into metrics",
	},
	{
		path:   "os",
		from:   []string{"ringbuf"},
		reason: "the ring works on any byte slice, so that its tests need no file and no process. Do it in shmstore",
	},
	{
		path:   "syscall",
		from:   []string{"ringbuf"},
		reason: "the ring works on any byte slice, so that its tests need no file and no process. Do it in shmstore",
	},
	{
		path:   "golang.org/x/sys",
		from:   []string{"ringbuf"},
		reason: "the ring works on any byte slice, so that its tests need no file and no process. Do it in shmstore",
	},
	{
		path:   "log/slog",
		from:   []string{"ringbuf"},
		reason: "the ring sits on the hot path and reports by return value. Log in the caller",
	},
	{
		path:   "github.com/vmihailenco/msgpack/v5",
		except: []string{"codec"},
		reason: "codec bounds the decoding of bytes from outside. Use the exports of codec",
	},
	{
		path:   "github.com/goccy/go-yaml",
		except: []string{"config"},
		reason: "config turns YAML into checked values with a line number for each mistake. Use the exports of config",
	},
	{
		path:   "github.com/santhosh-tekuri/jsonschema",
		reason: "config checks files itself, with a line number for each mistake; the library is only for tests of the schema that config writes for editors",
	},
	{
		path:   "github.com/santhosh-tekuri/jsonschema",
		except: []string{"config"},
		tests:  true,
		reason: "one schema is written here, and config tests it",
	},
	{
		path:   "github.com/spf13/cobra",
		except: []string{"cmd", "bench/cmd"},
		reason: "flags are for commands",
	},
	{
		path:   "encoding/gob",
		tests:  true,
		reason: "payloads come from other programs and other languages; gob is only for Go, and is not safe for hostile bytes. Use codec",
	},
	{
		path:   "github.com/stretchr/testify",
		tests:  true,
		reason: "tests use the standard library and go-cmp, so that all of them read alike",
	},
}

// closures bans packages from everything that a package pulls in, however far
// down. net is not here: protoactor-go brings it along.
var closures = []ban{
	{
		path:   module + "/internal/peer",
		from:   []string{"bus"},
		reason: socketless,
	},
	{
		path:   "testing",
		from:   []string{"bus"},
		reason: "the testing package registers flags in the program that embeds the bus; keep helpers for tests in packages that only tests import",
	},
}

// strangers are modules that go.mod does not name, neither for itself nor for what others
// bring along. The benchmarks have a go.mod of their own, which does.
var strangers = []ban{
	{path: "github.com/nats-io", reason: "a program that embeds the bus on one host must not depend on a network stack, nor on the programs that bench compares"},
	{path: "google.golang.org/grpc", reason: "a program that embeds the bus on one host must not depend on a network stack, nor on the programs that bench compares"},
	{path: module + "/bench", reason: "the measured module must not depend on the measuring one"},
}
