package emul_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/drivertest"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// factory opens emulated drivers.
func factory(opts emul.Options) drivertest.Factory {
	return func() (cudaipc.Driver, error) { return emul.New(opts) }
}

func TestMain(m *testing.M) { drivertest.Main(m, factory(emul.Options{})) }

func TestDriver(t *testing.T) {
	slow := func(s emul.Step) time.Duration {
		if s.Kind == cudaipc.OpCopy {
			return 2 * time.Millisecond
		}
		return 0
	}
	for _, c := range []struct {
		name string
		opts emul.Options
	}{
		{"plain", emul.Options{}},
		{"two devices, slow copies", emul.Options{Devices: 2, Delay: slow}},
		{"no arenas", emul.Options{Missing: map[string]string{"Arenas": "of another age"}}},
		{"no handles", emul.Options{Missing: map[string]string{"Handles": "of another age"}}},
		{"no words", emul.Options{Missing: map[string]string{"Words": "of another age"}}},
		{"no registering", emul.Options{Missing: map[string]string{"RegisterHost": "of another age"}}},
		{"no registering for reading", emul.Options{Missing: map[string]string{"RegisterReadOnly": "of another age"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ignored := goleak.IgnoreCurrent()
			drivertest.Run(t, factory(c.opts))
			goleak.VerifyNone(t, ignored)
		})
	}
}
