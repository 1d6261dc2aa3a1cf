package lane_test

import (
	"bytes"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// mapped is memory that a sender writes payloads to, and its mapping in a receiver.
type mapped struct {
	t       *testing.T
	own     *shmstore.Segment // the sender's mapping
	theirs  *shmstore.Segment
	nextPut int
}

// pieceBytes is the size of a piece of a staging buffer, which has two.
const pieceBytes = 1 << 20

func newMapped(t *testing.T, sizeBytes int) *mapped {
	t.Helper()
	page := os.Getpagesize()
	own, err := shmstore.NewSegment("payloads", int64((sizeBytes+page-1)/page*page))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := shmstore.OpenSegment("payloads", dup(t, own.FD()), own.Size())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	t.Cleanup(theirs.Close)
	return &mapped{t: t, own: own, theirs: theirs}
}

// put writes a value into the memory, and returns the payload in the receiver's mapping.
func (p *mapped) put(from *bench, v any) []byte {
	p.t.Helper()
	o, err := from.from.Plan(p.t.Context(), v, lane.Default, 0, 0, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	at := p.nextPut
	if err := o.Fill(p.t.Context(), p.own.Bytes()[at:at+o.Size()], from.s); err != nil {
		p.t.Fatal(err)
	}
	return p.theirs.Bytes()[at : at+o.Size()]
}

// take copies the tensor of a payload to a GPU, and closes the message.
func take(to *bench, payload []byte) (*lane.Tensor, *lane.Message) {
	to.t.Helper()
	m, err := to.lane.Open(to.t.Context(), payload)
	if err != nil {
		to.t.Fatal(err)
	}
	v, err := m.Unwrap(to.s, cudaipc.UUID{}, func(n int64) (cudaipc.Ptr, error) { return to.alloc(n), nil })
	if err != nil {
		to.t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		to.t.Fatal(err)
	}
	return v.(*lane.Tensor), m
}

// unmapped releases memory of a lane, and waits until it may be unmapped.
func unmapped(release func(unmap func())) {
	done := make(chan struct{})
	release(func() { close(done) })
	<-done
}

// TestMapsAreRegisteredOnce: the first payload in a memory registers it with the GPU, and its
// release unregisters it.
func TestMapsAreRegisteredOnce(t *testing.T) {
	var asked atomic.Int64
	from := newBench(t, emul.Options{}, lane.Options{})
	to := newBench(t, emul.Options{Refuse: func(call string) error {
		if call == "RegisterHost" {
			asked.Add(1)
		}
		return nil
	}}, lane.Options{})
	p := newMapped(t, 1<<20)
	release := to.lane.Mapped(p.theirs.Bytes())
	before := asked.Load()
	usage := to.driver.Usage().HostMemories
	src, data := from.tensor(codec.DTypeFloat32, 1000)
	for i := range 20 {
		p.nextPut = i * 5000
		got, m := take(to, p.put(from, src))
		to.sync(to.s)
		if !bytes.Equal(to.read(got), data) {
			t.Fatalf("message %d has other bytes", i)
		}
		settled(t, m)
		if n := to.lane.Stats().Registered; n != 2 { // the store's arena and this memory
			t.Fatalf("%d segments are registered after %d messages", n, i+1)
		}
	}
	if n := asked.Load() - before; n != 2 { // the map, and the words of messages
		t.Errorf("%d registrations of memory", n)
	}
	if s := to.lane.Stats(); s.StagedBytes+s.PageableBytes+s.Refused != 0 {
		t.Errorf("copies were staged: %+v", s)
	}
	unmapped(release)
	if n := to.driver.Usage().HostMemories; n != usage+1 { // the words
		t.Errorf("%d maps are registered, %d were before and words came", n, usage)
	}
	got, m := take(to, p.put(from, src)) // as from memory that was never added
	to.sync(to.s)
	if !bytes.Equal(to.read(got), data) || to.lane.Stats().StagedBytes != int64(len(data)) {
		t.Errorf("after it was unregistered: %+v", to.lane.Stats())
	}
	settled(t, m)
}

// TestRefusedMapsAreStaged: payloads in memory that a GPU does not read are copied through a
// staging buffer, in pieces, and the counters say why.
func TestRefusedMapsAreStaged(t *testing.T) {
	no := errors.New("not today")
	refuse := func(first, last int64) func(*atomic.Int64) emul.Options {
		return func(calls *atomic.Int64) emul.Options {
			return emul.Options{Refuse: func(call string) error {
				if n := calls.Add(1); call == "RegisterHost" && n >= first && n <= last {
					return no
				}
				return nil
			}}
		}
	}
	for _, c := range []struct {
		name              string
		gpu               func(calls *atomic.Int64) emul.Options
		refused           int64
		staged, pageable  int64
		sizeBytes, around int
	}{
		{"no memory for reading", func(*atomic.Int64) emul.Options {
			return emul.Options{Missing: map[string]string{"RegisterReadOnly": "the driver is old"}}
		}, 1, 1, 0, 7 * pieceBytes / 2, 4096},
		{"not this memory", refuse(1, 1), 1, 1, 0, 7 * pieceBytes / 2, 4096},
		{"no memory at all", refuse(1, 1000), 1, 0, 1, 5000, 4096},
		{"not worth it", func(*atomic.Int64) emul.Options { return emul.Options{} }, 0, 1, 0, 7 * pieceBytes / 2, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int64
			calls.Store(-1 << 40) // not before Unwrap
			gpu := c.gpu(&calls)
			gpu.Delay = func(s emul.Step) time.Duration {
				if s.Kind == cudaipc.OpCopy && s.Bytes == pieceBytes {
					return 2 * time.Millisecond // the CPU is faster
				}
				return 0
			}
			from, to := newBench(t, emul.Options{}, lane.Options{}), newBench(t, gpu, lane.Options{})
			p := newMapped(t, c.sizeBytes+1000+c.around)
			defer unmapped(to.lane.Mapped(p.theirs.Bytes()))
			src, data := from.tensor(codec.DTypeUint8, c.sizeBytes)
			payload := p.put(from, src)
			out := to.alloc(int64(c.sizeBytes))
			m, err := to.lane.Open(t.Context(), payload)
			if err != nil {
				t.Fatal(err)
			}
			calls.Store(0)
			v, err := m.Unwrap(to.s, cudaipc.UUID{}, func(int64) (cudaipc.Ptr, error) { return out, nil })
			if err != nil {
				t.Fatal(err)
			}
			calls.Store(-1 << 40)
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			to.sync(to.s)
			if !bytes.Equal(to.read(v.(*lane.Tensor)), data) {
				t.Error("other bytes")
			}
			settled(t, m)
			n := int64(c.sizeBytes)
			if s := to.lane.Stats(); s.Refused != c.refused || s.StagedBytes != c.staged*n || s.PageableBytes != c.pageable*n || s.Registered != 1 {
				t.Errorf("%+v, for a tensor of %d bytes", s, n)
			}
		})
	}
}

// TestStagedPayloadIsFree: the sender may reuse a staged payload when Unwrap returns, also while
// the stream is blocked.
func TestStagedPayloadIsFree(t *testing.T) {
	from, to := newBench(t, emul.Options{}, lane.Options{}), newBench(t, emul.Options{}, lane.Options{})
	src, data := from.tensor(codec.DTypeUint8, 2*pieceBytes)
	p := newMapped(t, 3*pieceBytes)
	payload := p.put(from, src) // of memory that was not added
	resume := holdStream(t, to)
	got, m := take(to, payload)
	settled(t, m)
	clear(p.own.Bytes())
	resume()
	to.sync(to.s)
	if !bytes.Equal(to.read(got), data) {
		t.Error("the payload was read after its release")
	}
}

// TestDriverCopiesWithoutFreeStaging: while streams hold all staging buffers, the driver copies.
func TestDriverCopiesWithoutFreeStaging(t *testing.T) {
	from, to := newBench(t, emul.Options{}, lane.Options{}), newBench(t, emul.Options{}, lane.Options{})
	src, data := from.tensor(codec.DTypeUint8, 4096)
	p := newMapped(t, pieceBytes)
	payload := p.put(from, src)
	resume := holdStream(t, to)
	const buffers = 4
	var got []*lane.Tensor
	for range buffers + 1 {
		x, _ := take(to, payload)
		got = append(got, x)
	}
	if s := to.lane.Stats(); s.StagedBytes != buffers*4096 || s.PageableBytes != 4096 {
		t.Errorf("%+v", s)
	}
	resume()
	to.sync(to.s)
	for i, x := range got {
		if !bytes.Equal(to.read(x), data) {
			t.Errorf("tensor %d has other bytes", i)
		}
	}
	if _, m := take(to, payload); to.lane.Stats().PageableBytes != 4096 {
		t.Error("free staging buffers are not reused")
	} else {
		settled(t, m)
	}
}

// TestPayloadIsKeptWithoutWords: without words, a message is settled when its streams are
// synchronized.
func TestPayloadIsKeptWithoutWords(t *testing.T) {
	var held atomic.Bool
	resume := make(chan struct{})
	from := newBench(t, emul.Options{}, lane.Options{})
	to := newBench(t, emul.Options{Missing: map[string]string{"Words": "no words"}, Delay: func(s emul.Step) time.Duration {
		if s.Kind == cudaipc.OpCopy && held.Load() {
			<-resume
		}
		return 0
	}}, lane.Options{})
	src, data := from.tensor(codec.DTypeUint8, 4096)
	p := newMapped(t, pieceBytes)
	defer unmapped(to.lane.Mapped(p.theirs.Bytes()))
	payload := p.put(from, src)
	held.Store(true)
	got, m := take(to, payload)
	early := false
	m.OnSettled(func() { early = held.Load() })
	held.Store(false)
	close(resume)
	settled(t, m)
	if early {
		t.Error("the message was settled before the stream had read it")
	}
	to.sync(to.s)
	if !bytes.Equal(to.read(got), data) {
		t.Error("other bytes")
	}
}
