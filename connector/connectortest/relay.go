package connectortest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/omnibus-runtime/omnibus/connector"
)

// ErrGone reports that the process behind a [Relay] has ended.
var ErrGone = errors.New("connectortest: the other process is gone")

// Relay is a transport that calls a transport of another process, which runs [Serve], so that a
// test can have its two ends in two processes, and kill one:
//
//	relay := connectortest.NewRelay(stdout, stdin) // of a child that serves its own
type Relay struct {
	out outbox

	mu      sync.Mutex
	last    uint64
	pending map[uint64]chan reply
	gone    bool
}

var _ connector.Transport = (*Relay)(nil)

// A request is a call of a transport's method, with the number of its reply.
type request struct {
	ID      uint64
	Op      string
	Edge    connector.Edge
	Key     string
	Meta    connector.Metadata
	Payload []byte `json:"-"` // follows the JSON
	Fails   bool   // of a put: fill fails
}

const (
	opPut     = "put"
	opGet     = "get"
	opAwait   = "await"
	opCleanup = "cleanup"
	opClose   = "close"
	opCancel  = "cancel" // of the request with this number, which is answered nevertheless
)

type reply struct {
	ID      uint64
	Meta    connector.Metadata
	Payload []byte `json:"-"` // follows the JSON
	Error   string
	Is      []string
}

// outbox sends messages one after the other. It has its own lock: a sender waits until the other
// side reads, and the other side may wait for another lock meanwhile.
type outbox struct {
	mu sync.Mutex
	w  io.Writer
}

// send writes a message: a line of JSON with the size of the payload that follows.
func (o *outbox) send(message any, payload []byte) error {
	line, err := json.Marshal(struct {
		Message any
		Size    int
	}{message, len(payload)})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err = o.w.Write(append(append(line, '\n'), payload...))
	return err
}

// receive reads a message and returns the payload that follows.
func receive(r *bufio.Reader, message any) (payload []byte, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	head := struct {
		Message any
		Size    int
	}{Message: message}
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, err
	}
	payload = make([]byte, head.Size)
	_, err = io.ReadFull(r, payload)
	return payload, err
}

// sentinels are the errors that keep their identity across processes.
var sentinels = map[string]error{
	"not found": connector.ErrNotFound, "key": connector.ErrKey, "metadata": connector.ErrMetadata,
	"corrupt": connector.ErrCorrupt, "busy": connector.ErrBusy, "full": connector.ErrFull,
	"too large": connector.ErrTooLarge, "closed": connector.ErrClosed, "unavailable": connector.ErrUnavailable,
	"deadline": context.DeadlineExceeded, "canceled": context.Canceled, "fill": errFill,
}

// relayedError is an error from the other process.
type relayedError struct {
	text string
	is   []error
}

func (e relayedError) Error() string   { return e.text }
func (e relayedError) Unwrap() []error { return e.is }

func (r *reply) fail(err error) {
	if err == nil {
		return
	}
	r.Error = err.Error()
	for name, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			r.Is = append(r.Is, name)
		}
	}
}

func (r *reply) err() error {
	if r.Error == "" {
		return nil
	}
	e := relayedError{text: "in the other process: " + r.Error}
	for _, name := range r.Is {
		e.is = append(e.is, sentinels[name])
	}
	return e
}

// NewRelay makes a relay that sends to w and receives from r.
func NewRelay(r io.Reader, w io.Writer) *Relay {
	relay := &Relay{out: outbox{w: w}, pending: make(map[uint64]chan reply)}
	go relay.receive(bufio.NewReader(r))
	return relay
}

