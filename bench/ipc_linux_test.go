package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestTouchAll checks that a payload of the wrong bytes is noticed, in whichever
// of its lines they are.
func TestTouchAll(t *testing.T) {
	for _, size := range []int{0, 1, 8, 64, 65, 256, 300, 4 * kib, 64*kib + 64, mib} {
		payload := touched(int64(size))
		if err := touchAll(payload); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		for line := 0; line < size; line += max(cacheLine, size/5/cacheLine*cacheLine) {
			payload[line]++
			if err := touchAll(payload); err == nil {
				t.Errorf("%d bytes: the one at %d was changed, and nobody noticed", size, line)
			}
			payload[line]--
		}
	}
}

// open opens a side of a pattern, and closes it in the end.
func openTest(t *testing.T, spec peerSpec) side {
	t.Helper()
	s, err := openSide(t.Context(), Options{Peer: testPeer}.withDefaults(), spec)
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

// TestPeerDies checks that a run ends with an error, and does not wait for ever,
// when the process at the other end dies.
func TestPeerDies(t *testing.T) {
	for _, spec := range []peerSpec{
		{Carrier: byLane, Waiting: "parked"},
		{Carrier: byHandle, Waiting: "ladder"},
		{Carrier: byFloor, Waiting: "parked"},
		{Carrier: byFloor, Waiting: "spinning"},
		{Carrier: byStream},
		{Carrier: byPackets},
		{Carrier: byShmipc},
		{Carrier: byNode},
		{Carrier: byDirect},
	} {
		t.Run(string(spec.Carrier), func(t *testing.T) {
			if raceDetector && spec.Carrier == byShmipc {
				t.Skip("shmipc-go has data races of its own")
			}
			spec.Pattern = roundTrip(64)
			s := openTest(t, spec)
			if _, err := s.run(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
			var p *peer
			switch s := s.(type) {
			case *carried:
				p = s.peer
			case *busSide:
				p = s.peers[0]
			}
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			const many = 1 << 30 // runs, far more than there is time for
			if _, err := s.run(t.Context(), many); err == nil {
				t.Error("a run without a peer went well")
			} else {
				t.Log(err)
			}
		})
	}
}

// TestPeerRefuses checks that what a peer says of its end reaches the report.
func TestPeerRefuses(t *testing.T) {
	spec := peerSpec{Carrier: byStream, Pattern: roundTrip(64)}
	s := openTest(t, spec).(*carried)
	s.source[0]++ // so that the peer gets other bytes than it expects
	_, err := s.run(t.Context(), 1)
	if !errors.Is(err, errPeerDied) || !strings.Contains(err.Error(), "arrived as something else") {
		t.Errorf("got %v", err)
	}
}

// TestWithoutPython checks that what is missing is skipped by name.
func TestWithoutPython(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv(pythonVariable, "")
	_, err := openSide(t.Context(), Options{}, peerSpec{Carrier: byPython, Pattern: roundTrip(mib)})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.HasPrefix(err.Error(), "python3 with the package omnibus: ") {
		t.Errorf("got %v", err)
	}
}

// TestWithoutPeer checks that a program that is no peer is not run as one.
func TestWithoutPeer(t *testing.T) {
	_, err := openSide(t.Context(), Options{}, peerSpec{Carrier: byStream, Pattern: roundTrip(64)})
	if !errors.Is(err, ErrOptions) {
		t.Errorf("got %v", err)
	}
}

// TestDefaultsSuffice checks that nothing is skipped unless somebody asks for
// less memory.
func TestDefaultsSuffice(t *testing.T) {
	for _, s := range ipcScenarios() {
		if s.needs > DefaultStoreBytes {
			t.Errorf("%s needs a store of %d bytes, and %d are the default", s.name, s.needs, int64(DefaultStoreBytes))
		}
	}
}
