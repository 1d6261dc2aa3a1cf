package bus_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

func TestOneStage(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("upper", testbus.Upper)), bus.Options{})
	r, err := b.Submit(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	got, err := testbus.Receive(t, r)
	if err != nil || len(got) != 1 || got[0] != "HELLO" {
		t.Fatalf("got %q, %v", got, err)
	}
	if o := r.Outcome(); o != bus.Completed {
		t.Fatalf("outcome %v", o)
	}
}

func TestStream(t *testing.T) {
	for _, size := range []int{10, 600, 5000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			pad := strings.Repeat("x", size)
			b := testbus.Open(t, testbus.Linear(bus.Stage("a", testbus.Upper), bus.Stage("b", testbus.Upper), bus.Stage("c", testbus.Upper)), bus.Options{})
			r := testbus.StreamOf(t, b)
			const n = 1000
			sent := make(chan error, 1)
			go func() {
				for i := range n {
					if err := r.Send(t.Context(), fmt.Sprint(pad, i)); err != nil {
						sent <- err
						return
					}
				}
				sent <- r.CloseSend(t.Context())
			}()
			got, err := testbus.Receive(t, r)
			if err != nil {
				t.Fatal(err)
			}
			if err := <-sent; err != nil {
				t.Fatal(err)
			}
			if len(got) != n {
				t.Fatalf("%d results", len(got))
			}
			for i, s := range got {
				if want := strings.ToUpper(pad) + fmt.Sprint(i); s != want {
					t.Fatalf("result %d is %.20q", i, s)
				}
			}
		})
	}
}