func (r *Relay) receive(in *bufio.Reader) {
	for {
		var answer reply
		var err error
		if answer.Payload, err = receive(in, &answer); err != nil {
			break
		}
		r.mu.Lock()
		c := r.pending[answer.ID]
		delete(r.pending, answer.ID)
		r.mu.Unlock()
		if c != nil {
			c <- answer
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
	for _, c := range r.pending {
		close(c)
	}
}

// ask sends a request and waits for its reply. When the context ends, it cancels the request, and
// still waits for the reply.
func (r *Relay) ask(ctx context.Context, q request) (reply, error) {
	c := make(chan reply, 1)
	r.mu.Lock()
	r.last++
	q.ID = r.last
	gone := r.gone
	if !gone {
		r.pending[q.ID] = c
	}
	r.mu.Unlock()
	if gone {
		return reply{}, ErrGone
	}
	if r.out.send(q, q.Payload) != nil {
		r.mu.Lock()
		delete(r.pending, q.ID)
		r.mu.Unlock()
		return reply{}, ErrGone
	}
	select {
	case answer, ok := <-c:
		return replyResult(answer, ok)
	case <-ctx.Done():
	}
	_ = r.out.send(request{ID: q.ID, Op: opCancel}, nil) // a failed send means that receive ends too
	answer, ok := <-c
	answer, err := replyResult(answer, ok)
	if err != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return answer, err
}

func replyResult(answer reply, ok bool) (reply, error) {
	if !ok {
		return answer, ErrGone
	}
	err := answer.err()
	return answer, err
}

// Put implements [connector.Transport].
func (r *Relay) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func([]byte) error) (connector.Metadata, error) {
	payload := make([]byte, size)
	bad := fill(payload)
	answer, err := r.ask(ctx, request{Op: opPut, Edge: edge, Key: key, Payload: payload, Fails: bad != nil})
	if bad != nil && errors.Is(err, errFill) {
		return nil, bad
	}
	return answer.Meta, err
}

// Get implements [connector.Transport].
func (r *Relay) Get(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return r.getPayload(ctx, request{Op: opGet, Edge: edge, Key: key, Meta: meta})
}

// Await implements [connector.Transport].
func (r *Relay) Await(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return r.getPayload(ctx, request{Op: opAwait, Edge: edge, Key: key, Meta: meta})
}

func (r *Relay) getPayload(ctx context.Context, q request) (connector.Payload, error) {
	answer, err := r.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	return relayedPayload(answer.Payload), nil
}

// relayedPayload is a payload that the other process has released already.
type relayedPayload []byte

func (b relayedPayload) Bytes() []byte { return b }
func (b relayedPayload) Release()      {}

// Cleanup implements [connector.Transport].
func (r *Relay) Cleanup(ctx context.Context, key string) error {
	_, err := r.ask(ctx, request{Op: opCleanup, Key: key})
	return err
}

// Close closes the transport; its process continues.
func (r *Relay) Close() error {
	_, err := r.ask(context.Background(), request{Op: opClose})
	return err
}

// Serve executes the requests of a [Relay] on a transport, until the input ends.
func Serve(in io.Reader, out io.Writer, transport connector.Transport) error {
	s := &server{transport: transport, out: outbox{w: out}, cancels: make(map[uint64]context.CancelFunc)}
	defer s.running.Wait()
	reader := bufio.NewReader(in)
	for {
		var q request
		var err error
		q.Payload, err = receive(reader, &q)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if q.Op == opCancel {
			s.cancel(q.ID)
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		s.mu.Lock()
		s.cancels[q.ID] = cancel
		s.mu.Unlock()
		s.running.Go(func() {
			answer := s.answer(ctx, q)
			s.cancel(q.ID)
			_ = s.out.send(answer, answer.Payload) // the relay may have ended
		})
	}
}

type server struct {
	transport connector.Transport
	out       outbox
	running   sync.WaitGroup

	mu      sync.Mutex
	cancels map[uint64]context.CancelFunc
}

func (s *server) cancel(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[id]; cancel != nil {
		cancel()
		delete(s.cancels, id)
	}
}

func (s *server) answer(ctx context.Context, q request) reply {
	var payload connector.Payload
	var err error
	answer := reply{ID: q.ID}
	switch q.Op {
	case opPut:
		answer.Meta, err = s.transport.Put(ctx, q.Edge, q.Key, len(q.Payload), func(dst []byte) error {
			if copy(dst, q.Payload); q.Fails {
				return errFill
			}
			return nil
		})
	case opGet:
		payload, err = s.transport.Get(ctx, q.Edge, q.Key, q.Meta)
	case opAwait:
		payload, err = s.transport.Await(ctx, q.Edge, q.Key, q.Meta)
	case opCleanup:
		err = s.transport.Cleanup(ctx, q.Key)
	case opClose:
		err = s.transport.Close()
	}
	if payload != nil {
		answer.Payload = append([]byte{}, payload.Bytes()...)
		payload.Release()
	}
	answer.fail(err)
	return answer
}
