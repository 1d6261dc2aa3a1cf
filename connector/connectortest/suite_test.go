package connectortest_test

import (
	"context"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// byMetadata is a ring whose values are found by their metadata alone: the suite must accept such
// transports.
type byMetadata struct{ connector.Transport }

func (t byMetadata) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func([]byte) error) (connector.Metadata, error) {
	if _, err := t.Transport.Put(ctx, edge, key, size, fill); err != nil {
		return nil, err
	}
	return connector.Metadata{"under": key}, nil
}

func (t byMetadata) Get(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	under, err := meta.Text("under")
	if err != nil {
		under = "nothing lies here"
	}
	return t.Transport.Get(ctx, edge, under, nil)
}

func TestByMetadata(t *testing.T) {
	connectortest.Run(t, connectortest.Ends{ByMetadata: true, Open: func(t *testing.T) (put, get connector.Transport) {
		r, err := ring.New(ring.Options{Store: shmstore.Options{Memory: shmstore.Heap}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return byMetadata{r.End()}, byMetadata{r.End()}
	}})
}
