package chaos

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// rejoinEnv has a process look for a new host when its own is gone.
const rejoinEnv = "OMNIBUS_CHAOS_REJOIN"

// serveStage is the process of a stage.
func serveStage() error {
	name := os.Getenv(node.EnvStage)
	opts := currentScenario().join
	opts.Rejoin = os.Getenv(rejoinEnv) != ""
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n, err := node.Join(ctx, name, opts)
	if err != nil {
		return err
	}
	if err := n.Serve(ctx, stageSpec(name, n.Exchange())); err != nil {
		return err
	}
	return n.Close(context.Background())
}

// stageSpec is a stage with its process's end of the exchange. Its entries there are
// removed with the node.
func stageSpec(name string, exchange connector.Transport) bus.StageSpec {
	spec := bus.StageSpec{Name: name, State: bus.StateNone}
	switch name {
	case "a":
		spec.Handle = func(t *bus.Task, d *bus.Delivery) error { return derive(t, d, levelInput, levelA) }
	case "b":
		spec.Handle = func(t *bus.Task, d *bus.Delivery) error { return derive(t, d, levelA, levelB) }
	case "d":
		spec.Handle = func(t *bus.Task, d *bus.Delivery) error { return forward(t, d, exchange) }
	case "e":
		spec.Join = join
	case "c":
		spec.State, spec.Handle = bus.StateRequest, double
	case "k", "m":
		return dropStage(name)
	default:
		return directStage(name)
	}
	if actsAtEnd(name) {
		spec.End = func(*bus.Task) error { return nil }
	}
	return spec
}

// actsAtEnd reports whether a stage has a function for the end of a request; the host asks such a
// stage to end its tasks.
func actsAtEnd(name string) bool { return name == "a" || name == "e" }

// derive makes the payload of the next level.
func derive(t *bus.Task, d *bus.Delivery, from, to int) error {
	faultpoint.Hit("stage-begin")
	tag, err := verify(d.Bytes(), from, d.Seq)
	if err != nil {
		return err
	}
	if err := emit(t, payload(tag, to, d.Seq), d.Seq%2 == 0); err != nil {
		return err
	}
	faultpoint.Hit("stage-emitted")
	return nil
}

// emit sends a payload: in place, or as a copy.
func emit(t *bus.Task, p []byte, inPlace bool) error {
	if !inPlace {
		return t.EmitBytes(p)
	}
	b, err := t.Reserve(len(p)+int(p[0]), codec.IDRaw)
	if err != nil {
		return err
	}
	half := copy(b.Bytes(), p[:len(p)/2])
	faultpoint.Hit("stage-half-written")
	copy(b.Bytes()[half:], p[half:])
	return b.Send(len(p))
}

// forward forwards a payload by reference, after a detour through the exchange.
func forward(t *bus.Task, d *bus.Delivery, exchange connector.Transport) error {
	faultpoint.Hit("stage-begin")
	if _, err := verify(d.Bytes(), levelA, d.Seq); err != nil {
		return err
	}
	if err := detour(d, exchange); err != nil {
		return err
	}
	if err := t.Forward(d); err != nil {
		return err
	}
	faultpoint.Hit("stage-emitted")
	return nil
}

// detour puts a payload under a key that no other process uses, and gets it.
func detour(d *bus.Delivery, exchange connector.Transport) error {
	edge, key := connector.Edge{From: "d", To: "d"}, fmt.Sprintf("%d_%p_%d", os.Getpid(), d, d.Seq)
	ctx := context.Background()
	meta, err := exchange.Put(ctx, edge, key, len(d.Bytes()), func(dst []byte) error { copy(dst, d.Bytes()); return nil })
	if err != nil {
		return err
	}
	if d.Seq%2 == 0 {
		meta = nil // found by its key alone, through the host
	}
	got, err := exchange.Await(ctx, edge, key, meta)
	if err != nil {
		return err
	}
	defer got.Release()
	_, err = verify(got.Bytes(), levelA, d.Seq)
	return err
}

// join checks that both branches have the same request and sequence.
func join(t *bus.Task, parts []*bus.Delivery) error {
	faultpoint.Hit("stage-begin")
	b, err := verify(parts[0].Bytes(), levelB, parts[0].Seq)
	if err != nil {
		return fmt.Errorf("branch of b: %w", err)
	}
	d, err := verify(parts[1].Bytes(), levelA, parts[0].Seq)
	if err != nil {
		return fmt.Errorf("branch of d: %w", err)
	}
	if b != d {
		return fmt.Errorf("request %#x is joined with request %#x", b, d)
	}
	if err := emit(t, payload(b, levelE, parts[0].Seq), parts[0].Seq%2 == 1); err != nil {
		return err
	}
	faultpoint.Hit("stage-emitted")
	return nil
}

// double counts the request's inputs, which detects a replay that leaves one out or
// has the state of another request. It makes two payloads of each input.
func double(t *bus.Task, d *bus.Delivery) error {
	faultpoint.Hit("stage-begin")
	count, _ := t.State.(uint64)
	if d.Seq != count {
		return fmt.Errorf("sequence %d after %d handled inputs", d.Seq, count)
	}
	t.State = count + 1
	tag, err := verify(d.Bytes(), levelE, d.Seq)
	if err != nil {
		return err
	}
	for i := range uint64(outputsOfC) {
		if err := emit(t, payload(tag, levelC, d.Seq*outputsOfC+i), i == 0); err != nil {
			return err
		}
		faultpoint.Hit("stage-emitted")
	}
	return nil
}
