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

// ErrUntrusted reports a socket that may belong to another user: see [JoinOptions.AllowUIDs].
var ErrUntrusted = peer.ErrUntrusted

// Environment variables that a host sets for the processes it starts.
const (
	EnvSocket = "OMNIBUS_SOCKET" // the path of the host's socket
	EnvBus    = "OMNIBUS_BUS"    // the name of the bus
	// EnvReplica is the number of the replica of its stage that the process is. A process that has
	// it ends with its host.
	EnvReplica = "OMNIBUS_REPLICA"
	EnvStage   = "OMNIBUS_STAGE" // the stage to serve
)

// JoinOptions configure Join. The zero value works in a process that a host started.
type JoinOptions struct {
	// Socket is the path of the host's socket; default is SocketPath of the bus.
	Socket string
	// Bus is the name of the bus. Join fails if the socket belongs to another bus. With neither
	// name nor socket, $OMNIBUS_SOCKET and $OMNIBUS_BUS give both.
	Bus string
	// AllowUIDs are the users whose host may be joined, besides the user of this process. Join
	// sends nothing to a host of another user (the superuser included), nor to a host in a folder
	// where another user could have created the socket; it returns ErrUntrusted.
	AllowUIDs []uint32
	// Store describes the memory of this process's payloads: one store for each stage, and one for
	// the inputs of requests. By default a store is as large as its windows need.
	Store shmstore.Options
	// ExchangeStore describes the memory of the payloads that this process puts into the host's
	// exchange. The memory is created with the first payload that does not travel in a message;
	// default 64 MiB, and large objects of 1 GiB together.
	ExchangeStore shmstore.Options
	// MaxRequests bounds the live requests that this process has submitted; default 64.
	MaxRequests int
	// GPU describes the lane for tensors in GPU memory. With nil, only tensors in host memory can
	// be sent and received.
	GPU *bus.GPUOptions
	// Serializer turns values into payloads; default msgpack.
	Serializer codec.Serializer
	// Wait is how this process waits for other processes; default is $OMNIBUS_WAIT, or else
	// WaitBalanced.
	Wait bus.Wait
	// Rejoin has the node wait while there is no host: in Join, until its context ends, and after
	// its host has drained, was closed or died. The node serves its stages at the next host. A
	// process that a host started ends when that host drains, with Rejoin too.
	Rejoin bool
	// Logger receives panics, and the loss and return of hosts; nil discards.
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

// SocketPath is where the host of a bus listens by default: omnibus/<bus>.sock under
// $XDG_RUNTIME_DIR, or under a private directory of the user in the directory for temporary files.
// A name with a separator of paths is refused, since it leads out of that directory.
func SocketPath(name string) (string, error) {
	if strings.ContainsAny(name, "/"+string(filepath.Separator)) {
		return "", fmt.Errorf("%w: %q is no name of a bus, but a path: give the path of its socket", bus.ErrConfig, name)
	}
	return filepath.Join(SocketFolder(), name+".sock"), nil
}

// SocketFolder is the directory of the paths that SocketPath returns.
func SocketFolder() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "omnibus")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("omnibus-%d", os.Getuid()))
}

// Node is a process that takes part in a bus which another process hosts. Its methods are safe for
// concurrent use.
//
// A node serves and submits as the host itself does. Payloads that do not travel in messages are
// not copied: the node writes them to its own memory, which the other processes read, and reads the
// payloads of others where they lie. An error from another process keeps its text and its place
// (stage, edge, key, sequence).
type Node struct {
	name string
	opts JoinOptions

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned

	directory    nodeDirectory
	lane         *lane.Lane
	report       tensorReport
	closingLinks sync.WaitGroup // goroutines that close the links to earlier hosts

	mu       lockorder.Mutex[lockorder.Node]
	link     *link         // to the current host; nil: there is none
	linked   chan struct{} // closed when link is set, and replaced when it is cleared
	calls    []*serveCall  // calls of Serve
	owners   uint32        // the number of the last end of the exchange
	finalErr error         // why no further host is joined
}

// Join connects to the host of a bus. The name appears in reports. The context bounds only the
// connecting. An error for lack of descriptors or memory wraps the system's error, such as
// syscall.EMFILE, and says which limit to raise.
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

// connect dials the host, and makes the link the current one.
func (n *Node) connect(ctx context.Context) (*link, error) {
	l, err := dialLink(ctx, n.opts.Socket, peer.DialOptions{AllowUIDs: n.opts.AllowUIDs}, n.opts.Bus, n.name, n.opts.Wait)
	if err != nil {
		return nil, err
	}
	l.node = n
	l.exchange = exchange.NewValueStore(n.opts.ExchangeStore)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil { // Close has read n.link before this link exists
		l.hangUp()
		return nil, bus.ErrClosed
	}
	l.figures.base = n.lane.Stats()
	n.link = l
	close(n.linked)
	return l, nil
}

