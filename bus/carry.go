package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	connflow "github.com/omnibus-runtime/omnibus/connector/flow"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/messages"
)

// ErrMissing reports a payload that its edge's connector has lost. The request
// fails.
var ErrMissing = errors.New("bus: payload is missing")

// carried is a payload that travels by the connector of its edge: it is sent with its
// delivery, and received when the delivery is opened.
type carried struct {
	notification connflow.Notification
	size         int
}

// carry puts the payload of a delivery that is about to be sent into the connector. The
// delivery's lease or reference is released, also after an error. The connector may wait.
func (f *flow) carry(d *Delivery) error {
	lockorder.AssertNone("a connector takes a payload")
	d.Codec = uint32(d.PayloadCodec())
	if h := d.Handle; !h.IsZero() {
		d.Handle = messages.Handle{}
		lease, err := f.req.bus.store.Local().Take(h)
		if err != nil {
			return fmt.Errorf("payload: %w", err)
		}
		defer lease.Release()
		d.Inline = lease.Bytes()
	} else if d.foreign != nil {
		defer d.foreign.Release()
	}
	payload := d.Inline
	d.Inline, d.foreign = nil, nil
	if err := checkMovable(codec.ID(d.Codec), payload); err != nil {
		return err
	}
	told, sent, err := f.edge.path.SendBytes(f.req.context(), f.key(), payload)
	if err != nil {
		return err
	}
	d.carried = &carried{notification: told, size: sent.Bytes}
	return nil
}

// key names the payload as vLLM-Omni names a chunk, {request}_{from}_{chunk}. For some
// transports the key alone addresses a value, across all edges and all programs:
// so the part for the request is unique to this bus and edge.
func (f *flow) key() string {
	return fmt.Sprintf("%s-%d-%d_%s_%d", f.req.bus.keyPrefix, f.req.id, f.edge.index, f.edge.spec.From, f.connectorSends.Add(1)-1)
}

// pathOf is the path of payloads through the connector of an edge; nil: it has none.
func pathOf(spec Edge) *connflow.Path {
	if spec.Connector == nil {
		return nil
	}
	return connflow.NewPath(connector.Edge{From: spec.From, To: spec.To}, spec.Connector)
}

// newKeyPrefix makes the start of the keys of one bus, which no other bus has.
func newKeyPrefix() string { return rand.Text()[:13] } // 65 bits

// receiveCarried receives the payload of the delivery from the connector.
func (d *Delivery) receiveCarried() error {
	lockorder.AssertNone("a connector gives a payload")
	v, got, err := d.flow.edge.path.Receive(d.flow.req.context(), d.carried.notification)
	if err == nil && got.Bytes != d.carried.size {
		v.Release()
		err = fmt.Errorf("%w: received %d bytes of %d", ErrMissing, got.Bytes, d.carried.size)
	}
	if err != nil {
		return unreceived(err)
	}
	d.foreign, d.carried = accounts.OnHeap(v.Bytes(), v.Release), nil
	if d.Inline = d.foreign.Bytes(); d.Inline == nil { // it is empty: nil would make the delivery a bare end
		d.Inline = []byte{}
	}
	return nil
}

// unreceived turns the connector's error for a missing payload into ErrMissing. The
// failure of the request adds stage and edge.
func unreceived(err error) error {
	var missing *connflow.MissingError
	if errors.As(err, &missing) {
		return fmt.Errorf("%w: %w", ErrMissing, missing.Err)
	}
	return err
}

// cleanUpCarried removes a payload that was not received from its connector. After an
// error the connector's sweep removes it.
func (d *Delivery) cleanUpCarried() {
	lockorder.AssertNone("a connector cleans up")
	_ = d.flow.edge.path.Connector().Cleanup(context.Background(), d.carried.notification.RequestID)
}

func (g *graph) specs() []Edge {
	specs := make([]Edge, len(g.edges))
	for i, e := range g.edges {
		specs[i] = e.spec
	}
	return specs
}

func closeConnectors(edges []Edge) error {
	var errs []error
	for _, e := range edges {
		if e.Connector != nil {
			errs = append(errs, e.Connector.Close()) // repeatedly, where edges share it
		}
	}
	return errors.Join(errs...)
}
