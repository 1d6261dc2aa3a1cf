package ringbuf_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// TestScenarios runs the ring through the pictures in which a plain ring is
// usually explained, on a buffer of 100 bytes at alignment 1. Each file in
// testdata/scenarios is a script: one command a line, and what it must print.
//
//	allocate <size>       prints the chunk's id, header and payload, or the error
//	free <id> ...         Reclaim with these ids free; prints the ids released
//	marks                 prints start and end of a ring in strict FIFO order
//
// The pictures are drawn with a header of 8 bytes: 4 for the id, 4 for the
// size. Here it has 16, so every chunk before a mark moves the mark by 8:
//
//	                         8-byte header      16-byte header
//	allocate 20 in 100       [0, 28)            [0, 36)
//	allocate 30              [28, 66)           [36, 82)
//	free the first           start 28, end 66   start 36, end 82
//	free both                start = end = 66   start = end = 82
//	left at the end          34 (need 48)       18 (need 56)
//	allocate 40 wraps        end 148, i.e. 48   end 156, i.e. 56
//	allocate 20 more         148+28-66 = 110    156+36-82 = 110
//	                         > 100: no room     > 100: no room
//
// Ids count from 1 here and from 0 there. The default order does better in the
// last line, because it knows the bytes skipped by the wrap to be free; its
// script says so.
func TestScenarios(t *testing.T) {
	for _, tc := range []struct {
		file string
		opts ringbuf.Options
	}{
		{file: "strict", opts: ringbuf.Options{Align: 1, StrictFIFO: true}},
		{file: "default", opts: ringbuf.Options{Align: 1}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			script, err := os.ReadFile("testdata/scenarios/" + tc.file + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			r, err := ringbuf.New(make([]byte, 100), tc.opts)
			if err != nil {
				t.Fatal(err)
			}
			runScript(t, r, script)
		})
	}
}

func runScript(t *testing.T, r *ringbuf.Ring, script []byte) {
	lines := bufio.NewScanner(bytes.NewReader(script))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		command, want, found := strings.Cut(line, "->")
		if strings.TrimSpace(line) == "" {
			continue
		}
		if !found {
			t.Fatalf("line %d: no -> in %q", n, line)
		}
		if got := runCommand(t, r, strings.Fields(command)); got != strings.TrimSpace(want) {
			t.Errorf("line %d: %s: got %q, want %q", n, strings.TrimSpace(command), got, strings.TrimSpace(want))
		}
		mustBeSound(t, r)
	}
}

func runCommand(t *testing.T, r *ringbuf.Ring, words []string) string {
	var args []uint64
	for _, w := range words[1:] {
		var arg uint64
		if _, err := fmt.Sscan(w, &arg); err != nil {
			t.Fatalf("argument %q: %v", w, err)
		}
		args = append(args, arg)
	}
	switch words[0] {
	case "allocate":
		c, err := r.Allocate(int(args[0]), 0)
		if room := (*ringbuf.RoomError)(nil); errors.As(err, &room) {
			return fmt.Sprintf("no room for %d, largest %d, free %d", room.Needed, room.LargestGap, room.Free)
		} else if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("id %d in %d to %d", c.ID, c.Addr-ringbuf.HeaderSize, c.Addr+c.Size)
	case "free":
		return fmt.Sprint(r.Reclaim(func(c ringbuf.Chunk, _ []byte) bool {
			for _, id := range args {
				if c.ID == id {
					return true
				}
			}
			return false
		}, 0))
	case "marks":
		start, end := r.Marks()
		return fmt.Sprintf("start %d end %d", start, end)
	}
	t.Fatalf("unknown command %q", words[0])
	return ""
}

func mustBeSound(t testing.TB, r *ringbuf.Ring) {
	t.Helper()
	for _, v := range r.Check() {
		t.Errorf("broken invariant: %v", v)
	}
}
