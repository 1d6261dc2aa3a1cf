package segment_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/segment"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// omniVariable lists directories that each have a package vllm_omni, of any version. Without it,
// testdata/peer.py implements the format with Python's standard library. The interpreter needs the
// packages of the connector's encoding: msgspec and numpy.
const omniVariable = "OMNIBUS_VLLM_OMNI"

// python is the other end of an edge: a process with testdata/peer.py.
type python struct {
	*pythontest.Process
	generation int
	errors     bytes.Buffer

	mu sync.Mutex // held from a request to its answer
}

func startPython(t *testing.T, which string) *python {
	t.Helper()
	p := &python{}
	cmd := pythontest.Command(t, "testdata/peer.py", which)
	cmd.Stderr = &p.errors
	p.Process = pythontest.Start(t, cmd)
	t.Cleanup(func() {
		// Its helper process has the same standard error, and ends with it.
		_ = p.End()
		if t.Failed() {
			t.Logf("Python wrote: %s", p.errors.String())
		}
	})
	p.generation = p.ask(t, order{Op: "hello"}).Generation
	return p
}

// An order is a command to the other end, and an answer its result.
type order struct {
	Op   string             `json:"op"`
	Key  string             `json:"key,omitempty"`
	Seed int                `json:"seed"`
	Size int                `json:"size"`
	Meta connector.Metadata `json:"meta,omitempty"`
}

type answer struct {
	Error      string             `json:"error"`
	Generation int                `json:"generation"`
	OK         bool               `json:"ok"`
	Meta       connector.Metadata `json:"meta"`
	Found      bool               `json:"found"`
	Equal      bool               `json:"equal"`
}

func (p *python) ask(t *testing.T, o order) answer {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Tell(o)
	var a answer
	err := p.Answer(&a)
	if err != nil || a.Error != "" {
		t.Errorf("Python, %s of %q: %v %s", o.Op, o.Key, err, a.Error)
	}
	return a
}

func (p *python) put(t *testing.T, key string, seed, size int) connector.Metadata {
	t.Helper()
	a := p.ask(t, order{Op: "put", Key: key, Seed: seed, Size: size})
	if !a.OK {
		t.Fatalf("Python did not put %q", key)
	}
	return a.Meta
}

func (p *python) get(t *testing.T, key string, meta connector.Metadata, seed, size int) {
	t.Helper()
	if a := p.ask(t, order{Op: "get", Key: key, Meta: meta, Seed: seed, Size: size}); !a.Found || !a.Equal {
		t.Fatalf("Python, get of %q, %d bytes: found %v, equal %v", key, size, a.Found, a.Equal)
	}
}

func (p *python) wantNone(t *testing.T, key string, meta connector.Metadata) {
	t.Helper()
	if a := p.ask(t, order{Op: "get", Key: key, Meta: meta}); a.Found {
		t.Errorf("Python found %q", key)
	}
}

// peers calls a test for each available kind of other end.
func peers(t *testing.T, run func(t *testing.T, which string)) {
	each(t, []string{"by key", "by metadata"}, run)
}

// keyed calls a test for each other end that finds values by key; why is the reason to skip the
// others.
func keyed(t *testing.T, why string, run func(t *testing.T, p *python)) {
	each(t, []string{"by key"}, func(t *testing.T, which string) {
		p := startPython(t, which)
		if p.generation == segment.ByMetadata {
			t.Skip("this vLLM-Omni is of the older generation: " + why)
		}
		run(t, p)
	})
}

func each(t *testing.T, plain []string, run func(t *testing.T, which string)) {
	for _, w := range append(plain, filepath.SplitList(os.Getenv(omniVariable))...) {
		t.Run(strings.TrimPrefix(w, "/"), func(t *testing.T) { run(t, w) })
	}
}

// pattern returns a value's contents, which both sides compute.
func pattern(seed, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte((seed + i) % 251)
	}
	return b
}

// uniquePrefix returns a prefix for keys of this test: all tests share the directory.
func uniquePrefix(t *testing.T) string {
	t.Helper()
	prefix := fmt.Sprintf("omnibus-test-%d-%d", os.Getpid(), serial.Add(1))
	t.Cleanup(func() {
		left, err := filepath.Glob("/dev/shm/*" + prefix + "*")
		if err != nil || len(left) > 0 {
			t.Errorf("left: %q, %v", left, err)
		}
		for _, name := range left {
			_ = os.Remove(name)
		}
	})
	return prefix
}
