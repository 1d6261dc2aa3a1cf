package connector_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

var edge = connector.Edge{From: "thinker", To: "talker"}

// open makes a connector over a ring; payloads of up to inline bytes are in the metadata.
func open(t *testing.T, inline int, serializer codec.Serializer) *connector.Connector {
	t.Helper()
	r, err := ring.New(ring.Options{Store: shmstore.Options{ArenaBytes: 1 << 20, Memory: shmstore.Heap}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	var registry connector.Registry
	err = registry.Register(connector.Type{
		Name:    "Test",
		Options: []connector.Option{{Key: "wait", Kind: connector.Duration, Default: time.Second}},
		Open: func(_ context.Context, config connector.Config) (connector.Transport, error) {
			if config.Log == nil {
				t.Error("no log")
			}
			return small{r.End(), inline}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := registry.Open(t.Context(), "Test", connector.Options{Serializer: serializer})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// small leaves small payloads in the metadata.
type small struct {
	connector.Transport
	most int
}

func (s small) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func([]byte) error) (connector.Metadata, error) {
	if size <= s.most {
		return connector.Inline(size, fill)
	}
	return s.Transport.Put(ctx, edge, key, size, fill)
}

func TestValues(t *testing.T) {
	type request struct {
		Text   string
		Tokens []int
	}
	want := request{"hello", []int{1, 2, 3}}
	for name, inline := range map[string]int{"inline": 1000, "in the transport": 0} {
		t.Run(name, func(t *testing.T) {
			c := open(t, inline, nil)
			size, meta, err := c.Put(t.Context(), edge, "r1", want)
			if err != nil {
				t.Fatal(err)
			}
			_, inMeta := meta["inline_bytes"]
			if inMeta != (inline > 0) || meta["size"] != size {
				t.Errorf("a put of %d bytes returned %v", size, meta)
			}
			v, err := c.Get(t.Context(), edge, "r1", meta)
			if err != nil {
				t.Fatal(err)
			}
			var got request
			if err := v.Decode(&got); err != nil || v.Size() != size {
				t.Errorf("decode of %d bytes: %v", v.Size(), err)
			}
			v.Release()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// untold is a transport that returns no metadata: its Get needs the key alone.
type untold struct{ connector.Transport }

func (u untold) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func([]byte) error) (connector.Metadata, error) {
	_, err := u.Transport.Put(ctx, edge, key, size, fill)
	return nil, err
}

// TestNoMetadata: a transport may return no metadata.
func TestNoMetadata(t *testing.T) {
	r, err := ring.New(ring.Options{Store: shmstore.Options{ArenaBytes: 1 << 20, Memory: shmstore.Heap}})
	if err != nil {
		t.Fatal(err)
	}
	c := connector.New("Test", untold{r.End()}, nil)
	size, meta, err := c.Put(t.Context(), edge, "r1", "value")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(connector.Metadata{"size": size}, meta); diff != "" {
		t.Error(diff)
	}
	v, err := c.Get(t.Context(), edge, "r1", meta)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := v.Decode(&got); err != nil || got != "value" {
		t.Errorf("got %q: %v", got, err)
	}
	v.Release()
	if err := errors.Join(c.Close(), r.Close()); err != nil {
		t.Error(err)
	}
}

// TestInPlace: a value of a known size is encoded once, into the memory that Get returns.
func TestInPlace(t *testing.T) {
	c := open(t, 0, codec.TensorSerializer{})
	tensor := codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{4, 4}, Data: make([]byte, 64)}
	_, meta, err := c.Put(t.Context(), edge, "r1", tensor)
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Get(t.Context(), edge, "r1", meta)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	var got codec.Tensor
	if err := v.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if data := got.Data; &data[len(data)-1] != &v.Bytes()[len(v.Bytes())-1] {
		t.Error("the tensor was copied")
	}
	if allocations := testing.AllocsPerRun(10, func() {
		_, _, _ = c.Put(t.Context(), edge, "r2", tensor)
	}); allocations > 20 {
		t.Errorf("%v allocations a put", allocations)
	}
}

func TestHealth(t *testing.T) {
	c := open(t, 10, codec.RawSerializer{})
	put := func(key string, size int) connector.Metadata {
		_, meta, err := c.Put(t.Context(), edge, key, make([]byte, size))
		if err != nil {
			t.Fatal(err)
		}
		return meta
	}
	get := func(key string, meta connector.Metadata) {
		if v, err := c.Get(t.Context(), edge, key, meta); err == nil {
			v.Release()
		}
	}
	get("inline", put("inline", 10))
	get("shared", put("shared", 100))
	get("missing", nil)
	past, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	if _, err := c.Await(past, edge, "never", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("await past the deadline: %v", err)
	}
	_, _, err := c.Put(t.Context(), edge, "unencodable", 7)
	if !errors.Is(err, connector.ErrEncode) {
		t.Errorf("put of a value that raw cannot encode: %v", err)
	}
	put("clean", 100)
	if err := c.Cleanup(t.Context(), "clean"); err != nil {
		t.Fatal(err)
	}
	want := connector.Health{
		Type: "Test", Open: true, Puts: 3, Gets: 2, Inline: 1, Shared: 2, BytesPut: 210, BytesGot: 110,
		Cleanups: 1, Missing: 1, Timeouts: 1, Errors: 1,
	}
	if diff := cmp.Diff(want, c.Health()); diff != "" {
		t.Error(diff)
	}
	if err := c.Close(); err != nil || c.Health().Open {
		t.Errorf("closed: %v, %v", err, c.Health().Open)
	}
}

// TestClosed: a closed connector hands over no value, also none that is in the metadata and reached
// no transport.
func TestClosed(t *testing.T) {
	c := open(t, 100, codec.RawSerializer{})
	_, meta, err := c.Put(t.Context(), edge, "small", []byte("abc"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, put := c.Put(t.Context(), edge, "small", []byte("abc"))
	_, _, putBytes := c.PutBytes(t.Context(), edge, "small", []byte("abc"))
	_, get := c.Get(t.Context(), edge, "small", meta)
	_, await := c.Await(t.Context(), edge, "small", meta)
	for op, err := range map[string]error{
		"put": put, "put of bytes": putBytes, "get": get, "await": await, "cleanup": c.Cleanup(t.Context(), "small"),
	} {
		if !errors.Is(err, connector.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", op, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}

// TestPeek: a value that was peeked at can still be got, where the transport is a Peeker.
func TestPeek(t *testing.T) {
	c := open(t, 0, codec.RawSerializer{})
	if _, _, err := c.Put(t.Context(), edge, "key", []byte("abc")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Peek(t.Context(), edge, "key", nil); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("peek by a transport that is no Peeker: %v", err)
	}
	r, err := ring.New(ring.Options{Store: shmstore.Options{ArenaBytes: 1 << 20, Memory: shmstore.Heap}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c = connector.New("Test", r.End(), codec.RawSerializer{})
	defer c.Close()
	if _, _, err := c.Put(t.Context(), edge, "key", []byte("abc")); err != nil {
		t.Fatal(err)
	}
	for _, read := range []func(context.Context, connector.Edge, string, connector.Metadata) (*connector.Value, error){c.Peek, c.Peek, c.Get} {
		v, err := read(t.Context(), edge, "key", nil)
		if err != nil || string(v.Bytes()) != "abc" {
			t.Fatalf("got %v", err)
		}
		v.Release()
	}
	if _, err := c.Peek(t.Context(), edge, "key", nil); !errors.Is(err, connector.ErrNotFound) {
		t.Errorf("peek at a value that was got: %v", err)
	}
}

func TestBadKeys(t *testing.T) {
	c := open(t, 0, codec.RawSerializer{})
	over, cancel := context.WithCancel(t.Context()) // a key that passes the check is not waited for
	cancel()
	for _, key := range []string{"", "a/b", ".", "..", "../b", strings.Repeat("k", connector.MaxKeyBytes+1), "a\x00b", "a\nb", "a\xff", "\xed\xa0\x80"} {
		_, _, putErr := c.Put(t.Context(), edge, key, []byte("x"))
		_, getErr := c.Get(t.Context(), edge, key, nil)
		_, awaitErr := c.Await(over, edge, key, nil)
		for op, err := range map[string]error{"put": putErr, "get": getErr, "await": awaitErr, "cleanup": c.Cleanup(t.Context(), key)} {
			if !errors.Is(err, connector.ErrKey) {
				t.Errorf("%s of %q: %v, want ErrKey", op, key, err)
			}
		}
	}
	_, _, err := c.Put(t.Context(), connector.Edge{From: "a", To: "\xff"}, "key", []byte("x"))
	if !errors.Is(err, connector.ErrKey) {
		t.Errorf("put on an edge to a name that is not UTF-8: %v", err)
	}
	_, _, err = c.Put(t.Context(), connector.Edge{From: "a"}, "key", []byte("x"))
	if !errors.Is(err, connector.ErrKey) {
		t.Errorf("put on an edge to nowhere: %v", err)
	}
	var e *connector.Error
	if !errors.As(err, &e) || e.Op != "put" || e.Key != "key" {
		t.Errorf("the error says %+v", e)
	}
}

func TestBadMetadata(t *testing.T) {
	c := open(t, 0, codec.RawSerializer{})
	for name, meta := range map[string]connector.Metadata{
		"inline of a number": {"inline_bytes": 7},
		"inline not base64":  {"inline_bytes": "%%%"},
		"size of another":    {"inline_bytes": []byte("abc"), "size": 4},
		"negative size":      {"inline_bytes": []byte("abc"), "size": -3},
		"size with fraction": {"inline_bytes": []byte("abc"), "size": 3.5},
		"wrapped":            {"key": map[string]any{"inline_bytes": 7}},
	} {
		if _, err := c.Get(t.Context(), edge, "key", meta); !errors.Is(err, connector.ErrMetadata) {
			t.Errorf("%s: %v, want ErrMetadata", name, err)
		}
	}
	_, err := c.Get(t.Context(), edge, "key", connector.Metadata{"inline_bytes": []byte("abc"), "size": -3})
	if err == nil || !strings.Contains(err.Error(), `"size" is the number -3, not a whole number of at least 0`) {
		t.Errorf("a size below 0: %v", err)
	}
}

func TestWrappedMetadata(t *testing.T) {
	c := open(t, 100, codec.RawSerializer{})
	_, meta, err := c.Put(t.Context(), edge, "key", []byte("abc"))
	if err != nil {
		t.Fatal(err)
	}
	var wire connector.Metadata
	b, err := json.Marshal(map[string]any{"key": meta, "another": 1})
	if err = errors.Join(err, json.Unmarshal(b, &wire)); err != nil {
		t.Fatal(err)
	}
	v, err := c.Get(t.Context(), edge, "key", wire)
	if err != nil || string(v.Bytes()) != "abc" {
		t.Errorf("got %v, %v", v, err)
	}
}

func TestSettings(t *testing.T) {
	typ := connector.Type{Name: "T", Options: []connector.Option{
		{Key: "flag", Kind: connector.Flag, Default: false},
		{Key: "mode", Kind: connector.Text, Default: "ring", Choices: []string{"ring", "segment"}},
		{Key: "bytes", Kind: connector.Integer, Default: int64(5), Max: 100},
		{Key: "wait", Kind: connector.Duration, Default: time.Second},
	}}
	s, err := typ.Settings(map[string]any{"flag": true, "bytes": 7.0, "wait": 1.5, "codec_chunk_frames": "for the stages"})
	if err != nil {
		t.Fatal(err)
	}
	if !s.Flag("flag") || s.Text("mode") != "ring" || s.Int("bytes") != 7 || s.Duration("wait") != 1500*time.Millisecond {
		t.Errorf("settings: %v", s)
	}
	s, err = typ.Settings(map[string]any{"bytes": uint32(7), "wait": 1500 * time.Millisecond}) // as a Go program has them
	if err != nil || s.Int("bytes") != 7 || s.Duration("wait") != 1500*time.Millisecond {
		t.Errorf("settings of Go's types: %v, %v", s, err)
	}
	if _, err := typ.Settings(map[string]any{"wait": -time.Second}); !errors.Is(err, connector.ErrSettings) {
		t.Errorf("a wait below 0: %v", err)
	}
	_, err = typ.Settings(map[string]any{"flag": "yes", "mode": "rings", "bytes": 101, "wait": "soon"})
	for _, want := range []string{`flag must be true or false, not "yes"`, "mode must be one of ring, segment", "bytes must be a whole number from 0 to 100, not 101", "wait must be a number of seconds"} {
		if !errors.Is(err, connector.ErrSettings) || !strings.Contains(err.Error(), want) {
			t.Errorf("bad settings: %v, want %q", err, want)
		}
	}
}

func TestUnknownType(t *testing.T) {
	var r connector.Registry
	open := func(context.Context, connector.Config) (connector.Transport, error) {
		return nil, connector.ErrUnavailable
	}
	if err := r.Register(connector.Type{Name: "B", Open: open}); err != nil {
		t.Fatal(err)
	}
	if err := r.Register(connector.Type{Name: "A", Open: open}); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []connector.Type{{Name: "A", Open: open}, {Open: open}, {Name: "C"}} {
		if err := r.Register(bad); err == nil {
			t.Errorf("%q was registered", bad.Name)
		}
	}
	_, err := r.Open(t.Context(), "C", connector.Options{})
	if !errors.Is(err, connector.ErrUnknown) || !strings.Contains(err.Error(), "A, B") {
		t.Errorf("an unknown type: %v", err)
	}
	_, err = r.Open(t.Context(), "CudaIpcConnector", connector.Options{})
	if !errors.Is(err, connector.ErrUnknown) || !strings.Contains(err.Error(), "A, B; it is for edges of a pipeline file") || !strings.Contains(err.Error(), "EmitTensors") {
		t.Errorf("a type for edges alone: %v", err)
	}
	if _, err := r.Open(t.Context(), "A", connector.Options{}); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("a type that cannot be opened: %v", err)
	}
}
