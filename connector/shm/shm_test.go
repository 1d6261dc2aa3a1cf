package shm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/connector/shm"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

var edge = connector.Edge{From: "a", To: "b"}

// open opens a connector of the type, as a program does.
func open(t *testing.T, extra map[string]any, exchange connector.Exchange) (*connector.Connector, error) {
	t.Helper()
	var r connector.Registry
	if err := r.Register(shm.Type()); err != nil {
		t.Fatal(err)
	}
	c, err := r.Open(t.Context(), shm.Name, connector.Options{Extra: extra, Exchange: exchange})
	if err == nil {
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return c, err
}

func mustOpen(t *testing.T, extra map[string]any, exchange connector.Exchange) *connector.Connector {
	t.Helper()
	c, err := open(t, extra, exchange)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// transport opens the transport alone. With a threshold of 0 only empty values travel in the
// metadata, which the connector reads.
func transport(t *testing.T, exchange connector.Exchange) connector.Transport {
	t.Helper()
	settings, err := shm.Type().Settings(map[string]any{"shm_threshold_bytes": 0, "ring_bytes": 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := shm.Type().Open(t.Context(), connector.Config{Settings: settings, Exchange: exchange})
	if err != nil {
		t.Fatal(err)
	}
	p, ok := tr.(connector.Peeker)
	if !ok {
		t.Fatal("the transport is no Peeker")
	}
	return inlined{tr, p}
}

// inlined reads values in the metadata, as a connector does.
type inlined struct {
	connector.Transport
	connector.Peeker
}

func (t inlined) Get(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	if _, ok := meta["inline_bytes"]; ok {
		b, err := meta.Bytes("inline_bytes")
		return payload(b), err
	}
	return t.Transport.Get(ctx, edge, key, meta)
}

type payload []byte

func (p payload) Bytes() []byte { return p }
func (p payload) Release()      {}

// exchange stands for a host's exchange: its transports are ends of one ring.
type exchange struct{ ring *ring.Ring }

func (x exchange) OpenExchange(bool) (connector.Transport, error) { return x.ring.End(), nil }

func newExchange(t *testing.T) exchange {
	t.Helper()
	r, err := ring.New(ring.Options{Store: shmstore.Options{ArenaBytes: 16 << 20, Memory: shmstore.Heap}})
	if err != nil {
		t.Fatal(err)
	}
	x := exchange{r}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

func TestTransport(t *testing.T) {
	t.Run("by itself", func(t *testing.T) {
		connectortest.Run(t, connectortest.Ends{MetadataUnique: true, Open: func(t *testing.T) (put, get connector.Transport) {
			return transport(t, nil), transport(t, nil)
		}})
	})
	t.Run("in an exchange", func(t *testing.T) {
		connectortest.Run(t, connectortest.Ends{MetadataUnique: true, Open: func(t *testing.T) (put, get connector.Transport) {
			x := newExchange(t)
			return transport(t, x), transport(t, x)
		}})
	})
}

// blind hides that the transport is a Peeker.
type blind struct{ exchange }

func (x blind) OpenExchange(lasting bool) (connector.Transport, error) {
	under, err := x.exchange.OpenExchange(lasting)
	return struct{ connector.Transport }{under}, err
}

// TestPeek: a value can be peeked at, in the metadata and in a transport that is a Peeker.
func TestPeek(t *testing.T) {
	small, large := []byte("a small one"), bytes.Repeat([]byte("v"), 1000)
	for name, c := range map[string]struct {
		exchange connector.Exchange
		want     error
	}{
		"by itself":      {nil, nil},
		"in an exchange": {newExchange(t), nil},
		"blind":          {blind{newExchange(t)}, connector.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			conn := mustOpen(t, map[string]any{"shm_threshold_bytes": 100}, c.exchange)
			for _, payload := range [][]byte{small, large} {
				_, meta, err := conn.PutBytes(t.Context(), edge, "k", payload)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					v, err := conn.Peek(t.Context(), edge, "k", meta)
					if !errors.Is(err, c.want) {
						t.Fatalf("peek: %v, want %v", err, c.want)
					}
					if err != nil {
						continue
					}
					if !bytes.Equal(v.Bytes(), payload) {
						t.Errorf("it has %d bytes, not %d", v.Size(), len(payload))
					}
					v.Release()
				}
				v, err := conn.Get(t.Context(), edge, "k", meta)
				if err != nil {
					t.Fatal(err)
				}
				v.Release()
			}
		})
	}
}

// TestThreshold: values up to the threshold travel in the metadata, and no others.
func TestThreshold(t *testing.T) {
	for name, c := range map[string]struct {
		extra    map[string]any
		most     int
		exchange bool
	}{
		"default":        {nil, 65536, false},
		"in an exchange": {nil, 65536, true},
		"set":            {map[string]any{"shm_threshold_bytes": 100}, 100, false},
	} {
		t.Run(name, func(t *testing.T) {
			var x connector.Exchange
			if c.exchange {
				x = newExchange(t)
			}
			var r connector.Registry
			if err := r.Register(shm.Type()); err != nil {
				t.Fatal(err)
			}
			conn, err := r.Open(t.Context(), shm.Name, connector.Options{Extra: c.extra, Exchange: x, Serializer: codec.RawSerializer{}})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for size, inline := range map[int]bool{1: true, c.most: true, c.most + 1: false} {
				_, meta, err := conn.Put(t.Context(), edge, "k", bytes.Repeat([]byte("v"), size))
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := meta["inline_bytes"]; ok != inline {
					t.Errorf("a value of %d bytes travels in the metadata: %v, want %v", size, ok, inline)
				}
				v, err := conn.Get(t.Context(), edge, "k", meta)
				if err != nil {
					t.Fatal(err)
				}
				if v.Size() != size {
					t.Errorf("%d bytes were got of %d", v.Size(), size)
				}
				v.Release()
			}
		})
	}
}

// TestThresholdOfSegments: a threshold that is set applies to each generation. Without one, all
// values of generation 2 are found by key, as with vLLM-Omni; lasting values are found by key with
// any threshold.
func TestThresholdOfSegments(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("segments need Linux")
	}
	for name, c := range map[string]struct {
		extra   map[string]any
		lasting bool
		most    int
	}{
		"1":              {map[string]any{"generation": 1}, false, 65536},
		"1, set":         {map[string]any{"generation": 1, "shm_threshold_bytes": 100}, false, 100},
		"2":              {map[string]any{"generation": 2}, false, 0},
		"2, set":         {map[string]any{"generation": 2, "shm_threshold_bytes": 100}, false, 100},
		"2, set to none": {map[string]any{"generation": 2, "shm_threshold_bytes": 0}, false, 0},
		"2, lasting":     {map[string]any{"generation": 2, "shm_threshold_bytes": 100}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var r connector.Registry
			if err := r.Register(shm.Type()); err != nil {
				t.Fatal(err)
			}
			c.extra["mode"] = "segment"
			conn, err := r.Open(t.Context(), shm.Name, connector.Options{Extra: c.extra, Serializer: codec.RawSerializer{}, Lasting: c.lasting})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			key := fmt.Sprintf("omnibus_shm_threshold_%d", os.Getpid())
			for _, size := range []int{max(c.most, 1), c.most + 1} {
				_, meta, err := conn.Put(t.Context(), edge, key, bytes.Repeat([]byte("v"), size))
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := meta["inline_bytes"]; ok != (size <= c.most) {
					t.Errorf("a value of %d bytes travels in the metadata: %v, want up to %d", size, ok, c.most)
				}
				v, err := conn.Get(t.Context(), edge, key, meta)
				if err != nil {
					t.Fatal(err)
				}
				if v.Size() != size {
					t.Errorf("%d bytes were got of %d", v.Size(), size)
				}
				v.Release()
			}
		})
	}
}

// TestSegmentMode: a value of any size is a segment that other programs find by its key; the older
// generation has small values in the metadata.
func TestSegmentMode(t *testing.T) {
	if runtime.GOOS != "linux" {
		if _, err := open(t, map[string]any{"mode": "segment"}, nil); !errors.Is(err, connector.ErrUnavailable) {
			t.Errorf("segments without Linux: %v", err)
		}
		return
	}
	key := fmt.Sprintf("omnibus_shm_test_%d", os.Getpid())
	c := mustOpen(t, map[string]any{"mode": "segment"}, nil)
	_, meta, err := c.Put(t.Context(), edge, key, []byte("small"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/dev/shm/" + key); err != nil || meta["inline_bytes"] != nil {
		t.Errorf("put: %v, %v", err, meta)
	}
	if err := c.Cleanup(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	older := mustOpen(t, map[string]any{"mode": "segment", "generation": 1}, nil)
	if _, meta, err = older.Put(t.Context(), edge, key, []byte("small")); err != nil || meta["inline_bytes"] == nil {
		t.Errorf("put by the older generation: %v, %v", err, meta)
	}
}

func TestSettings(t *testing.T) {
	for name, extra := range map[string]map[string]any{
		"mode":      {"mode": "disk"},
		"threshold": {"shm_threshold_bytes": -1},
		"ttl":       {"ttl": "long"},
		"timeout":   {"timeout": -1},
		"at once":   {"timeout": 0},
		"no time":   {"timeout": "0s", "mode": "segment"},
		"ring":      {"ring_bytes": 100},
	} {
		if _, err := open(t, extra, nil); !errors.Is(err, connector.ErrSettings) {
			t.Errorf("%s: %v, want ErrSettings", name, err)
		}
	}
	mustOpen(t, map[string]any{"ring_bytes": 1 << 20}, nil)
	if _, err := open(t, map[string]any{"ring_bytes": 2 << 20}, nil); !errors.Is(err, connector.ErrSettings) {
		t.Errorf("another size while the process has a ring: %v, want ErrSettings", err)
	}
}

// TestLastUserClosesRing: a value retains the ring, and the last user closes it, so that the next
// ring may have other settings.
func TestLastUserClosesRing(t *testing.T) {
	c := mustOpen(t, map[string]any{"ring_bytes": 1 << 20}, nil)
	want := strings.Repeat("v", 100_000)
	_, meta, err := c.Put(t.Context(), edge, "k", want)
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Get(t.Context(), edge, "k", meta)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := v.Decode(&got); err != nil || got != want {
		t.Errorf("a value whose connector is closed: %d bytes, %v", len(got), err)
	}
	if _, err := open(t, map[string]any{"ring_bytes": 2 << 20}, nil); !errors.Is(err, connector.ErrSettings) {
		t.Errorf("another ring while a value lies in the first: %v, want ErrSettings", err)
	}
	v.Release()
	mustOpen(t, map[string]any{"ring_bytes": 2 << 20}, nil)
}

// TestRemovedOptions: an option of an earlier version is refused, and the error says what to do
// instead: left to the stages, it would make two processes put into two rings.
func TestRemovedOptions(t *testing.T) {
	for key, value := range map[string]any{"store": "speech", "readers": 2} {
		for _, mode := range []string{"ring", "segment"} {
			_, err := open(t, map[string]any{"mode": mode, key: value}, nil)
			if !errors.Is(err, connector.ErrSettings) || !strings.Contains(err.Error(), key+" is gone: leave it out") {
				t.Errorf("%s in mode %s: %v, want ErrSettings and what to do instead", key, mode, err)
			}
		}
	}
}

// TestTooLarge: the error for a value larger than the process's ring names the setting to raise.
func TestTooLarge(t *testing.T) {
	c := mustOpen(t, map[string]any{"ring_bytes": 1 << 20}, nil)
	_, _, err := c.Put(t.Context(), edge, "key", make([]byte, 2<<20))
	if !errors.Is(err, connector.ErrTooLarge) || !strings.Contains(err.Error(), "raise ring_bytes, which is 1048576") {
		t.Errorf("put of more than the ring has: %v", err)
	}
}

// TestTimeout: a put without space ends after its timeout.
func TestTimeout(t *testing.T) {
	c := mustOpen(t, map[string]any{"ring_bytes": 256 << 10, "timeout": "10ms", "shm_threshold_bytes": 0}, nil)
	value := strings.Repeat("v", 60_000)
	for i := range 100 {
		_, _, err := c.Put(t.Context(), edge, strings.Repeat("k", i+1), value)
		if errors.Is(err, connector.ErrFull) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Error("100 values of 60000 bytes fit into 256 KiB")
}

// TestTimeoutInExchange: the timeout applies in an exchange too, whose own timeout is for puts
// without a deadline.
func TestTimeoutInExchange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustOpen(t, map[string]any{"timeout": "2m"}, newExchange(t))
		value := strings.Repeat("v", 4<<20)
		for i := range 10 {
			began := time.Now()
			_, _, err := c.Put(t.Context(), edge, strings.Repeat("k", i+1), value)
			if err == nil {
				continue
			}
			if waited := time.Since(began); !errors.Is(err, connector.ErrFull) || waited != 2*time.Minute {
				t.Errorf("a put without space ended after %v: %v", waited, err)
			}
			return
		}
		t.Error("10 values of 4 MiB fit into 16")
	})
}

// stopped is an exchange whose host does not answer.
type stopped struct{ exchange }

func (x stopped) OpenExchange(lasting bool) (connector.Transport, error) {
	under, err := x.exchange.OpenExchange(lasting)
	return silent{under}, err
}

type silent struct{ connector.Transport }

func (silent) Put(ctx context.Context, _ connector.Edge, _ string, _ int, _ func([]byte) error) (connector.Metadata, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("%w: the host has not answered", ctx.Err())
}

// TestTimeoutOfHost: the error of a host that does not answer is not ErrFull: it is unknown whether
// the value was put.
func TestTimeoutOfHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustOpen(t, nil, stopped{newExchange(t)})
		_, _, err := c.Put(t.Context(), edge, "key", strings.Repeat("v", 100_000))
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, connector.ErrFull) {
			t.Errorf("put: %v", err)
		}
	})
}

