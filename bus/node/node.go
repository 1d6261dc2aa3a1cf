package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/waiting"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// ErrUntrusted reports a socket that may be another user's: see [JoinOptions.AllowUIDs].
var ErrUntrusted = peer.ErrUntrusted

// Environment variables that a host sets for the processes it starts.
const (
	EnvSocket = "OMNIBUS_SOCKET" // the path of the host's socket
	EnvBus    = "OMNIBUS_BUS"    // the name of the bus
	// EnvReplica says which replica of its stage the process is, and so that it ends with its host.
	EnvReplica = "OMNIBUS_REPLICA"
	EnvStage   = "OMNIBUS_STAGE" // the stage to serve
)

// JoinOptions configure Join. The zero value works in a process that a host
// started.
type JoinOptions struct {
	// Socket is the path of the host's socket; default what SocketPath says
	// for the bus.
	Socket string
	// Bus is the name of the bus. Another bus at the socket is an error. With
	// neither name nor socket, $OMNIBUS_SOCKET and $OMNIBUS_BUS say both.
	Bus string
	// AllowUIDs are the users whose host may be joined, besides the one that this
	// process runs as. Nothing is sent to a host of another user, the superuser's
	// too, nor to one in a folder where another user could have put the socket: Join
	// returns ErrUntrusted.
	AllowUIDs []uint32
	// Store describes the memory that this process's payloads lie in, for each
	// stage, and for the inputs of requests. By default it is as large as the
	// windows need.
	Store shmstore.Options
	// ExchangeStore describes the memory of what this process puts into the
	// host's exchange, which is made with the first of that; default 64 MiB, and
	// large objects of 1 GiB together.
	ExchangeStore shmstore.Options
	// MaxRequests bounds the requests that this process has submitted and that
	// are alive; default 64.
	MaxRequests int
	// GPU describes the lane that carries tensors in the memory of GPUs; nil: there
	// is none, and only tensors in host memory can be sent and received.
	GPU *bus.GPUOptions
	// Serializer turns values into payloads; default msgpack.
	Serializer codec.Serializer
	// Wait is how this process waits for others; default what $OMNIBUS_WAIT says, and else
	// WaitBalanced.
	Wait bus.Wait
	// Rejoin has the node wait for a host when there is none: in Join, until its context ends, and
	// when its host has drained, was closed or died. It serves its stages at the next one. A process
	// that a host has started ends when that drains, all the same.
	Rejoin bool
	// Logger is told of panics, and of hosts that come and go; nil discards.
	Logger *slog.Logger
}

// defaultNodeRequests is the default of JoinOptions.MaxRequests.
const defaultNodeRequests = 64

func (o JoinOptions) withDefaults() JoinOptions {
	if o.Socket == "" && o.Bus == "" {
		o.Socket, o.Bus = os.Getenv(EnvSocket), os.Getenv(EnvBus)
	}
	o.MaxRequests = cmp.Or(o.MaxRequests, defaultNodeRequests)
	o.Wait = o.Wait.WithDefault()
	if o.Serializer == nil {
		o.Serializer = codec.MsgpackSerializer{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// SocketPath is where the host of a bus listens unless it is told otherwise:
// omnibus/<bus>.sock under $XDG_RUNTIME_DIR, or under a private directory of
// the user's among the temporary ones. A name that is a path leads out of there, and
// is refused.
func SocketPath(name string) (string, error) {
	if strings.ContainsAny(name, "/"+string(filepath.Separator)) {
		return "", fmt.Errorf("%w: %q is no name of a bus, but a path: give the path of its socket", bus.ErrConfig, name)
	}
	return filepath.Join(SocketFolder(), name+".sock"), nil
}

// SocketFolder is the folder of the paths that SocketPath makes.
func SocketFolder() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "omnibus")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("omnibus-%d", os.Getuid()))
}

// Node is a process that takes part in a bus which another process hosts. Its
// methods are safe for concurrent use.
//
// What it serves and submits behaves as in the host itself. Payloads are not
// copied: those it emits lie in memory of its own that the others can read,
// those it gets lie where they were written. What crosses a process boundary
// of an error is its text, and where it happened.
type Node struct {
	name string
	opts JoinOptions

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   chan struct{} // the node has ended

	directory    nodeDirectory
	lane         *lane.Lane
	report       tensorReport
	closingLinks sync.WaitGroup // of what ran for hosts that are gone

	mu       lockorder.Mutex[lockorder.Node]
	link     *link         // to the host of now; nil: there is none
	linked   chan struct{} // closed when there is one, and replaced when it is gone
	calls    []*serveCall  // of Serve
	owners   uint32        // ends of the exchange that were opened
	finalErr error         // why there will be no host any more
}

