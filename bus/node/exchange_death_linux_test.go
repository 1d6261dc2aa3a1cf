package node_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/shm"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	roles["exchange"] = func() {
		if err := exchangeChild(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
		}
	}
	roles["exchange host"] = hosting(testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))),
		bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
}

// exchangeChild executes the lines that it reads, and answers each: put KEY; get KEY, which keeps
// the payload; await KEY.
func exchangeChild(in io.Reader, out io.Writer) error {
	n, err := node.Join(context.Background(), "child", node.JoinOptions{ExchangeStore: exchangeStore})
	if err != nil {
		return err
	}
	e := n.Exchange()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		verb, key, _ := strings.Cut(lines.Text(), " ")
		payload := payloadOf(key)
		switch verb {
		case "put":
			_, err = e.Put(context.Background(), exchangeEdge, key, len(payload), filled(payload))
		case "get":
			_, err = e.Get(context.Background(), exchangeEdge, key, nil)
		case "await":
			go func() { _, _ = e.Await(context.Background(), exchangeEdge, key, nil) }()
			err = nil
		}
		if _, err := fmt.Fprintln(out, "done", err); err != nil {
			return err
		}
	}
	return lines.Err()
}

// payloadOf is the payload of a key. Small ones travel in messages.
func payloadOf(key string) []byte {
	switch {
	case strings.HasPrefix(key, "small"):
		return []byte(key)
	case strings.HasPrefix(key, "huge"): // in its own segment
		return bytes.Repeat([]byte(key[:5]), 1<<20)
	}
	return bytes.Repeat([]byte(key[:5]), 20_000)
}

// exchanger is a child process that uses an exchange.
type exchanger struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// exchanger starts a child. It dies at a fault point, if one is given.
func (h *hosted) exchanger(t *testing.T, fault string) *exchanger {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=exchange", node.EnvSocket+"="+h.path, faultpoint.Variable+"="+fault)
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	x := &exchanger{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(x.die)
	return x
}

// ask has the child execute a line, and reports whether the child lives.
func (x *exchanger) ask(what string) bool {
	x.t.Helper()
	if _, err := fmt.Fprintln(x.in, what); err != nil {
		return false
	}
	if !x.out.Scan() {
		return false
	}
	if got := x.out.Text(); got != "done <nil>" {
		x.t.Errorf("%s: %s", what, got)
	}
	return true
}

func (x *exchanger) mustAsk(what string) {
	x.t.Helper()
	if !x.ask(what) {
		x.t.Fatalf("the child is dead before it could %s", what)
	}
}

func (x *exchanger) die() {
	_ = x.cmd.Process.Signal(syscall.SIGKILL)
	_ = x.cmd.Wait()
}

// awaitProcesses waits until the host has released all processes but so many.
func (h *hosted) awaitProcesses(t *testing.T, but int) {
	t.Helper()
	testbus.Await(t, func() bool { return len(h.server.Processes()) == but })
}

// TestPutterDies: the placed payloads of a process go with it, wherever it dies, except those that
// other processes have fetched.
func TestPutterDies(t *testing.T) {
	for _, key := range []string{"small", "large", "huge "} {
		for _, fault := range []string{"node-before-place", "node-placed"} {
			t.Run(key+" at "+fault, func(t *testing.T) {
				h := exchangeHost(t, bus.Options{})
				n := h.exchange(t)
				if h.exchanger(t, fault).ask("put " + key) {
					t.Fatal("the child lives")
				}
				h.awaitProcesses(t, 1)
				wantNothing(t, n, key)
				h.wantEmpty(t)
			})
		}
		t.Run(key+" later", func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			n := h.exchange(t)
			x := h.exchanger(t, "")
			x.mustAsk("put " + key)
			x.mustAsk("put " + key + " unfetched")
			held := get(t, n, key)
			here, err := h.bus.Exchange().Await(t.Context(), exchangeEdge, key+" unfetched", nil)
			if err != nil {
				t.Fatal(err)
			}
			x.mustAsk("put " + key + "more")
			x.die()
			h.awaitProcesses(t, 1)
			wantNothing(t, n, key+"more")
			for _, p := range []connector.Payload{held, here} {
				if want := payloadOf(key); key != "small" && !bytes.Equal(p.Bytes(), want) {
					t.Errorf("%d bytes of a dead process differ from those that it put", len(p.Bytes()))
				}
				p.Release()
			}
			h.wantEmpty(t)
		})
	}
}

