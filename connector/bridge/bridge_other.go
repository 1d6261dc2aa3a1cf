//go:build !linux

package bridge

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/connector"
)

func open(_ context.Context, engine string, options []connector.Option, config connector.Config) (connector.Transport, error) {
	said(options, config.Settings)
	return nil, fmt.Errorf("%w: the bridge to %s needs Linux", connector.ErrUnavailable, engine)
}
