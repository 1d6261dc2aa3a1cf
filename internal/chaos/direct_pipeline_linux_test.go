package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// The pipeline with direct streams; the stages in brackets are there only with
// Python:
//
//	                                            ┌─ u (forward) ── caller
//	caller ── f (forward) ─[ p (Python, forward) ── g (forward) ]─ x (two of each) ─┤
//	                                            └─ v (derive) ── caller
//
// All stages have state of the request, and no delivery is handled twice: a request
// fails when the first of its processes dies. An input lies in the caller's memory
// until x has finished it, and a payload of x lies in the memory of x until the
// caller has finished it.
const (
	maxDirectInputs = 60
	outputsOfX      = 2
	directResults   = 2 // edges to the caller

	// The store of a process is small, so that its memory is soon reused.
	nodeBytes      = 1 << 20
	nodeLargeBytes = 64 << 10

	// directKillPause is long enough for some of the requests to complete.
	directKillPause = 150 * time.Millisecond
)

// Levels of payloads in this pipeline.
const (
	levelX = levelInput + 1 + iota
	levelV
)

// direct is the scenario with direct streams.
func direct(python bool) scenario {
	names := []string{"f", "x", "u", "v"}
	edges := [][2]string{{"", "f"}, {"f", "x"}, {"x", "u"}, {"x", "v"}, {"u", ""}, {"v", ""}}
	sc := scenario{hostRequests: 1, maxPause: directKillPause, mayFail: true, roundTrip: directTrip, join: node.JoinOptions{
		Store: shmstore.Options{ArenaBytes: nodeBytes, LargeObjectBytes: nodeLargeBytes, MaxLargeBytes: storeBytes},
	}}
	if _, err := exec.LookPath("python3"); python && err == nil {
		names = append(names, "p", "g")
		edges = append(edges[:1], append([][2]string{{"f", "p"}, {"p", "g"}, {"g", "x"}}, edges[2:]...)...)
	}
	for _, name := range names {
		r := role{name: "stage " + name, stage: name, env: []string{roleEnv + "=stage"}}
		replicas := stageReplicas
		switch name {
		case "p":
			r.python = "forward.py"
			fallthrough
		case "u", "v":
			replicas = 1
		}
		for range replicas {
			sc.roles = append(sc.roles, r)
		}
		sc.pipeline.Stages = append(sc.pipeline.Stages, bus.StageSpec{
			Name: name, Remote: &bus.Remote{}, Replicas: replicas, MaxInflight: stageReplicas * stageInflight / replicas, State: bus.StateRequest,
		})
	}
	for range 2 {
		sc.roles = append(sc.roles, role{name: "submitter", env: []string{roleEnv + "=submit"}})
	}
	for _, e := range edges {
		sc.pipeline.Edges = append(sc.pipeline.Edges, bus.Edge{From: e[0], To: e[1], Window: window, WindowBytes: windowBytes})
	}
	sc.options = busOptions()
	name := "direct"
	if python {
		name = "direct python"
	}
	return sc.named(name)
}

// directStage is a stage of this pipeline.
func directStage(name string) bus.StageSpec {
	spec := bus.StageSpec{Name: name, State: bus.StateRequest}
	switch name {
	case "f", "g":
		spec.Handle = forwardLevel(levelInput)
	case "u":
		spec.Handle = forwardLevel(levelX)
	case "x":
		spec.Handle = expand
	case "v":
		spec.Handle = func(t *bus.Task, d *bus.Delivery) error { return derive(t, d, levelX, levelV) }
	}
	return spec
}

// expand makes two payloads of each input, for both stages after it. It keeps some
// inputs for a while: the process that forwarded such an input may die meanwhile,
// and the process in whose memory the input lies must know that x still reads it.
func expand(t *bus.Task, d *bus.Delivery) error {
	faultpoint.Hit("stage-begin")
	tag, err := checkDelivery(d, levelInput)
	if err != nil {
		return err
	}
	for i := range uint64(outputsOfX) {
		if err := emit(t, payload(tag, levelX, d.Seq*outputsOfX+i), i == 0); err != nil {
			return err
		}
		faultpoint.Hit("stage-emitted")
	}
	if d.Seq%keepOneIn != 1 {
		_, err := checkDelivery(d, levelInput)
		return err
	}
	k := d.Keep()
	time.AfterFunc(keepFor, func() {
		_, err := checkDelivery(d, levelInput)
		_ = k.Finish(err) // fails only if another call has finished it
	})
	return nil
}

