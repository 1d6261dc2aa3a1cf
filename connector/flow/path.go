package flow

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// A Path is an edge with its connector. One end sends and the other receives, each over its own
// Path, or both over one.
type Path struct {
	edge connector.Edge
	conn *connector.Connector

	sending, inFlight, receiving atomic.Int64 // nanoseconds
}

// NewPath makes a path. The caller closes the connector.
func NewPath(edge connector.Edge, by *connector.Connector) *Path {
	return &Path{edge: edge, conn: by}
}

// Connector returns the connector of the edge.
func (p *Path) Connector() *connector.Connector { return p.conn }

// Times are sums over the transfers of a path: see [Transfer].
type Times struct {
	Sending   time.Duration `json:"sending_ns"`
	InFlight  time.Duration `json:"in_flight_ns"`
	Receiving time.Duration `json:"receiving_ns"`
}

// Times returns the sums of all transfers so far, at this end.
func (p *Path) Times() Times {
	return Times{time.Duration(p.sending.Load()), time.Duration(p.inFlight.Load()), time.Duration(p.receiving.Load())}
}

// Send puts a value under a key, and returns the notification for the other end.
func (p *Path) Send(ctx context.Context, key string, value any) (Notification, Transfer, error) {
	begun := time.Now()
	size, meta, err := p.conn.Put(ctx, p.edge, key, value)
	return p.finishSend(begun, key, size, meta, err)
}

// SendBytes is Send for a value that is encoded already.
func (p *Path) SendBytes(ctx context.Context, key string, payload []byte) (Notification, Transfer, error) {
	begun := time.Now()
	size, meta, err := p.conn.PutBytes(ctx, p.edge, key, payload)
	return p.finishSend(begun, key, size, meta, err)
}

func (p *Path) finishSend(begun time.Time, key string, size int, meta connector.Metadata, err error) (Notification, Transfer, error) {
	if err != nil {
		return Notification{}, Transfer{}, err
	}
	now := time.Now()
	t := Transfer{Bytes: size, Took: now.Sub(begun)}
	p.sending.Add(int64(t.Took))
	return Notification{
		Type:          generate,
		RequestID:     key,
		FromConnector: true,
		FromStage:     p.edge.From,
		ToStage:       p.edge.To,
		SentTS:        unixSeconds(now),
		Metadata:      meta,
	}, t, nil
}

// Receive gets the value of a notification. A missing value is a [MissingError].
func (p *Path) Receive(ctx context.Context, n Notification) (*connector.Value, Transfer, error) {
	if n.edge() != p.edge || !n.FromConnector {
		return nil, Transfer{}, fmt.Errorf("flow: the path %s received a notification for %s", p.edge, n.edge())
	}
	begun := time.Now()
	v, err := p.conn.Get(ctx, p.edge, n.RequestID, n.Metadata)
	if errors.Is(err, connector.ErrNotFound) {
		err = &MissingError{Request: n.RequestID, Edge: p.edge, Err: err}
	}
	if err != nil {
		return nil, Transfer{}, err
	}
	t := Transfer{Bytes: v.Size(), Took: time.Since(begun)}
	if n.SentTS > 0 {
		seconds := min(max(0, unixSeconds(begun)-n.SentTS), maxInFlight.Seconds())
		t.InFlight = time.Duration(seconds * float64(time.Second))
	}
	addInFlight(&p.inFlight, t.InFlight)
	p.receiving.Add(int64(t.Took))
	return v, t, nil
}

// maxInFlight bounds the time that one notification adds, with any clock.
const maxInFlight = 24 * time.Hour

// addInFlight adds a time that another process reported. The sum stops at its maximum.
func addInFlight(sum *atomic.Int64, d time.Duration) {
	for {
		old := sum.Load()
		if sum.CompareAndSwap(old, old+min(int64(d), math.MaxInt64-old)) {
			return
		}
	}
}