// Join connects to the host of a bus. The name is for reports. The context is
// for connecting alone. An error for want of descriptors or memory wraps that of the
// system, such as syscall.EMFILE, and says which limit to raise.
func Join(ctx context.Context, name string, opts JoinOptions) (*Node, error) {
	opts = opts.withDefaults()
	if err := opts.Wait.Validate(); err != nil {
		return nil, fmt.Errorf("bus: join: %w", err)
	}
	if opts.Socket == "" && opts.Bus != "" {
		var err error
		if opts.Socket, err = SocketPath(opts.Bus); err != nil {
			return nil, fmt.Errorf("bus: join: %w", err)
		}
	}
	if opts.Socket == "" {
		return nil, fmt.Errorf("%w: join: no socket: set JoinOptions.Socket or Bus, or run under a host, which sets $%s", bus.ErrConfig, EnvSocket)
	}
	n := &Node{name: name, opts: opts, done: make(chan struct{}), linked: make(chan struct{})}
	n.directory.node = n
	n.ctx, n.cancel = context.WithCancel(context.Background())
	var err error
	if n.lane, err = bus.OpenLane(ctx, opts.GPU, n.Directory(), opts.Logger); err != nil {
		n.cancel()
		return nil, fmt.Errorf("bus: join: %w", limits.Explain(err))
	}
	n.report.node = n
	n.lane.OnCount(n.report.schedule)
	l, err := n.connect(ctx)
	if err != nil && opts.Rejoin && hostAbsent(err) {
		l, err = n.findHost(ctx, hostAbsent)
	}
	if err != nil {
		n.cancel()
		return nil, fmt.Errorf("bus: join: %w", errors.Join(limits.Explain(err), n.lane.Close(ctx)))
	}
	go n.run(l)
	return n, nil
}

// connect makes a link.
func (n *Node) connect(ctx context.Context) (*link, error) {
	l, err := dialLink(ctx, n.opts.Socket, peer.DialOptions{AllowUIDs: n.opts.AllowUIDs}, n.opts.Bus, n.name, n.opts.Wait)
	if err != nil {
		return nil, err
	}
	l.node = n
	l.exchange = exchange.NewRoom(n.opts.ExchangeStore)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil { // Close has looked for a link already, and found none
		l.hangUp()
		return nil, bus.ErrClosed
	}
	l.figures.base = n.lane.Stats()
	n.link = l
	close(n.linked)
	return l, nil
}

// run keeps the node connected until it is closed, or its host is gone for
// good.
func (n *Node) run(l *link) {
	defer close(n.done)
	for {
		l.run()
		n.mu.Lock()
		n.link, n.linked = nil, make(chan struct{})
		n.mu.Unlock()
		n.closeLink(l)
		if !n.opts.Rejoin || n.ctx.Err() != nil {
			n.finish(l.state.hostErr())
			return
		}
		n.opts.Logger.Warn("the host is gone; looking for a new one", slog.String("socket", n.opts.Socket), slog.Any("error", l.state.hostErr()))
		var err error
		if l, err = n.findHost(n.ctx, isTransient); err != nil {
			n.finish(err)
			return
		}
		n.opts.Logger.Info("joined a new host", slog.Uint64("epoch", l.welcome.Epoch))
		// The answers come through the link's reader, which starts now.
		go func(l *link) { // this one, though it may be over by then
			n.directory.republish(l)
			n.serveAll(l)
		}(l)
	}
}

// The pauses between attempts to find a host.
const (
	rejoinFirst = 10 * time.Millisecond
	rejoinMost  = time.Second
)

// findHost connects to a host as soon as there is one. It gives up when the error is none that passes.
func (n *Node) findHost(ctx context.Context, passes func(error) bool) (*link, error) {
	said := ""
	for pause := rejoinFirst; ; pause = min(2*pause, rejoinMost) {
		l, err := n.connect(ctx)
		if err == nil {
			return l, nil
		}
		if text := err.Error(); text != said && ctx.Err() == nil { // once each: it may last
			said = text
			n.opts.Logger.Warn("no host yet", slog.Any("error", err))
		}
		if !passes(err) {
			return nil, err
		}
		select {
		case <-n.ctx.Done():
			return nil, bus.ErrClosed
		case <-ctx.Done():
			return nil, fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		case <-time.After(pause):
		}
	}
}

