//go:build !linux

package bridge

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/connector"
)

func open(_ context.Context, engine string, _ []connector.Option, _ connector.Config) (connector.Transport, error) {
	return nil, fmt.Errorf("%w: the bridge to %s needs Linux", connector.ErrUnavailable, engine)
}
