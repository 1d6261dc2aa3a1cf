//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

func wantOpenFails(t *testing.T, path string, want error, parts ...string) {
	t.Helper()
	d, err := Open(Options{Library: path})
	if d != nil || !errors.Is(err, want) {
		t.Fatalf("Open = %v, %v, want %v", d, err, want)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func TestNoLibrary(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "libcuda.so.1")
	wantOpenFails(t, missing, cudaipc.ErrNoDriver, missing)
}

func TestNoDevice(t *testing.T) {
	t.Run("that the driver would start for", func(t *testing.T) {
		f := newFake(t)
		f.devices(0)
		wantOpenFails(t, f.path, cudaipc.ErrNoDevice, "cuInit: no such GPU (CUDA_ERROR_NO_DEVICE, 100); see whether nvidia-smi runs here")
	})
	t.Run("in the list", func(t *testing.T) {
		f := newFake(t)
		f.devices(0)
		f.inject("cuInit", 0, 1)
		wantOpenFails(t, f.path, cudaipc.ErrNoDevice, "CUDA_VISIBLE_DEVICES")
	})
	t.Run("of that UUID", func(t *testing.T) {
		if _, err := newFake(t).open().Open(cudaipc.UUID{1}); !errors.Is(err, cudaipc.ErrNoDevice) {
			t.Error(err)
		}
	})
}

// TestDriverThatDoesNotStart: the error names the call that failed.
func TestDriverThatDoesNotStart(t *testing.T) {
	for code, want := range map[int32]error{
		34: cudaipc.ErrNoDriver, 803: cudaipc.ErrDriverTooOld, 999: cudaipc.ErrUnsupported,
	} {
		f := newFake(t)
		f.inject("cuInit", code, 1)
		wantOpenFails(t, f.path, want, "cuInit")
	}
}

// TestSymbols: symbols have the right version in all ways of finding them.
func TestSymbols(t *testing.T) {
	for name, flags := range map[string][]string{
		"cuGetProcAddress_v2": nil,
		"cuGetProcAddress":    {"-DNO_PROC_ADDRESS_V2"},
		"exported names":      {"-DNO_PROC_ADDRESS_V2", "-DNO_PROC_ADDRESS"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, flags...)
			all, err := f.open().Probe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range all {
				if !c.Arenas || !c.Handles || !c.Words || !c.RegisterHost || !c.RegisterReadOnly {
					t.Errorf("%+v", c)
				}
			}
			if n := f.count("wrong_version"); n != 0 {
				t.Errorf("%d calls of an old signature", n)
			}
			if n := f.count(name); name != "exported names" && n != int(symbolCount) {
				t.Errorf("%s was called %d times, for %d symbols", name, n, symbolCount)
			}
		})
	}
}

// TestMissingSymbols: Open fails if a symbol is missing that all devices need.
func TestMissingSymbols(t *testing.T) {
	wantOpenFails(t, without(t, "cuDriverGetVersion").path, cudaipc.ErrDriverTooOld)
	wantOpenFails(t, without(t, "cuMemcpy2DAsync_v2").path, cudaipc.ErrDriverTooOld, "cuMemcpy2DAsync_v2", "CUDA 3.2")
}

// TestOldDrivers: functions of an old driver have the right name and the wrong signature.
func TestOldDrivers(t *testing.T) {
	f := newFake(t)
	f.version(11030)
	wantOpenFails(t, f.path, cudaipc.ErrDriverTooOld, "cuDeviceGetUuid_v2", "CUDA 11.4", "CUDA 11.3")

	f = newFake(t)
	f.version(11060)
	caps := f.device().Caps()
	if why := caps.Why["Words"]; caps.Words || !strings.Contains(why, "cuStreamWriteValue32_v2") {
		t.Errorf("words of CUDA 11.6: %t, %q", caps.Words, why)
	}
	if !caps.Arenas || !caps.Handles || !caps.RegisterHost || caps.Driver != "cuda 11.6" {
		t.Errorf("%+v", caps)
	}
	if n := f.count("wrong_version"); n != 0 {
		t.Errorf("%d calls of an old signature", n)
	}
}

// TestMissingFeatures: a missing symbol disables its feature alone, and is never called.
func TestMissingFeatures(t *testing.T) {
	for s := range symbolCount {
		field := map[feature]string{forWords: "Words", forHost: "RegisterHost", forHandles: "Handles", forArenas: "Arenas"}[specs[s].feature]
		if field == "" {
			continue
		}
		t.Run(s.String(), func(t *testing.T) {
			d, err := Open(Options{Library: newFake(t).path})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			// The symbol is removed after loading: compiling a library for each takes long.
			d.(*driver).lib.addresses[s] = 0
			all, err := d.Probe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if why := all[0].Why[field]; !strings.Contains(why, s.String()) {
				t.Errorf("Why[%s] = %q, which does not name %v", field, why, s)
			}
		})
	}
}

// TestMissingSymbolsAreNotCalled: a call of any missing function is an error.
func TestMissingSymbolsAreNotCalled(t *testing.T) {
	f := newFake(t)
	lib, err := load(f.path)
	if err != nil {
		t.Fatal(err)
	}
	defer lib.close()
	lib.addresses = [symbolCount]uintptr{}
	for s := range symbolCount {
		got := lib.plain.call(s)
		if err := lib.plain.failure(s, got, cudaipc.UUID{}); !errors.Is(err, cudaipc.ErrDriverTooOld) || err.Call != s.String() {
			t.Errorf("%v: %v", s, err)
		}
	}
}
