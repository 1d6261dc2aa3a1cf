package bus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// open starts a bus that is closed, and found clean, at the end of the test.
func open(t testing.TB, p bus.Pipeline, opts bus.Options) *bus.Bus {
	t.Helper()
	if opts.Store.ArenaBytes == 0 {
		opts.Store = shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}
	}
	b, err := bus.Open(t.Context(), p, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// streamOf begins a request, which ends with the test.
func streamOf(t testing.TB, s submitter) *bus.Request {
	t.Helper()
	r, err := s.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// receive reads a request's results as strings, to its end.
func receive(t testing.TB, r *bus.Request) ([]string, error) {
	t.Helper()
	var got []string
	for {
		d, err := r.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		s, err := bus.Result[string](d)
		if err != nil {
			t.Fatalf("result: %v", err)
		}
		got = append(got, s)
		if err := d.Finish(nil); err != nil {
			t.Fatalf("finish: %v", err)
		}
	}
}

func upper(_ *bus.Task, in string) (string, error) { return strings.ToUpper(in), nil }

func linear(stages ...bus.StageSpec) bus.Pipeline {
	p := bus.Pipeline{Stages: stages}
	for i := 1; i < len(stages); i++ {
		p.Edges = append(p.Edges, bus.Edge{From: stages[i-1].Name, To: stages[i].Name})
	}
	return p
}

func TestOneStage(t *testing.T) {
	b := open(t, linear(bus.Stage("upper", upper)), bus.Options{})
	r, err := b.Submit(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	got, err := receive(t, r)
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
			b := open(t, linear(bus.Stage("a", upper), bus.Stage("b", upper), bus.Stage("c", upper)), bus.Options{})
			r := streamOf(t, b)
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
			got, err := receive(t, r)
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
