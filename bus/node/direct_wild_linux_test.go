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

// Offsets in the half of a connection's lanes that one process writes; package lane draws the
// layout.
const (
	halfFrames = 4096
	halfLane   = 64 << 10
	halfHead   = halfFrames + halfLane + 64
	halfBytes  = halfFrames + halfLane + 4096
)

// wildAt is the delivery with which a stage begins to write random bytes, until the request ends:
// the streams take the direct path by then.
const wildAt = warmup

// spoils are the ways in which a process corrupts its own half of its lanes.
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

// toTheHost is the address of the process's half of the lanes to its host, which stays intact.
var toTheHost int64

// wild is a stage that forwards its inputs and, from one delivery on, corrupts the lanes of its
// process until the request ends.
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

// spoilLanes writes to the process's half of its lanes as a wild pointer does: without a mapping of
// the test.
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

// eachLane finds the process's writable halves of lanes.
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

// spoil writes random bytes.
func spoil(memory *os.File, at int64) error {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], rand.Uint64())
	_, err := memory.WriteAt(b[:], at)
	return err
}

// spoilHeaders overwrites some headers of the frames that are or were in the lane.
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

// TestWildWrites: a process writes random bytes to its half of the lanes to its peers while
// requests use them. Each request either fails with an error that names the process, or is
// complete. The links are given up, and later deliveries go through the host. Links between other
// processes are not affected, and all memory comes back.
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
	for range replicas * inflight { // the same number at each replica
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
		t.Fatal("no request has failed")
	}
	// The next requests find the bytes that no reader has seen yet. Each failure gives up one link,
	// and the process has two.
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
	kill(t, child) // until its death it may read its deliveries
	testbus.Await(t, func() bool { return len(h.server.Holdings()) == 0 })
	for range nodePermits { // a permit is free when all payloads of its request are back
		streamBlocks(t, n, 10, 5000)
	}
}

// wantNamed requires that the error of a failed request names a process.
func wantNamed(t *testing.T, err error, pid int) {
	t.Helper()
	if !strings.Contains(err.Error(), fmt.Sprintf("process %d (wild): ", pid)) {
		t.Errorf("a request failed, and process %d is not named: %v", pid, err)
	}
}

// streamUntil sends up to most inputs, until enough is closed or the request ends, and returns how
// the request ended.
func streamUntil(t *testing.T, r *bus.Request, most int, enough <-chan struct{}) error {
	t.Helper()
	defer r.Close()
	sent := make(chan int, 1)
	go func() {
		defer r.CloseSend(context.Background()) //nolint:errcheck // the request may have ended
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
	// The patience is for each result: the number of results before a fault is noticed, and their
	// duration, depend on the scheduler.
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
			t.Errorf("result %d has other bytes than were sent", got)
		}
		got++
	}
	if n := <-sent; got != n {
		t.Errorf("a request is complete with %d results of %d inputs", got, n)
	}
	return nil
}
