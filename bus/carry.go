package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/messages"
)

// ErrMissing reports a payload that is not where its edge's connector put it.
// Its request cannot go on.
var ErrMissing = errors.New("bus: payload is missing")

// carried is a payload that travels by the connector of its edge: put when it
// was sent, and got when its delivery is opened.
type carried struct {
	by   *connector.Connector
	edge connector.Edge
	key  string
	meta connector.Metadata
	size int
}

// carry puts the payload of a delivery that is about to be sent. It uses up what
// the delivery holds in the store, even when it fails.
func (f *flow) carry(d *Delivery) error {
	if d.Codec = uint32(d.PayloadCodec()); !d.Handle.IsZero() {
		lease, err := f.req.bus.store.Local().Take(d.Handle)
		if err != nil {
			return fmt.Errorf("payload: %w", err)
		}
		defer lease.Release()
		d.Handle, d.Inline = messages.Handle{}, lease.Bytes()
	} else if d.foreign != nil {
		defer d.foreign.release()
	}
	payload := d.Inline
	d.Inline, d.foreign = nil, nil
	c := &carried{
		by:   f.edge.spec.Connector,
		edge: connector.Edge{From: f.edge.spec.From, To: f.edge.spec.To},
		key:  f.key(),
		size: len(payload),
	}
	var err error
	if _, c.meta, err = c.by.PutBytes(f.req.context(), c.edge, c.key, payload); err != nil {
		return err
	}
	d.carried = c
	return nil
}

// key names the payload as vLLM-Omni names a chunk, {request}_{from}_{chunk}. There are
// transports for which the key alone says where a value lies, for all edges and all
// programs: so what stands for the request is of this bus and this edge alone.
func (f *flow) key() string {
	return fmt.Sprintf("%s-%d-%d_%s_%d", f.req.bus.keys, f.req.id, f.edge.index, f.edge.spec.From, f.seq)
}

// newKeys makes what begins the keys of one bus and of no other.
func newKeys() string { return strconv.FormatUint(newEpoch(), 36) }

// unpack gets the payload that the delivery stands for.
func (d *Delivery) unpack() error {
	p, err := d.carried.fetch(d.flow.req)
	if err != nil {
		return err
	}
	d.Inline, d.foreign, d.carried = p.data, p, nil
	return nil
}

// fetch gets the payload.
func (c *carried) fetch(r *Request) (*foreign, error) {
	v, err := c.by.Get(r.context(), c.edge, c.key, c.meta)
	switch {
	case errors.Is(err, connector.ErrNotFound):
		return nil, fmt.Errorf("%w: %w", ErrMissing, err)
	case err != nil:
		return nil, err
	case v.Size() != c.size:
		v.Release()
		return nil, fmt.Errorf("%w: %d bytes came of %d", ErrMissing, v.Size(), c.size)
	}
	p := &foreign{data: v.Bytes(), free: v.Release}
	p.refs.Store(1)
	p.reads.Store(1)
	return p, nil
}

// forget reclaims a payload that nobody will get. What cannot be reclaimed now is
// the connector's to sweep.
func (c *carried) forget() {
	_ = c.by.Cleanup(context.Background(), c.key)
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
			errs = append(errs, e.Connector.Close()) // again, where edges share it
		}
	}
	return errors.Join(errs...)
}
