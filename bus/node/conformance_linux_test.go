package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// The conformance suite tests the promises of a bus for each deployment of its stages: every
// case runs on every deployment.

// deployment opens a pipeline, with its stages in some processes, and returns the submitter.
type deployment func(t *testing.T, p bus.Pipeline) testbus.Submitter

func TestConformance(t *testing.T) {
	for name, deploy := range map[string]deployment{
		"in one process":    deployHere,
		"on Go nodes":       deployNodes,
		"on Python clients": deployPython,
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range conformance {
				t.Run(c.name, func(t *testing.T) { c.run(t, deploy) })
			}
		})
	}
}

var storeOptions = bus.Options{Store: shmstore.Options{ArenaBytes: 16 << 20, Memory: shmstore.Shared}}

func deployHere(t *testing.T, p bus.Pipeline) testbus.Submitter {
	return testbus.Open(t, p, storeOptions)
}

func deployNodes(t *testing.T, p bus.Pipeline) testbus.Submitter {
	return serveAll(t, p, storeOptions).join(t, node.JoinOptions{})
}

func deployPython(t *testing.T, p bus.Pipeline) testbus.Submitter {
	h := listen(t, testbus.Remotes(p), storeOptions)
	for _, st := range p.Stages {
		cmd := pythontest.Command(t, "testdata/conformance.py")
		cmd.Env = append(cmd.Env, node.EnvSocket+"="+h.path, node.EnvStage+"="+st.Name)
		pythontest.Start(t, cmd)
	}
	return h.join(t, node.JoinOptions{})
}

// behaviours are the stages of the suite; testdata/conformance.py has the same stages in Python.
var behaviours = map[string]bus.StageSpec{
	"upper": bus.Stage("upper", testbus.Upper),
	"twice": bus.Expand("twice", func(_ *bus.Task, in string, emit func(string) error) error {
		return errors.Join(emit(in+"1"), emit(in+"2"))
	}),
	"total": {
		Name: "total",
		Handle: func(t *bus.Task, _ *bus.Delivery) error {
			n, _ := t.State.(int)
			t.State = n + 1
			return nil
		},
		End: func(t *bus.Task) error {
			n, _ := t.State.(int)
			return t.Emit(fmt.Sprint("total ", n))
		},
	},
	"concat": testbus.Concat("concat"),
	"picky": bus.Stage("picky", func(_ *bus.Task, in string) (string, error) {
		if in == "bad" {
			return "", errors.New("ValueError: I do not like it")
		}
		return in, nil
	}),
	"stuck": {Name: "stuck", Handle: func(t *bus.Task, _ *bus.Delivery) error {
		<-t.Context().Done()
		return nil
	}},
	"add": {Name: "add", Handle: func(t *bus.Task, d *bus.Delivery) error {
		out, err := t.Reserve(len(d.Bytes()), codec.IDRaw)
		if err != nil {
			return err
		}
		copy(out.Bytes(), d.Bytes())
		for i := range 16 {
			out.Bytes()[i]++
		}
		return out.Send(len(d.Bytes()))
	}},
	"nest": {Name: "nest", Handle: func(t *bus.Task, d *bus.Delivery) error {
		var in struct {
			Small codec.Tensor `msgpack:"small"`
			Large codec.Tensor `msgpack:"large"`
			Step  int          `msgpack:"step"`
		}
		if err := d.Decode(&in); err != nil {
			return err
		}
		return t.EmitTensors(map[string]any{"again": []any{in.Small, in.Large}, "step": in.Step + 1}, bus.TensorOptions{})
	}},
	"relay": {Name: "relay", Handle: func(t *bus.Task, d *bus.Delivery) error {
		opts := []bus.EmitOption{bus.Key(d.Key)}
		for k, v := range d.Attrs {
			opts = append(opts, bus.Attr(k, v))
		}
		return t.Forward(d, opts...)
	}},
}

func line(names ...string) bus.Pipeline {
	specs := make([]bus.StageSpec, len(names))
	for i, n := range names {
		specs[i] = behaviours[n]
	}
	return testbus.Linear(specs...)
}

// send streams inputs and ends them.
func send(ctx context.Context, r *bus.Request, inputs ...string) error {
	for _, in := range inputs {
		if err := r.Send(ctx, in); err != nil {
			return err
		}
	}
	return r.CloseSend(ctx)
}

// results sends inputs and collects the results.
func results(t *testing.T, b testbus.Submitter, inputs ...string) ([]string, error) {
	t.Helper()
	r := testbus.StreamOf(t, b)
	sent := make(chan error, 1)
	go func() { sent <- send(t.Context(), r, inputs...) }()
	got, err := testbus.Receive(t, r)
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	return got, err
}