// run serves one link after the other until the node is closed, or its host is gone and Rejoin is
// off.
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
		n.opts.Logger.Warn("the host is gone; waiting for a new one", slog.String("socket", n.opts.Socket), slog.Any("error", l.state.hostErr()))
		var err error
		if l, err = n.findHost(n.ctx, isTransient); err != nil {
			n.finish(err)
			return
		}
		n.opts.Logger.Info("joined a new host", slog.Uint64("epoch", l.welcome.Epoch))
		// A goroutine, since the reader that delivers the answers starts with the next iteration.
		go func(l *link) {
			n.directory.republish(l)
			n.serveAll(l)
		}(l)
	}
}

// The pause between attempts to connect grows from rejoinFirst to rejoinMost.
const (
	rejoinFirst = 10 * time.Millisecond
	rejoinMost  = time.Second
)

// findHost tries to connect until it succeeds, a context ends, or passes reports false: then the
// error is not a temporary one.
func (n *Node) findHost(ctx context.Context, passes func(error) bool) (*link, error) {
	said := ""
	for pause := rejoinFirst; ; pause = min(2*pause, rejoinMost) {
		l, err := n.connect(ctx)
		if err == nil {
			return l, nil
		}
		if text := err.Error(); text != said && ctx.Err() == nil { // each text is logged once
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

// isTransient reports whether a later attempt to connect may succeed. A host that refuses this node
// keeps refusing, unless the reason is that the host is closing.
func isTransient(err error) bool {
	var refused *wire.Error
	return !errors.As(err, &refused) || refused.Code == wire.CodeClosing
}

// hostAbsent reports whether there was no host, or a closing one. The first Join waits for no other
// reason: any other error means a wrong address or a wrong user.
func hostAbsent(err error) bool {
	for _, absent := range []error{fs.ErrNotExist, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, io.EOF} {
		if errors.Is(err, absent) {
			return true
		}
	}
	var refused *wire.Error
	return errors.As(err, &refused) && refused.Code == wire.CodeClosing
}

// finish records that no further host is joined, and wakes the goroutines that wait for one.
func (n *Node) finish(err error) {
	n.directory.close(err)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.finalErr = err
	close(n.linked)
}

// awaitLink returns the link to the current host, and waits while there is none.
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

// currentLink returns the link to the current host; ErrHostGone: there is none.
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

// closeLink closes the buses and the memory of a link whose host is gone, on a goroutine of its
// own.
func (n *Node) closeLink(l *link) {
	ctx := context.Background() // handlers return, since their tasks have ended
	n.closingLinks.Go(func() {
		for _, p := range l.peers.list() {
			p.stopEmissions()
		}
		err := l.closeStages(ctx)
		for _, st := range l.work.servedStages() {
			st.Arena.Release()
		}
		if caller := l.work.callerPart(); caller != nil {
			// Callers may still read results of completed requests, and peers may still read their
			// inputs; each peer has its own mapping.
			err = errors.Join(err, caller.Bus.Drain(ctx))
			l.giveBackPeers()
			err = errors.Join(err, l.closeCaller(ctx))
			caller.Arena.Release()
		}
		l.closePeers()
		err = errors.Join(err, l.exchange.Close(ctx))
		if err != nil {
			n.opts.Logger.Error("close the connection to a host that is gone", slog.Any("error", err))
		}
	})
}

// Call sends a method call to the host: docs/protocol.md lists the methods. The answer is JSON.
func (n *Node) Call(ctx context.Context, method string, arguments []byte) ([]byte, error) {
	l, err := n.awaitLink(ctx)
	if err != nil {
		return nil, err
	}
	return l.call(ctx, method, arguments)
}

// TensorStats counts the GPU tensors that this process has sent and received.
func (n *Node) TensorStats() lane.Stats { return n.lane.Stats() }

// Epoch identifies the current host among all hosts of the bus, earlier and later ones; 0: there is
// none.
func (n *Node) Epoch() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link == nil {
		return 0
	}
	return n.link.welcome.Epoch
}

// Close leaves the bus. Open requests end with ErrClosed. Tasks are aborted here, and their
// unhandled deliveries are handled elsewhere as if this process had died. Close waits until
// handlers have returned and received results are finished, or the context ends.
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

// closeLane closes the lane after closeLink has returned for every earlier host.
func (n *Node) closeLane(ctx context.Context) error {
	if err := waiting.For(ctx, &n.closingLinks); err != nil {
		return fmt.Errorf("close the connections to earlier hosts: %w", err)
	}
	return n.lane.Close(ctx)
}