// TestLasting: the ring of a process cannot outlive it. In an exchange, a lasting value of any size
// is found by its key alone.
func TestLasting(t *testing.T) {
	var r connector.Registry
	if err := r.Register(shm.Type()); err != nil {
		t.Fatal(err)
	}
	c, err := r.Open(t.Context(), shm.Name, connector.Options{Lasting: true, Exchange: newExchange(t), Serializer: codec.RawSerializer{}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, value := range []string{"", "small"} {
		if _, _, err := c.Put(t.Context(), edge, "k", []byte(value)); err != nil {
			t.Fatal(err)
		}
		v, err := c.Get(t.Context(), edge, "k", nil)
		if err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		if string(v.Bytes()) != value {
			t.Errorf("got %q of %q", v.Bytes(), value)
		}
		v.Release()
	}
	if _, err := r.Open(t.Context(), shm.Name, connector.Options{Lasting: true}); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("a lasting ring without a host: %v", err)
	}
}

// TestPage: the page of the connector lists its options, with their defaults.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/connectors/shared-memory.md")
	if err != nil {
		t.Fatal(err)
	}
	said := make(map[string]string)
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `(\\w+)` \\| ")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		said[m[1]] = m[2]
	}
	for _, o := range shm.Type().Options {
		if o.Removed != "" {
			continue
		}
		if _, err := o.Read(o.Default); err != nil { // the default depends on other options, and the page explains it
			if !strings.Contains(string(page), "| `"+o.Key+"` | [below](#") {
				t.Errorf("the page does not say where the default of %s is", o.Key)
			}
			continue
		}
		var value any = said[o.Key]
		if n, err := strconv.Atoi(said[o.Key]); err == nil {
			value = n
		}
		if got, err := o.Read(value); err != nil || got != o.Default {
			t.Errorf("the page has the default %v for %s, which is %v: %v", value, o.Key, o.Default, err)
		}
		delete(said, o.Key)
	}
	for key := range said {
		t.Errorf("the page has an option %s, and the connector has not", key)
	}
}
