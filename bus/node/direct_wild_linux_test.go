package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// Where things are in the half that a process has of a connection's lanes; package lane
// draws it.
const (
	halfFrames = 4096
	halfLane   = 64 << 10
	halfHead   = halfFrames + halfLane + 64
	halfBytes  = halfFrames + halfLane + 4096
)

// wildAt is the number of the delivery with which a stage begins to write where it
// should not, for as long as the request lives: streams go past the host by then.
const wildAt = warmup

// spoils are what a process may do to its own side of its lanes, by name.
var spoils = map[string]func(memory *os.File, at int64) error{
	"headers": spoilHeaders,
	"head":    func(memory *os.File, at int64) error { return spoil(memory, at+halfHead) },
}

func init() {
	for name, spoil := range spoils {
		roles["wild "+name] = func() {
			n, err := node.Join(context.Background(), "wild", node.JoinOptions{})
			if err == nil {
				err = eachLane(func(from, _ int64) error { toTheHost = from; return nil })
			}
			if err == nil {
				err = n.Serve(context.Background(), wild(spoil))
			}
			fmt.Fprintln(os.Stderr, "child:", err)
		}
	}
}

// toTheHost is where the process has its half of the lanes to its host, which it leaves alone.
var toTheHost int64

// wild passes on what comes and, from one delivery on, spoils the lanes of its process
// until the request is over.
func wild(spoil func(memory *os.File, at int64) error) bus.StageSpec {
	return bus.StageSpec{Name: os.Getenv(node.EnvStage), Handle: func(t *bus.Task, d *bus.Delivery) error {
		if d.Seq == wildAt {
			go func() {
				for t.Context().Err() == nil {
					if err := spoilLanes(spoil); err != nil {
						fmt.Fprintln(os.Stderr, "spoil:", err)
					}
				}
			}()
		}
		return t.Forward(d)
	}}
}

// spoilLanes writes to what this process may write of its lanes, as a wild pointer
// does: through no mapping of the test's own.
func spoilLanes(spoil func(memory *os.File, at int64) error) error {
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	return eachLane(func(from, to int64) error {
		if to-from != halfBytes {
			return fmt.Errorf("a half of %d bytes", to-from)
		}
		for range 100 {
			if from != toTheHost {
				_ = spoil(memory, from) // it may have been unmapped
			}
		}
		return nil
	})
}

// eachLane finds where this process may write of its lanes.
func eachLane(f func(from, to int64) error) error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if !strings.Contains(line, "memfd:omnibus-lane") || !strings.Contains(line, " rw-s ") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return err
		}
		if err := f(from, to); err != nil {
			return err
		}
	}
	return nil
}

// spoil writes what no program would.
func spoil(memory *os.File, at int64) error {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], rand.Uint64())
	_, err := memory.WriteAt(b[:], at)
	return err
}

// spoilHeaders writes over some of the headers of the frames that are in the lane or were
// there.
func spoilHeaders(memory *os.File, at int64) error {
	frames := make([]byte, halfLane)
	if _, err := memory.ReadAt(frames, at+halfFrames); err != nil {
		return err
	}
	for i := 0; i < halfLane; i += 8 {
		header := binary.NativeEndian.Uint64(frames[i:])
		length := header & (1<<31 - 1)
		isHeader := header>>31&1 == 1 && length < 1<<10 && header>>32 < 1<<16
		if !isHeader {
			continue
		}
		if err := spoil(memory, at+halfFrames+int64(i)); err != nil {
			return err
		}
	}
	return nil
}

// TestWildWrites: a process writes random bytes over its side of the lanes that it has
// with others, while requests go through them. Each ends once: it fails and names the
// process, or is complete. The pairs are given up, and what comes later goes through the
// host. What others do with each other is as ever, and everything comes back.
func TestWildWrites(t *testing.T) {
	for name := range spoils {
		t.Run(name, func(t *testing.T) { testWild(t, "wild "+name) })
	}
}

func testWild(t *testing.T, role string) {
	const inflight, replicas = 2, 2
	p := testbus.Remotes(testbus.Linear(forwarding("a"), forwarding("b")))
	p.Stages[0].Replicas, p.Stages[0].MaxInflight = replicas, inflight
	h := listen(t, p, bus.Options{})
	h.serve(t, forwarding("b"))
	h.serve(t, forwarding("a"))
	child := h.childAs(t, role, "a")
	testbus.Await(t, func() bool { return h.server.Serving("a") == replicas })
	n := h.join(t, node.JoinOptions{})

	var all sync.WaitGroup
	noticed, notice := context.WithCancel(t.Context())
	defer notice()
	for range replicas * inflight { // as many with the one as with the other
		r := testbus.StreamOf(t, n)
		all.Go(func() {
			if err := streamUntil(t, r, math.MaxInt, noticed.Done()); err != nil {
				notice()
				wantNamed(t, err, child.Process.Pid)
			}
		})
	}
	all.Wait()
	if noticed.Err() == nil {
		t.Fatal("nobody has noticed anything")
	}
	// What was written where nobody has looked yet is found by the next requests: with each
	// that fails a pair is given up, of which the process has two.
	for round := 0; ; round++ {
		var failed atomic.Int32
		for range replicas * inflight {
			r := testbus.StreamOf(t, n)
			all.Go(func() {
				if err := streamUntil(t, r, wildAt/2, nil); err != nil {
					failed.Add(1)
					wantNamed(t, err, child.Process.Pid)
				}
			})
		}
		all.Wait()
		if failed.Load() == 0 {
			break
		}
		if round == 2 {
			t.Fatal("requests still fail")
		}
	}
	kill(t, child) // until then it may read what it was given
	testbus.Await(t, func() bool { return len(h.server.Holdings()) == 0 })
	for range nodePermits { // the place is free when all of a request is back
		streamBlocks(t, n, 10, 5000)
	}
}

// wantNamed requires that a request has failed because of a process, and says which.
func wantNamed(t *testing.T, err error, pid int) {
	t.Helper()
	if !strings.Contains(err.Error(), fmt.Sprintf("process %d (wild): ", pid)) {
		t.Errorf("a request failed, and process %d is not named: %v", pid, err)
	}
}

// streamUntil sends so many inputs, or until it is told that it is enough, or the request
// is over, and returns how it ended.
func streamUntil(t *testing.T, r *bus.Request, most int, enough <-chan struct{}) error {
	t.Helper()
	defer r.Close()
	sent := make(chan int, 1)
	go func() {
		defer r.CloseSend(context.Background()) //nolint:errcheck // the request may be over
		i := 0
		defer func() { sent <- i }()
		for ; i < most; i++ {
			select {
			case <-enough:
				return
			default:
			}
			if r.Input(context.Background()).EmitBytes(block(i, directBlock)) != nil {
				return
			}
		}
	}()
	// It is for each result, not for all: how many there are until somebody notices
	// something, and how long they take, depends on the scheduler.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	patience := time.AfterFunc(testbus.Patience, cancel)
	defer patience.Stop()
	got := 0
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		patience.Reset(testbus.Patience)
		if !bytes.Equal(d.Bytes(), block(got, directBlock)) {
			t.Errorf("result %d is not what was sent", got)
		}
		got++
	}
	if n := <-sent; got != n {
		t.Errorf("a request is complete with %d results of %d inputs", got, n)
	}
	return nil
}
