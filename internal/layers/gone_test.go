package layers

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// gone is a thing that was deleted. It comes back only with a decision record, which
// takes its line out.
type gone struct {
	path   string // a file or folder of the repository; empty: name is looked for
	name   string // a package, or what a file that is no test declares: an expression for all of it
	in     string // the part in which the name is looked for; empty: in all
	reason string
}

var goners = []gone{
	{
		name:   "omnibuspb",
		reason: "no program read or wrote deliveries in Protobuf; processes speak internal/wire",
	},
	{
		path:   "messages/omnibus.proto",
		reason: "no program read or wrote deliveries in Protobuf; processes speak internal/wire",
	},
	{
		path:   "tools/protogen",
		reason: "the repository has no schema of its own to generate code from; codec/proto is for those of other programs",
	},
	{
		in:     "messages",
		name:   "ToProto|FromProto|ParseDelivery|HandleToProto|HandleFromProto",
		reason: "a delivery has one form outside its process, that of the messages of internal/wire",
	},
	{
		in:     "bus",
		name:   "FinishWithoutHost",
		reason: "a node that has lost its host may have been given up by it, so its tasks are over, and their results have no caller",
	},
	{
		in:     "internal/wire",
		name:   "(Kind)?(Await|Cut)",
		reason: "they told nodes without a host which streams go on; such nodes end their tasks",
	},
	{
		in:     "shmstore/lane",
		name:   "Interrupt|ErrInterrupted|(New|Open)?Events?|Waker|Park|Wait",
		reason: "a lane waits for nothing: a sender without room uses the socket, and a receiver sleeps on that",
	},
	{
		in:     "bus",
		name:   "Fault.*",
		reason: "a library does not break its own promises on request; a test breaks them in export_test.go, or with a stage that fails",
	},
	{
		path:   "internal/duplex",
		reason: "a pair of nodes is a connection of internal/peer, like a node and its host",
	},
	{
		in:     "internal/wire",
		name:   "(Kind)?Meet",
		reason: "two nodes meet by lane, as a node and its host do",
	},
	{
		path:   "connector/posix",
		reason: "a store that processes open by its name has books of its own, and no accountant: values go through a host's exchange, or through segments",
	},
	{
		path:   "clients/python/src/omnibus/connector/posix",
		reason: "a store that processes open by its name has books of its own, and no accountant: values go through a host's exchange, or through segments",
	},
	{
		in:     "shmstore",
		name:   "OfferReader|OpenReader|ResetReader|decodeSuperblock",
		reason: "readers that open a store by its name have no accountant: a reader is handed the descriptors, by Attach",
	},
	{
		path:   "shmstore/shelf",
		reason: "values that nodes take from each other by locks have books of their own beside the host's account: values under keys have one path, through the exchange",
	},
	{
		in:     "internal/wire",
		name:   "(Kind)?(Shelf|Shelved|ShelfAt|Shelve|Taken)|FetchShelf",
		reason: "values that nodes take from each other by locks have books of their own beside the host's account: values under keys have one path, through the exchange",
	},
	{
		in:     "shmstore",
		name:   "DeleteKey|PutVec|PutValue|ReaderError",
		reason: "an object has a handle and no name; keys, and the encoding of values, are for package keyed",
	},
	{
		in:     "ringbuf",
		name:   "StrictFIFO|NoHeaders|View|Access(ID)?|Reclaim|RoomError",
		reason: "the store evicts by age and knows where its objects lie; a ring only gives out room and takes it back",
	},
	{
		path:   "codec/vllm",
		reason: "nothing here speaks to the sockets of vLLM's engine core, which its messages were for",
	},
	{
		path:   "connector/named",
		reason: "it was a key under another word: Put and Get of a connector take one, and Peek leaves the value there",
	},
}

func TestGoneStaysGone(t *testing.T) {
	report(t, checkGoneNames(readTree(t), goners))
	report(t, checkGonePaths(moduleRoot(t), goners))
}

func checkGoneNames(folders []folder, all []gone) []string {
	var broken []string
	for _, g := range all {
		if g.path != "" {
			continue
		}
		name := regexp.MustCompile("^(?:" + g.name + ")$")
		for _, dir := range folders {
			if g.in != "" && !within(dir.path, g.in) {
				continue
			}
			for _, f := range dir.files {
				if f.isTest() {
					continue
				}
				for _, declared := range append([]string{f.pkg}, f.names...) {
					if name.MatchString(declared) {
						broken = append(broken, fmt.Sprintf("%s has %s, which was deleted: %s", at(dir, f), declared, g.reason))
					}
				}
			}
		}
	}
	return broken
}

func checkGonePaths(root string, all []gone) []string {
	var broken []string
	for _, g := range all {
		if g.path == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(g.path))); err == nil {
			broken = append(broken, fmt.Sprintf("%s is there, which was deleted: %s", g.path, g.reason))
		}
	}
	return broken
}

// TestGoneIsFound: each line of the table finds what it is about, and nothing else.
func TestGoneIsFound(t *testing.T) {
	const src = `package omnibuspb

type JoinOptions struct {
	FinishWithoutHost bool
	Rejoin            bool
}

type FaultKind int

const (
	FaultLose FaultKind = iota
	KindCut
)

type Receiver interface{ Interrupt() }

func ToProto() { faultless := 1; _ = faultless }
`
	f, err := parseFile("a.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string][]string{
		"messages":      {"omnibuspb", "ToProto"},
		"bus":           {"omnibuspb", "FinishWithoutHost", "FaultKind", "FaultLose"},
		"internal/wire": {"omnibuspb", "KindCut"},
		"shmstore/lane": {"omnibuspb", "Interrupt"},
		"codec":         {"omnibuspb"},
	} {
		broken := checkGoneNames([]folder{{path: dir, files: []file{f}}}, goners)
		for i := range max(len(broken), len(want)) {
			if i >= len(broken) || i >= len(want) || !strings.HasPrefix(broken[i], dir+"/a.go has "+want[i]+",") {
				t.Errorf("%s: got %q, want one for each of %q", dir, broken, want)
				break
			}
		}
	}
	f.name = "a_test.go"
	if broken := checkGoneNames([]folder{{path: "bus", files: []file{f}}}, goners); len(broken) > 0 {
		t.Errorf("in a test: %q", broken)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "tools", "protogen"), 0o700); err != nil {
		t.Fatal(err)
	}
	if broken := checkGonePaths(root, goners); len(broken) != 1 || !strings.HasPrefix(broken[0], "tools/protogen is there") {
		t.Errorf("got %q, want tools/protogen", broken)
	}
}
