package bench

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestPeerRows has every side do each kind of work a few times.
func TestPeerRows(t *testing.T) {
	for _, r := range peerRows() {
		for _, c := range r.contenders {
			t.Run(r.name+"/"+c.column, func(t *testing.T) {
				s := openPeerTest(t, c.spec)
				if g, ok := s.(gauge); ok {
					figure, err := g.read(t.Context(), time.Millisecond)
					if err != nil || figure < 0 || figure == 0 && c.spec.Gauge == ofMemory {
						t.Errorf("%v %s, %v", figure, r.unit, err)
					}
					return
				}
				took, err := s.run(t.Context(), 2*max(c.spec.Flight, 1))
				if err != nil || took <= 0 {
					t.Errorf("took %v, %v", took, err)
				}
			})
		}
	}
}

// openPeerTest opens a side, or skips the test where the machine lacks a program that the side needs.
func openPeerTest(t *testing.T, spec peerSpec) side {
	t.Helper()
	s, err := openSide(t.Context(), Options{Peer: testPeer}.withDefaults(), spec)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestRun(t *testing.T) {
	report, err := Run(t.Context(), Options{
		Peer: testPeer, Rounds: 2, Slice: time.Millisecond, Match: regexp.MustCompile("^(stream/64B|in-process/requests/4-stages)$"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, r := range report.Rows {
		line := []string{r.Name}
		for _, c := range r.Cells {
			if line = append(line, c.Column); c.Median <= 0 || c.Least <= 0 || c.Least > c.Median || c.Factor <= 0 {
				t.Errorf("%s: %+v", r.Name, c)
			}
		}
		got = append(got, line)
	}
	want := [][]string{{"stream/64B", ours, socket, grpcDirect, natsServer}, {"in-process/requests/4-stages", ours, channelsInGo, protoactor}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if report.Rounds != 2 || report.Commit == "" || len(report.Skipped) > 0 {
		t.Errorf("got %+v", report)
	}
}

func TestRunRefuses(t *testing.T) {
	for _, opts := range []Options{{Rounds: -1}, {Rounds: MaxRounds + 1}, {Slice: -1}, {Slice: MaxSlice + 1}} {
		if _, err := Run(t.Context(), opts); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if _, err := Run(t.Context(), Options{Match: regexp.MustCompile("^nothing$")}); !errors.Is(err, ErrNoMatch) {
		t.Errorf("a pattern that matches no row: %v", err)
	}
}

// TestWithoutZMQ: a peer that is missing is left out by name, and the others are measured.
func TestWithoutZMQ(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(pythonVariable, "")
	r, err := Run(t.Context(), Options{Peer: testPeer, Rounds: 1, Slice: time.Millisecond, Match: regexp.MustCompile("^(python/4KiB|in-process/stream)")})
	if err != nil {
		t.Fatal(err)
	}
	var skipped []string
	for _, s := range r.Skipped {
		skipped = append(skipped, s.Scenario)
	}
	if diff := cmp.Diff([]string{"python/4KiB by omnibus", "python/4KiB by zmq", "python/4KiB by mp.Queue"}, skipped); diff != "" || len(r.Rows) != 1 {
		t.Errorf("%d rows, skipped (-want +got):\n%s", len(r.Rows), diff)
	}
}

// TestPeersDie: a run ends with an error when any one of the processes dies.
func TestPeersDie(t *testing.T) {
	for name, spec := range map[string]peerSpec{
		"bus":           {Carrier: byBus, Pattern: roundTrip(64)},
		"bus, requests": {Carrier: byBus, Pattern: roundTrip(64), Flight: 4},
		"sockets":       {Carrier: bySockets, Pattern: roundTrip(64), Chain: 2},
		"grpc":          {Carrier: byGRPC, Pattern: roundTrip(64)},
		"grpc, relayed": {Carrier: byGRPC, Pattern: roundTrip(64), Flight: 1, Relayed: true},
		"nats":          {Carrier: byNATS, Pattern: roundTrip(64)},
	} {
		for _, last := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				s := openPeerTest(t, spec)
				var all []*peer
				switch s := s.(type) {
				case *busSide:
					all = s.peers
				case *socketsSide:
					all = s.peers
				case *grpcSide:
					all = s.peers
				case *natsSide:
					all = s.peers
				}
				victim := all[0]
				if last {
					victim = all[len(all)-1]
				}
				if err := victim.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				const many = 1 << 30 // far more than there is time for
				if _, err := s.run(t.Context(), many); !errors.Is(err, errPeerDied) {
					t.Errorf("a run without one of the processes: %v", err)
				}
			})
		}
	}
}

// TestReadAll: a changed byte is detected in a payload of any size.
func TestReadAll(t *testing.T) {
	for _, size := range []int{1, 2, 8, 64, 257, 258, 4 * kib, mib} {
		payload := touched(size)
		if err := readAll(payload); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		for _, at := range []int{0, 1, (size - 2) &^ 255, (size-2)&^255 + 1} {
			if at < 0 || at >= size {
				continue
			}
			payload[at] ^= 1 // from 0 to 1, or back
			if err := readAll(payload); err == nil {
				t.Errorf("%d bytes: the changed byte at %d was not detected", size, at)
			}
			payload[at] ^= 1
		}
	}
}

// TestStreamThatBreaks: neither side of a stream waits for the other when a message cannot be
// sent.
func TestStreamThatBreaks(t *testing.T) {
	s := openPeerTest(t, peerSpec{Carrier: byLocalBus}).(*localBus)
	broken, sent := errors.New("broken"), 0
	err := s.stream(t.Context(), 1000, func(in bus.Emitter) error {
		if sent++; sent == 500 {
			return broken
		}
		return in.EmitBytes(touched(smallPayload))
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// TestStreamNoticesWrongBytes: a stream of the local bus ends with an error when a result differs
// from the message that was sent.
func TestStreamNoticesWrongBytes(t *testing.T) {
	s := openPeerTest(t, peerSpec{Carrier: byLocalBus}).(*localBus)
	err := s.stream(t.Context(), 1000, func(in bus.Emitter) error { return in.EmitBytes(make([]byte, smallPayload)) })
	if err == nil || !strings.Contains(err.Error(), "arrived as something else") {
		t.Errorf("got %v", err)
	}
}

// TestWithoutPeer: a program that is no peer is not run as one.
func TestWithoutPeer(t *testing.T) {
	if _, err := openSide(t.Context(), Options{}, peerSpec{Carrier: bySockets, Pattern: roundTrip(64)}); !errors.Is(err, ErrOptions) {
		t.Errorf("got %v", err)
	}
}

// TestPeerRefuses: the error has the standard error of the process that ended.
func TestPeerRefuses(t *testing.T) {
	s := openPeerTest(t, peerSpec{Carrier: bySockets, Pattern: roundTrip(64)}).(*socketsSide)
	s.source[1]++ // the process gets other bytes than it expects
	_, err := s.run(t.Context(), 1)
	if !errors.Is(err, errPeerDied) || !strings.Contains(err.Error(), "arrived as something else") {
		t.Errorf("got %v", err)
	}
}
