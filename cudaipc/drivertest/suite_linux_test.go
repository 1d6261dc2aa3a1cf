package drivertest_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/drivertest"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

func open() (cudaipc.Driver, error) { return emul.New(emul.Options{BytesPerSecond: 1 << 30}) }

func TestMain(m *testing.M) { drivertest.Main(m, open) }

// brokenVariable names the defect of the driver for a run of the tests.
const brokenVariable = "OMNIBUS_DRIVERTEST_BROKEN"

// TestBroken runs the suite on a broken driver, for TestSuiteFindsDefects.
func TestBroken(t *testing.T) {
	name, set := os.LookupEnv(brokenVariable)
	if !set {
		t.Skip("for TestSuiteFindsDefects")
	}
	drivertest.Run(t, func() (cudaipc.Driver, error) {
		d, err := open()
		if err != nil {
			return nil, err
		}
		return broken{d, defects[name]}, nil
	})
}

// TestSuiteFindsDefects: for each broken promise of the contract a test of the suite fails.
func TestSuiteFindsDefects(t *testing.T) {
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBroken$/^"+d.seenBy+"$", "-test.timeout=20s")
			cmd.Env = append(os.Environ(), brokenVariable+"="+name, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
			out, err := cmd.CombinedOutput()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !bytes.Contains(out, []byte("--- FAIL: TestBroken/"+d.seenBy)) {
				t.Errorf("the suite passed: %v\n%s", err, out)
			}
		})
	}
}

// TestWrappersPass: the wrappers without a defect pass the suite.
func TestWrappersPass(t *testing.T) {
	drivertest.Run(t, func() (cudaipc.Driver, error) {
		d, err := open()
		return broken{d, defect{}}, err
	})
}

// TestUnavailableDriverSkips: an unavailable driver skips the suite.
func TestUnavailableDriverSkips(t *testing.T) {
	drivertest.Run(t, func() (cudaipc.Driver, error) { return nil, cudaipc.ErrNoDriver })
	drivertest.Run(t, func() (cudaipc.Driver, error) { return emul.New(emul.Options{Devices: emul.NoDevices}) })
}

// defect is one violation of the contract.
type defect struct {
	seenBy string // name of the suite's test, as go test writes it
	probe  func([]cudaipc.Caps)
	device func(cudaipc.Device) cudaipc.Device
	submit func([]cudaipc.Op) []cudaipc.Op
	sync   func(context.Context, cudaipc.Stream) error
	close  func() error
}

// broken is a driver with a defect.
type broken struct {
	cudaipc.Driver
	defect
}

func (b broken) Probe(ctx context.Context) ([]cudaipc.Caps, error) {
	all, err := b.Driver.Probe(ctx)
	if b.probe != nil && err == nil {
		b.probe(all)
	}
	return all, err
}

func (b broken) Open(uuid cudaipc.UUID) (cudaipc.Device, error) {
	dev, err := b.Driver.Open(uuid)
	if err != nil {
		return nil, err
	}
	dev = brokenDevice{dev, b.defect}
	if b.device != nil {
		dev = b.device(dev)
	}
	return dev, nil
}

func (b broken) Break(uuid cudaipc.UUID, err error) error {
	return b.Driver.(drivertest.Breaker).Break(uuid, err)
}

func (b broken) Close() error {
	if b.close != nil {
		return errors.Join(b.Driver.Close(), b.close())
	}
	return b.Driver.Close()
}

type brokenDevice struct {
	cudaipc.Device
	defect
}

func (v brokenDevice) NewStream() (cudaipc.Stream, error) {
	s, err := v.Device.NewStream()
	return brokenStream{s, v.defect}, err
}

type brokenStream struct {
	cudaipc.Stream
	defect
}

func (s brokenStream) Submit(ops ...cudaipc.Op) error {
	if s.submit != nil {
		ops = s.submit(ops)
	}
	return s.Stream.Submit(ops...)
}

func (s brokenStream) Synchronize(ctx context.Context) error {
	if s.sync != nil {
		return s.sync(ctx, s.Stream)
	}
	return s.Stream.Synchronize(ctx)
}

func (s brokenStream) Close() error {
	if s.Stream == nil {
		return nil
	}
	return s.Stream.Close()
}