// isTransient reports whether the next attempt to connect may end otherwise: a host that refuses this node
// does not change its mind, unless it is about to end.
func isTransient(err error) bool {
	var refused *wire.Error
	return !errors.As(err, &refused) || refused.Code == wire.CodeClosing
}

// hostAbsent reports whether a host was not there, or was about to end. A node that has never seen its host waits
// for nothing else: the address, or the users that it is for, are wrong then.
func hostAbsent(err error) bool {
	for _, absent := range []error{fs.ErrNotExist, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, io.EOF} {
		if errors.Is(err, absent) {
			return true
		}
	}
	var refused *wire.Error
	return errors.As(err, &refused) && refused.Code == wire.CodeClosing
}

// finish notes that there will be no host any more.
func (n *Node) finish(err error) {
	n.directory.close(err)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.finalErr = err
	close(n.linked)
}

// awaitLink waits for a host.
func (n *Node) awaitLink(ctx context.Context) (*link, error) {
	for {
		n.mu.Lock()
		l, linked, err := n.link, n.linked, n.finalErr
		n.mu.Unlock()
		switch {
		case l != nil:
			return l, nil
		case err != nil:
			return nil, err
		}
		select {
		case <-linked:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// currentLink is the host of now.
func (n *Node) currentLink() (*link, error) {
	n.mu.Lock()
	l, gone := n.link, n.finalErr
	n.mu.Unlock()
	if l == nil && gone == nil {
		gone = fmt.Errorf("%w, and there is no new one yet", bus.ErrHostGone)
	}
	if l == nil {
		return nil, gone
	}
	return l, nil
}

// closeLink ends what ran for a host that is gone.
func (n *Node) closeLink(l *link) {
	ctx := context.Background() // handlers end by themselves, now that their tasks are over
	n.closingLinks.Go(func() {
		for _, p := range l.peers.list() {
			p.stopEmissions()
		}
		err := l.closeStages(ctx)
		for _, st := range l.work.servedStages() {
			st.Arena.Release()
		}
		if caller := l.work.callerPart(); caller != nil {
			// Callers may still read results of requests that completed, and peers
			// their inputs, of which each has a mapping of its own.
			err = errors.Join(err, caller.Bus.Drain(ctx))
			l.giveBackPeers()
			err = errors.Join(err, l.closeCaller(ctx))
			caller.Arena.Release()
		}
		l.closePeers()
		err = errors.Join(err, l.exchange.Close(ctx))
		if err != nil {
			n.opts.Logger.Error("close what ran for a host that is gone", slog.Any("error", err))
		}
	})
}

// Call asks the host about the bus: see docs/protocol.md for the methods. The
// answer is JSON.
func (n *Node) Call(ctx context.Context, method string, arguments []byte) ([]byte, error) {
	l, err := n.awaitLink(ctx)
	if err != nil {
		return nil, err
	}
	return l.call(ctx, method, arguments)
}

// TensorStats are the figures of tensors on GPUs that this process sends and
// receives.
func (n *Node) TensorStats() lane.Stats { return n.lane.Stats() }

// Epoch tells the host of now from all others, before and after it; 0: there
// is none.
func (n *Node) Epoch() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link == nil {
		return 0
	}
	return n.link.welcome.Epoch
}

// Close leaves the bus. Requests that are open end with ErrClosed. Tasks are
// aborted here, and what was not handled of them is handled elsewhere as if this
// process had died. It waits for handlers to return, and for results that were received
// to be finished, until the context ends.
func (n *Node) Close(ctx context.Context) error {
	n.cancel()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	var err error
	if l != nil {
		err = l.close(ctx)
	}
	<-n.done
	err = errors.Join(err, n.closeLane(ctx), accounts.Unmapped(ctx))
	n.directory.watches.Close(bus.ErrClosed)
	if err != nil {
		return fmt.Errorf("bus: close the node: %w", err)
	}
	return nil
}

// closeLane closes the lane, when nothing that uses it is open any more.
func (n *Node) closeLane(ctx context.Context) error {
	if err := waiting.For(ctx, &n.closingLinks); err != nil {
		return fmt.Errorf("what ran for hosts that are gone is not over: %w", err)
	}
	return n.lane.Close(ctx)
}
