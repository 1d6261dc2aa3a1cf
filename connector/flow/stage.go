package flow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// A MissingError reports a value that is not where its notification says. It wraps the connector's
// error.
type MissingError struct {
	Request string
	Edge    connector.Edge
	Err     error
}

// Error implements error.
func (e *MissingError) Error() string {
	return fmt.Sprintf("request %q cannot go on at stage %q: its value from stage %q is not there: %v", e.Request, e.Edge.To, e.Edge.From, e.Err)
}

// Unwrap returns the cause.
func (e *MissingError) Unwrap() error { return e.Err }

// A Transfer measures one half of a transfer.
type Transfer struct {
	Bytes int           // of the encoded value
	Took  time.Duration // time for encoding and Put, or for Get
	// InFlight is the time from the end of Send to the start of Receive, by the clocks of both
	// machines, at most a day. Only Receive sets it.
	InFlight time.Duration
}

// A Stage holds the open connectors of one stage.
type Stage struct {
	id         string
	byEdge     map[connector.Edge]*Path
	connectors []*connector.Connector
	// branches: a request may have values on several edges at once.
	branches bool
}

// Open opens the connectors of a stage. The plan's Extra replace those of the options.
func (p Plan) Open(ctx context.Context, types *connector.Registry, stage string, opts connector.Options) (*Stage, error) {
	if err := p.Check(types); err != nil {
		return nil, err
	}
	s := &Stage{id: stage, byEdge: make(map[connector.Edge]*Path), branches: p.branches()}
	for _, need := range p.Needs(stage) {
		opts.Extra = need.Extra
		c, err := types.Open(ctx, need.Type, opts)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("stage %q as %s on %s: %w", stage, need.Role, need.Use, err), s.Close())
		}
		s.connectors = append(s.connectors, c)
		for _, edge := range need.Edges {
			s.byEdge[edge] = NewPath(edge, c)
		}
	}
	return s, nil
}

// Path returns the path of an edge.
func (s *Stage) Path(edge connector.Edge) (*Path, error) {
	if p, ok := s.byEdge[edge]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("flow: stage %q has no part in %s", s.id, edge)
}

// Send puts a value for the next stage, under the request's id, and returns the notification for
// that stage. In a plan that is not one chain, the key of a connector that shares keys also
// contains the edge.
func (s *Stage) Send(ctx context.Context, to, request string, samplingParams, value any) (Notification, Transfer, error) {
	p, err := s.Path(connector.Edge{From: s.id, To: to})
	if err != nil {
		return Notification{}, Transfer{}, err
	}
	n, t, err := p.Send(ctx, s.key(p, request), value)
	if err == nil {
		n.RequestID, n.SamplingParams = request, samplingParams
	}
	return n, t, err
}

// key returns the key of a request's value on a path.
func (s *Stage) key(p *Path, request string) string {
	if s.branches && p.conn.SharesKeys() {
		return qualified(p.edge, request)
	}
	return request
}

// qualified returns the key of a request with values on several edges.
func qualified(edge connector.Edge, request string) string {
	return request + "@" + edge.From + "_" + edge.To
}

// Receive gets the value of a notification, on the path of its edge.
func (s *Stage) Receive(ctx context.Context, n Notification) (*connector.Value, Transfer, error) {
	if n.ToStage != s.id {
		return nil, Transfer{}, fmt.Errorf("flow: stage %q received a notification for %s", s.id, n.edge())
	}
	p, err := s.Path(n.edge())
	if err != nil {
		return nil, Transfer{}, err
	}
	request := n.RequestID
	if key := qualified(p.edge, request); n.Metadata.For(request).Map("shm")["name"] == key {
		n.RequestID = key
	}
	v, t, err := p.Receive(ctx, n)
	var missing *MissingError
	if errors.As(err, &missing) {
		missing.Request = request
	}
	return v, t, err
}

// Cleanup releases the values of a request that this stage sent and that were not received.
func (s *Stage) Cleanup(ctx context.Context, request string) error {
	var errs []error
	for edge, p := range s.byEdge {
		if edge.From == s.id {
			errs = append(errs, p.conn.Cleanup(ctx, s.key(p, request)))
		}
	}
	return errors.Join(errs...)
}

// Close closes the connectors.
func (s *Stage) Close() error {
	var errs []error
	for _, c := range s.connectors {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