const (
	keepOneIn = 8
	keepFor   = 100 * time.Millisecond
)

// checkDelivery checks a payload. It prints an error for the test as well, since the
// request may have failed before, and its caller then gets no second error.
func checkDelivery(d *bus.Delivery, level int) (tag uint32, err error) {
	if tag, err = verify(d.Bytes(), level, d.Seq); err != nil {
		fmt.Printf("broken %q\n", fmt.Errorf("delivery %d: %w", d.Seq, err))
	}
	return tag, err
}

// forwardLevel returns a handler that checks and forwards payloads of a level.
func forwardLevel(level int) func(t *bus.Task, d *bus.Delivery) error {
	return func(t *bus.Task, d *bus.Delivery) error {
		faultpoint.Hit("stage-begin")
		if _, err := checkDelivery(d, level); err != nil {
			return err
		}
		if err := t.Forward(d); err != nil {
			return err
		}
		faultpoint.Hit("stage-emitted")
		return nil
	}
}

// directTrip sends one request through this pipeline and checks all results.
func directTrip(ctx context.Context, s submitter, tag uint32, i int) error {
	inputs := 1 + 7*i%maxDirectInputs
	r, err := s.Stream(ctx)
	if err != nil {
		return fmt.Errorf("start request %#x: %w", tag, err)
	}
	sent := make(chan error, 1)
	go func() { sent <- sendInputs(ctx, r, tag, inputs) }()
	c := collector{tag: tag, req: r}
	err = c.receive(ctx, uint64(inputs*outputsOfX))
	r.Close()
	if sendErr := <-sent; err == nil && sendErr != nil {
		err = fmt.Errorf("send inputs: %w", sendErr)
	}
	if err != nil {
		return fmt.Errorf("request %d (%#x, %d inputs), %v: %w", r.ID(), tag, inputs, r.Outcome(), err)
	}
	return nil
}

// collector receives the results of a request. It keeps some for a while, and
// checks them again before it finishes them, which detects memory that is reused
// too early.
type collector struct {
	tag  uint32
	req  *bus.Request
	next [directResults]uint64
	kept []result
}

type result struct {
	d     *bus.Delivery
	level int
	seq   uint64
}

// keptResults is how many results a collector keeps, fewer than the window of either edge.
const keptResults = window - 1

func (c *collector) receive(ctx context.Context, want uint64) error {
	defer func() {
		for _, k := range c.kept {
			_ = k.d.Finish(nil)
		}
	}()
	for {
		d, err := c.req.Recv(ctx)
		if err == nil {
			err = c.add(d)
			if err != nil {
				return err
			}
			continue
		}
		for len(c.kept) > 0 { // they stay readable after the request has ended
			if err := c.finishOldest(); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && c.next == [directResults]uint64{want, want}:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: it completed with %d of %d results", errBroken, c.next, want)
		}
		return fmt.Errorf("after %d of %d results: %w", c.next, want, err)
	}
}

// add checks a result, and keeps it.
func (c *collector) add(d *bus.Delivery) error {
	level := levelX
	if len(d.Bytes()) >= headerBytes && int(d.Bytes()[9])>>(seqBits-8) == levelV {
		level = levelV
	}
	edge := level - levelX
	k := result{d: d, level: level, seq: c.next[edge]}
	if err := c.check(k); err != nil {
		_ = d.Finish(nil)
		return err
	}
	c.next[edge]++
	c.kept = append(c.kept, k)
	if len(c.kept) > keptResults {
		return c.finishOldest()
	}
	return nil
}

func (c *collector) check(k result) error {
	got, err := verify(k.d.Bytes(), k.level, k.seq)
	if err == nil && (got != c.tag || k.d.Seq != k.seq) {
		err = fmt.Errorf("a result of request %#x with sequence %d instead of %d", got, k.d.Seq, k.seq)
	}
	if err != nil {
		return fmt.Errorf("%w: result %d of level %d: %w", errBroken, k.seq, k.level, err)
	}
	return nil
}

// finishOldest checks the oldest kept result again, and finishes it.
func (c *collector) finishOldest() error {
	k := c.kept[0]
	c.kept = c.kept[1:]
	err := c.check(k)
	if err != nil {
		err = fmt.Errorf("at the second check: %w", err)
	}
	return errors.Join(err, k.d.Finish(nil))
}
