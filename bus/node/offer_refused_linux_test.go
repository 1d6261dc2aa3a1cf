package node_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// newOffer makes a segment, and the packet that offers it with a certain size.
func newOffer(t *testing.T, sizeBytes int64, said uint64) (mem *shmstore.Segment, packet []byte) {
	t.Helper()
	mem, err := shmstore.NewSegment("offered", sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(mem.Close)
	if packet, err = wire.Append(nil, &wire.Offer{Segment: 1, Bytes: said}, 1); err != nil {
		t.Fatal(err)
	}
	return mem, packet
}

// withLimit runs f while a process has a lower resource limit.
func withLimit(t *testing.T, pid, resource int, most uint64, f func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prlimit(pid, resource, &unix.Rlimit{Cur: most, Max: before.Max}, nil); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Prlimit(pid, resource, &before, nil); err != nil {
			t.Error(err)
		}
	}()
	f()
}

// addressBytes is how much of its address space a process uses.
func addressBytes(t *testing.T, pid int) uint64 {
	t.Helper()
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var pages uint64
	if err == nil {
		_, err = fmt.Sscan(string(statm), &pages)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pages * uint64(os.Getpagesize())
}

// TestRefusedOffers: a client whose segment the host cannot map is refused, with the reason and the
// remedy.
func TestRefusedOffers(t *testing.T) {
	const large = 64 << 20
	for name, tc := range map[string]struct {
		memory int64
		said   uint64
		limit  func(t *testing.T, host int, offer func())
		code   wire.Code
		text   []string
	}{
		"no descriptor": {
			memory: 1 << 12, said: 1 << 12,
			limit: func(t *testing.T, host int, offer func()) { withLimit(t, host, unix.RLIMIT_NOFILE, 3, offer) },
			code:  wire.CodeMemory, text: []string{"too many files open, and may have 3", "ulimit -n, or LimitNOFILE="},
		},
		"no address space": {
			memory: large, said: large,
			limit: func(t *testing.T, host int, offer func()) {
				withLimit(t, host, unix.RLIMIT_AS, addressBytes(t, host)+large/2, offer)
			},
			code: wire.CodeMemory, text: []string{"cannot allocate memory", "ulimit -v", "vm.max_map_count"},
		},
		"no size":      {memory: 1 << 12, said: 0, code: wire.CodeProtocol, text: []string{"0 bytes are not in"}},
		"another size": {memory: 1 << 12, said: 1 << 13, code: wire.CodeProtocol, text: []string{"4096 bytes instead of 8192"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hosted{path: t.TempDir() + "/bus.sock"}
			host := h.hostAlone(t).Process.Pid
			c := dialThin(t, h.path)
			c.await(wire.KindWelcome)
			mem, packet := newOffer(t, tc.memory, tc.said)
			var m *wire.Refuse
			offer := func() {
				if err := c.conn.Send(packet, []int{mem.FD()}); err != nil {
					t.Fatal(err)
				}
				m = c.await(wire.KindRefuse).(*wire.Refuse) //nolint:forcetypeassert // it is of that kind
			}
			if tc.limit != nil {
				tc.limit(t, host, offer)
			} else {
				offer()
			}
			if m.Code != tc.code {
				t.Errorf("refused with %v: %s; want %v", m.Code, m.Text, tc.code)
			}
			for _, want := range tc.text {
				if !strings.Contains(m.Text, want) {
					t.Errorf("refused with %q, which says nothing of %q", m.Text, want)
				}
			}
			h.join(t, node.JoinOptions{}) // the host goes on
		})
	}
}

// holes is a sealed memfd without any allocated memory.
func holes(t testing.TB, sizeBytes int64) (fd int) {
	t.Helper()
	return memfd(t, sizeBytes)
}

// around is a sealed memfd of three pieces, with memory for the first and the last.
func around(t testing.TB, pieceBytes int64) (fd int) {
	t.Helper()
	return memfd(t, 3*pieceBytes, [2]int64{0, pieceBytes}, [2]int64{2 * pieceBytes, pieceBytes})
}

// memfd is a sealed memfd with memory for the pieces, each an offset and a size.
func memfd(t testing.TB, sizeBytes int64, pieces ...[2]int64) (fd int) {
	t.Helper()
	fd, err := unix.MemfdCreate("holes", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, sizeBytes); err != nil {
		t.Fatal(err)
	}
	for _, p := range pieces {
		if _, err := unix.Pwrite(fd, make([]byte, p[1]), p[0]); err != nil { // allocated but unwritten memory is a hole too
			t.Fatal(err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL); err != nil {
		t.Fatal(err)
	}
	return fd
}