func wantResults(t *testing.T, b testbus.Submitter, inputs []string, want ...string) {
	t.Helper()
	got, err := results(t, b, inputs...)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("%q gave %q, %v; want %q", inputs, got, err, want)
	}
}

var conformance = []struct {
	name string
	run  func(t *testing.T, deploy deployment)
}{
	{"stages in a line", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("upper", "twice"))
		wantResults(t, b, []string{"a", "b"}, "A1", "A2", "B1", "B2")
		wantResults(t, b, nil)
	}},
	{"state, and what is left at the end", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("twice", "total"))
		wantResults(t, b, []string{"a", "b", "c"}, "total 6")
		wantResults(t, b, nil, "total 0")
	}},
	{"a join", func(t *testing.T, deploy deployment) {
		p := line("upper", "relay", "concat")
		p.Edges = []bus.Edge{{From: "upper", To: "concat"}, {From: "relay", To: "concat"}}
		wantResults(t, deploy(t, p), []string{"a", "b"}, "A+a", "B+b")
	}},
	{"a handler fails", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("upper", "picky"))
		_, err := results(t, deploy(t, line("picky")), "good", "bad")
		var at *bus.StageError
		if !errors.As(err, &at) || at.Stage != "picky" || at.Edge != "->picky" || at.Seq != 1 || !bytes.Contains([]byte(err.Error()), []byte("ValueError: I do not like it")) {
			t.Fatalf("the request ended with %v", err)
		}
		wantResults(t, b, []string{"good"}, "GOOD") // other requests are not affected
	}},
	{"an abort reaches the handler", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("stuck"))
		r := testbus.StreamOf(t, b)
		if err := send(t.Context(), r, "x"); err != nil {
			t.Fatal(err)
		}
		r.Abort(errors.New("enough"))
		if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrAborted) {
			t.Fatalf("the request ended with %v", err)
		}
	}},
	{"a deadline", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("stuck"))
		var r *bus.Request
		err := bus.ErrDeadline
		for limit := 50 * time.Millisecond; errors.Is(err, bus.ErrDeadline); limit *= 2 { // if it was too short to begin
			r, err = b.Stream(t.Context(), bus.WithDeadline(time.Now().Add(limit)))
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = send(t.Context(), r, "x") // the deadline may come first
		if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrDeadline) {
			t.Fatalf("the request ended with %v", err)
		}
	}},
	{"large payloads, with key and attributes", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("add", "relay"))
		for round := range 8 {
			r := testbus.StreamOf(t, b)
			in := bytes.Repeat([]byte{byte(round)}, 300<<10)
			if err := r.Input(t.Context()).EmitBytes(in, bus.Key("k"), bus.Attr("a", "b"), bus.Last()); err != nil {
				t.Fatal(err)
			}
			d, err := r.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := append(bytes.Repeat([]byte{byte(round + 1)}, 16), in[16:]...)
			if !bytes.Equal(d.Bytes(), want) {
				t.Fatalf("round %d: wrong bytes", round)
			}
			if err := d.Finish(nil); err != nil {
				t.Fatal(err)
			}
			if err := r.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"the envelope", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("relay"))
		r := testbus.StreamOf(t, b)
		if err := r.Send(t.Context(), "x", bus.Key("name"), bus.Attr("voice", "alto"), bus.Last()); err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d.Key != "name" || d.Attrs["voice"] != "alto" || d.Edge != "relay->" || d.Seq != 0 || d.Request != r.ID() {
			t.Errorf("delivery %+v", d.Delivery)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}},
	{"tensors in a value", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("nest", "relay"))
		small := codec.Tensor{DType: codec.DTypeInt16, Shape: []int{}, Data: []byte("ab")}
		large := codec.Tensor{DType: codec.DTypeBFloat16, Shape: []int{100, 350}, Data: bytes.Repeat([]byte("0123456"), 10_000)}
		r := testbus.StreamOf(t, b)
		if err := r.Input(t.Context()).EmitTensors(map[string]any{"small": small, "large": large, "step": 1}, bus.TensorOptions{}, bus.Last()); err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got, err := bus.Result[any](d)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(any(map[string]any{"again": []any{small, large}, "step": int64(2)}), got); diff != "" || d.PayloadCodec() != codec.IDBundle {
			t.Errorf("codec %d: %s", d.PayloadCodec(), diff)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}},
	{"many requests at once", func(t *testing.T, deploy deployment) {
		b := deploy(t, line("upper", "twice"))
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				in := fmt.Sprint("r", i)
				if got, err := results(t, b, in); err != nil || len(got) != 2 || got[0] != fmt.Sprint("R", i, "1") {
					t.Errorf("request %d: %q, %v", i, got, err)
				}
			})
		}
		wg.Wait()
	}},
}
