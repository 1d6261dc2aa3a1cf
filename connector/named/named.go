package named

import (
	"context"
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
)

// Values are the values of one edge.
type Values struct {
	connector *connector.Connector
	edge      connector.Edge
}

// New makes values over a transport, which Close closes. A nil serializer is
// [codec.MsgpackSerializer].
func New(transport connector.Transport, serializer codec.Serializer, edge connector.Edge) *Values {
	return &Values{connector.New("named", transport, serializer), edge}
}

// Write stores the value of a request and returns its name. A request has one value
// on an edge: what was written before is replaced.
func (v *Values) Write(ctx context.Context, request string, value any) (name string, err error) {
	name = request + "@" + v.edge.From + "_" + v.edge.To
	_, meta, err := v.connector.Put(ctx, v.edge, name, value)
	if err != nil {
		return "", err
	}
	if _, inline := meta["inline_bytes"]; inline {
		return "", fmt.Errorf("%w: the transport has this value in its metadata alone, and not under a name", connector.ErrUnavailable)
	}
	return name, nil
}

// Read reads the value of a name; unlink takes it away with that.
func (v *Values) Read(ctx context.Context, name string, unlink bool) (*connector.Value, error) {
	if unlink {
		return v.connector.Get(ctx, v.edge, name, nil)
	}
	return v.connector.Peek(ctx, v.edge, name, nil)
}

// Cleanup takes the value of a name away, whoever wrote it. That there is none is no
// error.
func (v *Values) Cleanup(ctx context.Context, name string) error {
	if err := v.connector.Cleanup(ctx, name); err != nil {
		return err
	}
	value, err := v.connector.Get(ctx, v.edge, name, nil)
	if errors.Is(err, connector.ErrNotFound) {
		return nil
	}
	if err == nil {
		value.Release()
	}
	return err
}

// Close takes away what was written here and nobody has taken.
func (v *Values) Close() error { return v.connector.Close() }
