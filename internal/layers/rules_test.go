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

// layers lists every part, lowest first. A part that is not listed fails, so
// that nobody adds one without deciding where it belongs.
var layers = []layer{
	{
		part:   "internal",
		reason: "internal packages are small leaves that every layer shares; one that needs a layer belongs into that layer",
	},
	{
		part:   "internal/wire",
		may:    []string{"messages"},
		reason: "it turns messages into bytes and back, for a host that is not believed and a client that is not: it knows no socket, no store and no bus, so that its tests need none",
	},
	{
		part:   "internal/lastactive",
		may:    []string{"actors"},
		reason: "it says which connection to look at; what a connection is, its users know",
	},
	{
		part:   "internal/peer",
		may:    []string{"internal/wire", "shmstore", "internal"},
		reason: "it moves packets and descriptors and watches processes; what they are for is the bus's business",
	},
	{
		part:   "internal/accounts",
		may:    []string{"codec", "internal/wire", "shmstore", "internal"},
		reason: "it says which process has which payload, and in which memory: deliveries, requests and connections are for the layers above, which its interfaces name",
	},
	{
		part:   "messages",
		reason: "messages say what travels and know nobody who sends or reads them; every layer above ringbuf imports them",
	},
	{
		part:   "codec/internal",
		may:    []string{"codec", "codec/python", "internal"},
		reason: "it is what the serializers share; what a format means is for the package of that format",
	},
	{
		part:   "codec",
		may:    []string{"codec/internal", "internal"},
		reason: "a codec turns bytes into values; it knows neither where the bytes lie nor how they came",
	},
	{
		part:   "codec/proto",
		may:    []string{"codec"},
		reason: "it turns any message into bytes; those of this module are no others to it. Programs register it, and no layer may depend on it",
	},
	{
		part:   "codec/python",
		may:    []string{"codec", "codec/internal"},
		reason: "it is plain values, whatever format carries them",
	},
	{
		part:   "codec/omni",
		may:    []string{"codec", "codec/python", "codec/internal"},
		reason: "it is a leaf beside codec for the programs that need the format; a bus of others does not pay for it",
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
		reason: "it gives a store's objects keys, and processes a path to it, for programs that have no bus, and for those beside one",
	},
	{
		part:   "cudaipc",
		reason: "it is what a lane asks of a GPU; who asks, and how memory is shared out, is for those above",
	},
	{
		part:   "cudaipc/tlsf",
		reason: "it arranges ranges of a memory that it never touches",
	},
	{
		part:   "cudaipc/drivertest",
		may:    []string{"cudaipc"},
		reason: "the suite asks no driver for more than the contract says",
	},
	{
		part:   "cudaipc/emul",
		may:    []string{"cudaipc", "internal"},
		reason: "it is a driver, and knows nobody who uses one",
	},
	{
		part:   "cudaipc/cuda",
		may:    []string{"cudaipc"},
		reason: "it is a driver, and knows nobody who uses one",
	},
	{
		part:   "codec/bundle",
		may:    []string{"codec", "codec/internal"},
		reason: "it says where the bytes of a tensor lie, whatever that memory is",
	},
	{
		part:   "cudaipc/pool",
		may:    []string{"cudaipc", "cudaipc/tlsf", "shmstore", "internal"},
		reason: "it gives a store a second memory; what lies in it, and who is told, is the lane's business",
	},
	{
		part:   "cudaipc/lane",
		may:    []string{"cudaipc", "cudaipc/pool", "codec", "codec/bundle", "shmstore", "messages", "internal"},
		reason: "it carries tensors between processes that somebody has introduced: the bus, or a test",
	},
	{
		part:   "actors",
		may:    []string{"shmstore", "ringbuf", "codec", "messages", "internal"},
		reason: "actors run stages; which stages there are, and on which edges, is for the bus to say",
	},
	{
		part:   "connector",
		may:    []string{"codec"},
		reason: "the contract knows no transport: each has a folder of its own, and a program links those that it names",
	},
	{
		part:   "connector/connectortest",
		may:    []string{"connector", "codec"},
		reason: "the suite asks no transport for more than the contract says",
	},
	{
		part:   "connector/flow",
		may:    []string{"connector"},
		reason: "handing over works the same through every transport: it asks the registry for them",
	},
	{
		part:   "connector/segment",
		may:    []string{"connector", "internal"},
		reason: "it is another program's format: it shares names in a file system and nothing of this project",
	},
	{
		part:   "connector/ring",
		may:    []string{"connector", "actors", "shmstore", "codec", "messages", "internal"},
		reason: "it is the store behind keys, with the writer actor that every store has; how processes reach each other is for whoever gives it an exchange",
	},
	{
		part:   "connector/shm",
		may:    []string{"connector", "connector/ring", "connector/segment", "shmstore"},
		reason: "it is the type that a configuration names, over transports that know none; the bus reaches it as an exchange, through the config that opens it",
	},
	{
		part:   "connector/bridge",
		may:    []string{"connector", "internal"},
		reason: "it asks another program, which has the clients of stores; it shares memory and a socket with that, and nothing with the bus",
	},
	{
		part:   "internal/exchange",
		may:    []string{"connector", "connector/ring", "internal/accounts", "internal/wire", "shmstore", "internal"},
		reason: "it is a table of values and the memory that one process puts them into; the messages by which others ask it are the bus's business",
	},
	{
		part:   "internal/directory",
		may:    []string{"cudaipc", "cudaipc/lane", "internal"},
		reason: "it is the table behind a lane's contract of a directory; a client is for it what can publish, and the messages that ask it are the bus's business",
	},
	{
		part:   "bus",
		may:    []string{"connector", "connector/flow", "connector/ring", "cudaipc", "cudaipc/lane", "codec/bundle", "actors", "shmstore", "ringbuf", "codec", "messages", "internal/directory", "internal/exchange", "internal/lastactive", "internal/accounts", "internal/wire", "internal"},
		reason: "a program can build a bus from code alone, without configuration files, sockets or the command; the host's exchange is a transport over ring's table, and an edge with a connector is a path of flow, as between any two stages; other transports are not for the bus to link",
	},
	{
		part:   "internal/hostnode",
		may:    []string{"bus", "connector", "cudaipc", "cudaipc/lane", "internal/wire", "messages", "shmstore", "internal"},
		reason: "it is what a host and a node say alike, as values: it has no connection and starts nothing",
	},
	{
		part:   "bus/host",
		may:    []string{"bus", "connector", "connector/ring", "cudaipc/lane", "codec", "messages", "shmstore", "internal/directory", "internal/exchange", "internal/lastactive", "internal/accounts", "internal/peer", "internal/hostnode", "internal/wire", "internal"},
		reason: "it is one end of a process boundary, and knows of the other what that says",
	},
	{
		part:   "bus/node",
		may:    []string{"bus", "connector", "cudaipc", "cudaipc/lane", "codec", "messages", "shmstore", "connector/ring", "internal/directory", "internal/exchange", "internal/lastactive", "internal/accounts", "internal/peer", "internal/hostnode", "internal/wire", "internal"},
		reason: "it is the other end of a process boundary, and knows of the host what that says",
	},
	{
		part:   "internal/testbus",
		may:    []string{"bus", "codec", "cudaipc", "cudaipc/emul", "cudaipc/lane", "cudaipc/pool", "shmstore"},
		reason: "it is for tests of package bus and of those below it",
	},
	{
		part:   "bus/tensorqueue",
		may:    []string{"bus", "bus/host", "bus/node", "cudaipc", "cudaipc/lane", "codec", "shmstore", "internal"},
		reason: "it is a bus of one stage, for programs without a pipeline: what it needs of the bus, any program can have",
	},
	{
		part:   "config",
		may:    []string{"bus", "connector", "connector/flow", "codec/omni", "actors", "shmstore", "ringbuf", "codec", "messages", "internal"},
		reason: "configuration describes a bus; the command line decides what to do with it",
	},
	{
		part:   "internal/host/child",
		reason: "it runs processes and knows nothing of stages: what a process is for, its owner says",
	},
	{
		part:   "internal/host/doctor",
		reason: "it asks the kernel and nobody else, so that it works where nothing else does",
	},
	{
		part:   "internal/host",
		may:    []string{"internal/host/child", "config", "bus", "bus/host", "bus/node", "connector", "cudaipc/lane", "actors", "shmstore", "codec", "messages", "internal"},
		reason: "it is a program around the bus, for the command alone; whoever embeds the bus gets no process manager and no web server",
	},
	{
		part:   "bench",
		may:    []string{"bus", "bus/host", "bus/node", "bus/tensorqueue", "connector", "connector/bridge", "cudaipc", "cudaipc/cuda", "cudaipc/emul", "cudaipc/lane", "cudaipc/pool", "shmstore", "codec", "codec/omni", "messages", "internal"},
		reason: "it measures what a program sees that embeds the bus, and lies in a module of its own, which no part imports",
	},
	{
		part:   "cmd",
		may:    []string{"internal/host", "internal/host/doctor", "config", "connector", "connector/bridge", "connector/shm", "cudaipc", "cudaipc/cuda", "bus", "bus/host", "bus/node", "bus/tensorqueue", "actors", "shmstore", "ringbuf", "codec", "codec/omni", "codec/python", "messages", "internal"},
		reason: "commands stand at the top",
	},
	{
		part:   "examples",
		may:    []string{"config", "bus", "bus/host", "bus/node", "connector", "cudaipc", "cudaipc/cuda", "cudaipc/emul", "cudaipc/lane", "actors", "shmstore", "shmstore/keyed", "ringbuf", "codec", "codec/omni", "codec/proto", "codec/python", "messages"},
		reason: "an example may use only what its reader can import too",
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
		reason: "its stock mailboxes and Stop lose messages in silence; package actors alone deals with that. Use what actors exports",
	},
	{
		path:   "github.com/ebitengine/purego",
		except: []string{"cudaipc/cuda"},
		reason: "it makes a program dynamically linked, so it stands behind the build tag of cudaipc/cuda",
	},
	{
		path:   "net/http",
		except: []string{"internal/host", "examples"},
		reason: "the library serves nothing; hand figures out as values and let the host, or the program, serve them",
	},
	{
		path:   "github.com/prometheus",
		except: []string{"internal/host"},
		reason: "the library counts and does not export; hand figures out as values, which internal/host turns into metrics",
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
		reason: "decoding outside bytes has its bounds in codec. Use what codec exports",
	},
	{
		path:   "github.com/goccy/go-yaml",
		except: []string{"config"},
		reason: "config turns YAML into checked values with a line number for each mistake. Use what config exports",
	},
	{
		path:   "github.com/santhosh-tekuri/jsonschema",
		reason: "config checks files itself, with a line number for each mistake; the library only tests the schema that config writes down for editors",
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
		reason: "payloads come from other programs and other languages; gob is for Go alone and is not made for hostile bytes. Use codec",
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
	{path: "github.com/nats-io", reason: "a program that embeds the bus on one host must not pay for a network stack, nor for what it is measured against"},
	{path: "google.golang.org/grpc", reason: "a program that embeds the bus on one host must not pay for a network stack, nor for what it is measured against"},
	{path: module + "/bench", reason: "what is measured must not need what measures it"},
}