// TestFetcherDies: the payloads that a dead process had fetched are gone, and their memory returns
// to the process that put them. A payload that it had waited for stays for other processes.
func TestFetcherDies(t *testing.T) {
	for _, key := range []string{"small", "large", "huge "} {
		t.Run(key+" held", func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			n := h.exchange(t)
			meta := putAs(t, n, key, payloadOf(key))
			x := h.exchanger(t, "")
			x.mustAsk("get " + key)
			if len(h.server.Holdings()) != 1 {
				t.Errorf("the child holds %+v, want one payload", h.server.Holdings())
			}
			x.die()
			h.awaitProcesses(t, 1)
			h.wantEmpty(t)
			h.wantPlaced(t, 0)
			wantGone(t, n, key, meta)
			wantNothing(t, n, key)
			wantAllSpace(t, n)
		})
		t.Run(key+" as it comes", func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			n := h.exchange(t)
			put(t, n, key, payloadOf(key))
			if h.exchanger(t, "node-fetched").ask("get " + key) {
				t.Fatal("the child lives")
			}
			h.awaitProcesses(t, 1)
			h.wantEmpty(t)
			h.wantPlaced(t, 0)
		})
	}
	t.Run("waiting", func(t *testing.T) {
		h := exchangeHost(t, bus.Options{})
		n := h.exchange(t)
		x := h.exchanger(t, "")
		x.mustAsk("await large")
		testbus.Await(t, func() bool { return len(exchangeStalls(t, h)) == 1 })
		x.die()
		h.awaitProcesses(t, 1)
		put(t, n, "large", payloadOf("large"))
		get(t, n, "large").Release()
		h.wantEmpty(t)
	})
}

// wantAllSpace fails if a part of a node's memory stays in use.
func wantAllSpace(t *testing.T, n connector.Transport) {
	t.Helper()
	const size, all = 1 << 20, 6 // of 8 MiB, which may be cut up
	ctx, cancel := context.WithTimeout(t.Context(), testbus.Patience)
	defer cancel()
	for i := range all {
		if _, err := n.Put(ctx, exchangeEdge, fmt.Sprint("room", i), size, func([]byte) error { return nil }); err != nil {
			t.Errorf("after %d MiB of 8: %v", i, err)
			return
		}
	}
	for i := range all {
		if err := n.Cleanup(ctx, fmt.Sprint("room", i)); err != nil {
			t.Error(err)
		}
	}
}

// wantPlaced waits until so many payloads of processes are in the exchange, or fetched.
func (h *hosted) wantPlaced(t *testing.T, want int) {
	t.Helper()
	testbus.Await(t, func() bool {
		n := 0
		for _, p := range h.server.Processes() {
			n += p.Placed
		}
		return n == want
	})
}

