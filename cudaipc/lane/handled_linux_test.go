package lane_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// byHandles configures a GPU without descriptors.
func byHandles(apart bool) emul.Options {
	return emul.Options{Missing: map[string]string{"Arenas": "no virtual memory"}, Apart: apart}
}

// TestPoolOfHandles: arenas of a GPU without descriptors are opened by handles, each once, and by
// addresses in their own process.
func TestPoolOfHandles(t *testing.T) {
	for _, apart := range []bool{true, false} {
		dir := newDirectory(t)
		opts := lane.Options{Directory: dir, Pool: pool.Options{ArenaBytes: 1 << 20, MaxBytes: 3 << 20}}
		gpu := byHandles(apart)
		from, to := newBench(t, gpu, opts), newBench(t, gpu, opts)
		if err := from.lane.Why(lane.Pool); err != nil {
			t.Fatal(err)
		}
		src, data := from.tensor(codec.DTypeUint8, 400<<10)
		burst := func(n int) {
			var open []*lane.Message
			for range n {
				open = append(open, handOver(from, to, src, lane.Pool))
			}
			for _, m := range open {
				if got := to.unwrap(m).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
					t.Error("other bytes")
				}
				settled(t, m)
			}
		}
		burst(1)
		lane.Untidy(t, to.lane) // a tidy would ask for names, too
		burst(5)
		const arenas = 3
		imports := arenas
		if !apart {
			imports = 0
		}
		if n := to.driver.Usage().Imports; n != imports {
			t.Errorf("%d handles are open for %d arenas of a process that is another: %t", n, arenas, apart)
		}
		asked := dir.finds
		for range 200 { // an arena that is empty for so long is closed, unless others may have it open
			burst(1)
			from.store.FreeUnused()
		}
		burst(5)
		if n := to.driver.Usage().Imports; n != imports || len(dir.known) != 1+arenas {
			t.Errorf("%d handles are open, and %d names are known", n, len(dir.known))
		}
		if dir.finds != asked {
			t.Errorf("%d names were asked for after the first messages", dir.finds-asked)
		}
		m := from.receive(from.mustSend(src, lane.Pool))
		if got := from.unwrap(m).(*lane.Tensor); !bytes.Equal(from.read(got), data) {
			t.Error("within the lane: other bytes")
		}
		settled(t, m)
	}
}

// TestForgedArenasOfHandles: the published segment of an arena is checked against its handle, and
// payloads against the segment.
func TestForgedArenasOfHandles(t *testing.T) {
	for name, forge := range map[string]func(entry []byte) []byte{
		"not what it should be": func(b []byte) []byte { b[0]++; return b },
		"another version":       func(b []byte) []byte { b[7]++; return b },
		"longer":                func(b []byte) []byte { return append(b, 0) },
		"larger":                func(b []byte) []byte { binary.LittleEndian.PutUint64(b[8:], 1<<30); return b },
		"negative":              func(b []byte) []byte { binary.LittleEndian.PutUint64(b[8:], 1<<63); return b },
		"further on":            func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], 4096); return b },
		"before it":             func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], 1<<64-4096); return b },
	} {
		t.Run(name, func(t *testing.T) {
			dir := newDirectory(t)
			from, to := newBench(t, byHandles(true), lane.Options{Directory: dir}), newBench(t, byHandles(true), lane.Options{Directory: dir})
			src, _ := from.tensor(codec.DTypeUint8, 4096)
			lease, err := from.store.Local().Take(from.mustSend(src, lane.Pool))
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Release()
			dir.replace(t, forge)
			if _, err := to.lane.Open(t.Context(), lease.Bytes()); !errors.Is(err, lane.ErrForged) {
				t.Errorf("%v, want ErrForged", err)
			}
			if n := to.driver.Usage().Imports; n != 0 {
				t.Errorf("%d handles are left open", n)
			}
		})
	}
	t.Run("a place beyond it", func(t *testing.T) {
		dir := newDirectory(t)
		from, to := newBench(t, byHandles(true), lane.Options{Directory: dir}), newBench(t, byHandles(true), lane.Options{Directory: dir})
		src, _ := from.tensor(codec.DTypeUint8, 4096)
		lease, err := from.store.Local().Take(from.mustSend(src, lane.Pool))
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release()
		forged := bytes.Clone(lease.Bytes())
		binary.LittleEndian.PutUint64(forged[32+48:], 4<<20-4095) // the offset of the first place, see codec/bundle
		if _, err := to.lane.Open(t.Context(), forged); !errors.Is(err, lane.ErrForged) {
			t.Errorf("%v, want ErrForged", err)
		}
	})
}

// replace changes the published segments of arenas.
func (d *directory) replace(t *testing.T, forge func([]byte) []byte) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, p := range d.known {
		if name.Number&pool.HandleBit == 0 {
			continue
		}
		old, err := shmstore.OpenSegment("old", p.fd, p.sizeBytes)
		if err != nil {
			t.Fatal(err)
		}
		b := forge(bytes.Clone(old.Bytes()))
		old.Close()
		seg, err := shmstore.NewSegment("forged", int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		copy(seg.Bytes(), b)
		d.known[name] = published{dup(t, seg.FD()), seg.Size()}
		seg.Close()
	}
}
