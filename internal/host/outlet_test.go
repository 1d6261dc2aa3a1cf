package host

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestOutletWithoutAReader(t *testing.T) {
	r, w := io.Pipe()
	t.Cleanup(func() { _ = r.Close() })
	o := NewOutlet(w)
	o.Hurry()
	o.Hurry()
	for range 2 {
		if _, err := o.Write([]byte("unread")); !errors.Is(err, errUnread) {
			t.Errorf("got %v", err)
		}
	}
}

func TestOutletWaitsForAReader(t *testing.T) {
	r, w := io.Pipe()
	o := NewOutlet(w)
	go func() {
		_, _ = io.WriteString(o, "one\n")
		_, _ = io.WriteString(o, "two\n")
		_ = w.Close()
	}()
	var got strings.Builder
	if _, err := io.Copy(&got, r); err != nil || got.String() != "one\ntwo\n" {
		t.Errorf("got %q, %v", got.String(), err)
	}
	if _, err := o.Write(nil); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v, want the writer's own error", err)
	}
}