// TestExchangeHostDies: operations fail until there is a new host, which has none of the old host's
// payloads. A fetched payload stays readable.
func TestExchangeHostDies(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	old := h.hostAlone(t)
	n := h.join(t, node.JoinOptions{Rejoin: true, ExchangeStore: exchangeStore})
	e := n.Exchange()
	put(t, e, "large", payloadOf("large"))
	put(t, e, "large and left", payloadOf("large"))
	held := get(t, e, "large")
	waited := make(chan error, 1)
	go func() {
		_, err := e.Await(context.Background(), exchangeEdge, "never", nil)
		waited <- err
	}()
	epoch := n.Epoch()
	kill(t, old)
	if err := <-waited; !errors.Is(err, bus.ErrHostGone) || !isUnavailable(err) {
		t.Errorf("an await whose host dies: %v, want ErrHostGone and ErrUnavailable", err)
	}
	testbus.Await(t, func() bool { return n.Epoch() == 0 })
	_, err := e.Put(context.Background(), exchangeEdge, "k", 3000, filled(payloadOf("large")))
	for name, err := range map[string]error{"put": err, "get": errOf(e.Get(t.Context(), exchangeEdge, "large", nil)), "cleanup": e.Cleanup(t.Context(), "k")} {
		if !errors.Is(err, bus.ErrHostGone) || !isUnavailable(err) {
			t.Errorf("%s without a host: %v, want ErrHostGone and ErrUnavailable", name, err)
		}
	}
	h.hostAlone(t)
	testbus.Await(t, func() bool { return n.Epoch() != 0 })
	if n.Epoch() == epoch {
		t.Error("the new host has the old one's epoch")
	}
	wantNothing(t, e, "large and left")
	put(t, e, "large", payloadOf("large"))
	get(t, e, "large").Release()
	if !bytes.Equal(held.Bytes(), payloadOf("large")) {
		t.Error("a payload that was fetched from the old host has changed")
	}
	held.Release()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// hostAlone starts a host that can be killed.
func (h *hosted) hostAlone(t *testing.T) *exec.Cmd {
	t.Helper()
	return h.hostAs(t, "exchange host")
}

// TestExchangeHostStops: with a stopped host, no operation waits longer than its context and the
// grace period, and no payload is lost when the host continues.
func TestExchangeHostStops(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	cmd := h.hostAlone(t)
	e := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore}).Exchange()
	put(t, e, "large", payloadOf("large"))
	stopProcess(t, cmd.Process)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for _, key := range []string{"large", "never"} {
		if _, err := e.Await(ctx, exchangeEdge, key, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("await %q at a host that is stopped: %v, want the context's error", key, err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p, err := e.Await(t.Context(), exchangeEdge, "large", nil)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p.Bytes(), payloadOf("large")) {
		t.Error("the payload differs from the one that was put")
	}
	p.Release()
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestPutWhenHostIsStopped: a put that ends without an answer blames the host, although the same
// timeout also bounds the wait for space.
func TestPutWhenHostIsStopped(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	cmd := h.hostAlone(t)
	n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	var types connector.Registry
	if err := types.Register(shm.Type()); err != nil {
		t.Fatal(err)
	}
	extra := map[string]any{"timeout": "250ms", "shm_threshold_bytes": 0} // enough time to find space
	c, err := types.Open(t.Context(), shm.Name, connector.Options{Extra: extra, Exchange: n})
	if err != nil {
		t.Fatal(err)
	}
	stopProcess(t, cmd.Process)
	_, _, err = c.PutBytes(t.Context(), exchangeEdge, "k", payloadOf("large"))
	if !errors.Is(err, context.DeadlineExceeded) || !isUnavailable(err) || errors.Is(err, connector.ErrFull) {
		t.Errorf("a put at a host that is stopped: %v, want ErrUnavailable", err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestExchangeIsReleasedAtNextHost: after a node has joined the next host, it holds nothing of the
// exchange of the earlier one.
func TestExchangeIsReleasedAtNextHost(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	n := (*node.Node)(nil)
	files := 0
	for life := range 4 {
		cmd := h.hostAlone(t)
		if n == nil {
			n = h.join(t, node.JoinOptions{Rejoin: true, ExchangeStore: exchangeStore})
		}
		testbus.Await(t, func() bool { return n.Epoch() != 0 })
		e := n.Exchange()
		for _, key := range []string{"small", "large", "huge "} {
			put(t, e, key, payloadOf(key))
			put(t, e, key+" unfetched", payloadOf(key))
			get(t, e, key).Release()
		}
		if life == 0 {
			files = testbus.OpenFiles(t)
		}
		testbus.Await(t, func() bool { return testbus.OpenFiles(t) <= files })
		epoch := n.Epoch()
		kill(t, cmd)
		testbus.Await(t, func() bool { return n.Epoch() != epoch })
	}
}

// TestNodeClosesWithPayloads: closing a node waits until its fetched payloads are released.
func TestNodeClosesWithPayloads(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{ExchangeStore: exchangeStore})
	e := n.Exchange()
	put(t, e, "large", payloadOf("large"))
	held := get(t, e, "large")
	closed := make(chan error, 1)
	go func() { closed <- n.Close(context.Background()) }()
	if _, err := e.Await(context.Background(), exchangeEdge, "never", nil); !errors.Is(err, connector.ErrClosed) && !isUnavailable(err) {
		t.Errorf("an await of a node that closes: %v", err)
	}
	select {
	case err := <-closed:
		t.Fatalf("the node is closed while a payload is held: %v", err)
	default:
	}
	if !bytes.Equal(held.Bytes(), payloadOf("large")) {
		t.Error("a payload of a node that closes has changed")
	}
	held.Release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	h.awaitProcesses(t, 0)
	h.wantEmpty(t)
}
