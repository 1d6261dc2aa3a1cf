package host

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/connector"
)

// TestConnectorsLog: connectors of edges log to the host's log.
func TestConnectorsLog(t *testing.T) {
	p, err := config.Parse("p.yaml", []byte(`
stages:
  - {stage_id: a, output_connectors: {to_stage_b: c}, omnibus: {exec: [none]}}
  - {stage_id: b, omnibus: {exec: [none]}}
connectors: {c: {name: SharedMemoryConnector, extra: {mode: segment}}}
`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	over := errors.New("this is as far as the test goes")
	types := new(connector.Registry)
	err = types.Register(connector.Type{
		Name: config.SharedMemory,
		Open: func(_ context.Context, c connector.Config) (connector.Transport, error) {
			c.Log.Warn("no reader came for a value")
			return nil, over
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	h := &running{opts: Options{Pipeline: p, Connectors: types, Logger: slog.New(slog.NewTextHandler(&log, nil))}, pipeline: p}
	if err := h.open(t.Context()); !errors.Is(err, over) {
		t.Fatalf("open: %v", err)
	}
	if !strings.Contains(log.String(), "no reader came for a value") {
		t.Errorf("the log has %q", log.String())
	}
}
