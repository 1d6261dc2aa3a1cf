//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// TestCodes: each code of the driver is one of the errors of package cudaipc, with the number and
// the name.
func TestCodes(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	for _, c := range []struct {
		code int32
		name string
		want error
	}{
		{1, "CUDA_ERROR_INVALID_VALUE", cudaipc.ErrInvalid},
		{2, "CUDA_ERROR_OUT_OF_MEMORY", cudaipc.ErrOutOfMemory},
		{46, "CUDA_ERROR_DEVICE_UNAVAILABLE", cudaipc.ErrNoDevice},
		{100, "CUDA_ERROR_NO_DEVICE", cudaipc.ErrNoDevice},
		{101, "CUDA_ERROR_INVALID_DEVICE", cudaipc.ErrNoDevice},
		{201, "CUDA_ERROR_INVALID_CONTEXT", cudaipc.ErrClosed},
		{304, "CUDA_ERROR_OPERATING_SYSTEM", cudaipc.ErrUnsupported},
		{712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", cudaipc.ErrInvalid},
		{800, "CUDA_ERROR_NOT_PERMITTED", cudaipc.ErrUnsupported},
		{801, "CUDA_ERROR_NOT_SUPPORTED", cudaipc.ErrUnsupported},
		{803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", cudaipc.ErrDriverTooOld},
		{999, "CUDA_ERROR_UNKNOWN", cudaipc.ErrUnsupported}, // by cuGetErrorName
		{12345, "CUDA_ERROR_12345", cudaipc.ErrUnsupported}, // cuGetErrorName does not know it
	} {
		t.Run(c.name, func(t *testing.T) {
			f.inject("cuMemAlloc_v2", c.code, 1)
			_, err := dev.Alloc(1)
			wantError(t, err, c.want, "cuMemAlloc_v2", int(c.code), c.name)
			if err := dev.Err(); err != nil {
				t.Errorf("the device has failed: %v", err)
			}
		})
	}
}

func wantError(t *testing.T, err, want error, call string, code int, name string) {
	t.Helper()
	var e *cudaipc.Error
	if !errors.Is(err, want) || !errors.As(err, &e) {
		t.Fatalf("%v, want %v in a *cudaipc.Error", err, want)
	}
	if e.Call != call || e.Code != code || e.Name != name || e.Device[0] != 0xa0 {
		t.Errorf("%+v, want %s, %d, %s", e, call, code, name)
	}
}

var stickyCodes = []int32{4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 806, 810, 911}

// TestStickyCodes: after a sticky code only calls that close objects are made.
func TestStickyCodes(t *testing.T) {
	f := newFake(t)
	for _, code := range stickyCodes {
		d, err := Open(Options{Library: f.path})
		if err != nil {
			t.Fatal(err)
		}
		dev, err := d.Open(cudaipc.UUID{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := dev.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		f.inject("cuEventQuery", code, 1)
		first := s.Synchronize(t.Context())
		wantError(t, first, cudaipc.ErrSticky, "cuEventQuery", int(code), meanings[codeOf(code)].name)
		before := f.count("cuMemAlloc_v2")
		if _, err := dev.Alloc(1); err == nil || err.Error() != first.Error() {
			t.Errorf("Alloc after %v: %v", first, err)
		}
		if err := dev.Err(); err == nil || err.Error() != first.Error() {
			t.Errorf("Err after %v: %v", first, err)
		}
		if n := f.count("cuMemAlloc_v2"); n != before {
			t.Errorf("a call was made after %v", first)
		}
		if err := s.Synchronize(t.Context()); err == nil || err.Error() != first.Error() {
			t.Errorf("Synchronize after %v: %v", first, err)
		}
		if err := errors.Join(s.Close(), dev.Close(), d.Close()); err != nil {
			t.Errorf("closing after %v: %v", first, err)
		}
	}
	for c, m := range meanings {
		if c.sticky() != slices.Contains(stickyCodes, int32(c)) {
			t.Errorf("%s (%d) is sticky: %t", m.name, c, c.sticky())
		}
	}
}

func codeOf(n int32) code { return code(n) }

// TestErrQueriesDriver: Err reports a failure although no call has failed yet. Closing still works.
func TestErrQueriesDriver(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	if err := dev.Err(); err != nil {
		t.Fatal(err)
	}
	f.stream(dev)
	f.event(dev)
	f.host(dev, 4096)
	a, err := dev.NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	f.closeLater("arena", a)
	// None of them fails to close: on a failed device nothing is left to close.
	f.poison(0, 700)
	wantError(t, dev.Err(), cudaipc.ErrSticky, "cuStreamQuery", 700, "CUDA_ERROR_ILLEGAL_ADDRESS")
}

// TestImportErrors: the errors of a refused handle or descriptor.
func TestImportErrors(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	a, err := dev.NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	f.closeLater("arena", a)
	for code, want := range map[int32]error{
		1: cudaipc.ErrStaleHandle, 205: cudaipc.ErrStaleHandle, 304: cudaipc.ErrStaleHandle, 400: cudaipc.ErrStaleHandle,
		2: cudaipc.ErrOutOfMemory, 801: cudaipc.ErrUnsupported,
	} {
		f.inject("cuMemImportFromShareableHandle", code, 1)
		if _, err := dev.ImportArena(a.FD(), a.Bytes()); !errors.Is(err, want) {
			t.Errorf("an arena with code %d: %v, want %v", code, err, want)
		}
		f.inject("cuIpcOpenMemHandle_v2", code, 1)
		if _, _, err := dev.Import(cudaipc.Handle{}); !errors.Is(err, want) {
			t.Errorf("a handle with code %d: %v, want %v", code, err, want)
		}
	}
	f.inject("cuIpcOpenMemHandle_v2", 201, 1)
	if _, _, err := dev.Import(cudaipc.Handle{}); !errors.Is(err, cudaipc.ErrOwnHandle) {
		t.Errorf("a handle with code 201: %v", err)
	}
}

// TestFailedCallsLeaveNothing: a failed call leaves no object, at whichever step it fails.
func TestFailedCallsLeaveNothing(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	mem := pages(t, 4096)
	a, err := dev.NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	f.closeLater("arena", a)
	calls := map[string]func() error{
		"cuMemCreate":                   func() error { _, err := dev.NewArena(1); return err },
		"cuMemExportToShareableHandle":  func() error { _, err := dev.NewArena(1); return err },
		"cuMemAddressReserve":           func() error { _, err := dev.ImportArena(a.FD(), a.Bytes()); return err },
		"cuMemMap":                      func() error { _, err := dev.NewArena(1); return err },
		"cuMemSetAccess":                func() error { _, err := dev.ImportArena(a.FD(), a.Bytes()); return err },
		"cuMemHostGetDevicePointer_v2":  func() error { _, err := dev.RegisterHost(mem, false); return err },
		"cuMemGetAllocationGranularity": func() error { _, err := dev.NewArena(1); return err },
	}
	before := f.left()
	for name, call := range calls {
		f.inject(name, 801, 2) // SetAccess is tried again without peers
		if err := call(); !errors.Is(err, cudaipc.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
		f.inject(name, 0, 0)
		if after := f.left(); after != before {
			t.Errorf("%s: %d objects exist, %d before", name, after, before)
		}
	}
}
