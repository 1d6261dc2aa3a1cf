package host

import (
	"context"
	"log/slog"

	"github.com/omnibus-runtime/omnibus/connector"
)

// logged returns the connector types with the host's log: it is where transports report what they
// remove.
func logged(types *connector.Registry, log *slog.Logger) (*connector.Registry, error) {
	all := new(connector.Registry)
	for _, name := range types.Names() {
		t, err := types.Type(name)
		if err != nil {
			return nil, err
		}
		open := t.Open
		t.Open = func(ctx context.Context, config connector.Config) (connector.Transport, error) {
			config.Log = log
			return open(ctx, config)
		}
		if err := all.Register(t); err != nil {
			return nil, err
		}
	}
	return all, nil
}
