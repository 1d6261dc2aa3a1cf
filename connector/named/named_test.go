package named_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/named"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

var edge = connector.Edge{From: "tokenizer", To: "scheduler"}

type metadata struct {
	Text   string
	Tokens []int
}

func TestRing(t *testing.T) {
	r, err := ring.New(ring.Options{Store: shmstore.Options{ArenaBytes: 1 << 20, Memory: shmstore.Heap}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	run(t, func() connector.Transport { return r.End() })
}

// run tests values whose two sides are two ends.
func run(t *testing.T, end func() connector.Transport) {
	writer, reader := named.New(end(), nil, edge), named.New(end(), nil, edge)
	defer writer.Close()
	defer reader.Close()
	write := func(request string, value metadata) string {
		t.Helper()
		name, err := writer.Write(t.Context(), request, value)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	read := func(name string, unlink bool, want metadata) {
		t.Helper()
		v, err := reader.Read(t.Context(), name, unlink)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Release()
		var got metadata
		if err := v.Decode(&got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	none := func(name string) {
		t.Helper()
		for _, unlink := range []bool{false, true} {
			if _, err := reader.Read(t.Context(), name, unlink); !errors.Is(err, connector.ErrNotFound) {
				t.Errorf("read of what is gone: %v", err)
			}
		}
	}
	first, second := metadata{"first", []int{1, 2}}, metadata{"second", []int{3}}

	one, two := write("r1", first), write("r2", second)
	if one == two || connector.Request(edge, one) != "r1" {
		t.Errorf("the values have the names %q and %q", one, two)
	}
	read(one, false, first)
	read(one, false, first)
	read(one, true, first)
	none(one)
	read(two, true, second)

	if again := write("r1", first); again != one {
		t.Errorf("the value of r1 has the names %q and %q", one, again)
	}
	write("r1", second)
	read(one, true, second)
	none(one)

	for name, side := range map[string]*named.Values{"writer": writer, "reader": reader} {
		write("r1", first)
		for range 2 {
			if err := side.Cleanup(t.Context(), one); err != nil {
				t.Errorf("cleanup by the %s: %v", name, err)
			}
		}
		none(one)
	}

	if _, err := writer.Write(t.Context(), "a/b", first); !errors.Is(err, connector.ErrKey) {
		t.Errorf("a request that is no name: %v", err)
	}

	write("r1", first)
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	none(one)
	if _, err := writer.Write(t.Context(), "r1", first); !errors.Is(err, connector.ErrClosed) {
		t.Errorf("write when it is closed: %v", err)
	}
}

// inMetadata is a transport that leaves all values in their metadata.
type inMetadata struct{ connector.Transport }

func (inMetadata) Put(_ context.Context, _ connector.Edge, _ string, size int, fill func([]byte) error) (connector.Metadata, error) {
	return connector.Inline(size, fill)
}

// TestWithoutAName: a value that the transport leaves in its metadata has no name.
func TestWithoutAName(t *testing.T) {
	values := named.New(inMetadata{}, codec.RawSerializer{}, edge)
	if _, err := values.Write(t.Context(), "r1", []byte("abc")); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("write: %v", err)
	}
	if _, err := values.Read(t.Context(), "r1", false); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("read by a transport that can only take: %v", err)
	}
}
