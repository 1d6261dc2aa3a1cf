package load

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// faultyRequest is the request of a cell that has the fault: the last one, which omnibus submit
// sends alone. faultBound is how long its cell waits for progress, where the fault is that there
// is none.
const (
	faultyRequest = 9
	faultBound    = 2 * time.Second
)

// holds is a part of the error of a cell whose requests have ended.
const holds = "the host holds"

// faultCases have the error with which each fault is detected.
var faultCases = []struct {
	fault, stage  string
	first, caller string
	found         string // a part of the error
}{
	{faultSwallow, stageFirst, kindNode, callerNode, errResults.Error()},
	{faultDouble, stageSecond, kindNode, callerNode, errResults.Error()},
	{faultChange, stageSecond, kindNode, callerHost, errResults.Error()},
	{faultChange, stageFirst, kindHandle, callerNode, errPayload.Error()}, // by the second stage
	{faultSwap, stageFirst, kindHandle, callerHost, errResults.Error()},
	{faultLeakDelivery, stageFirst, kindNode, callerNode, errHang.Error()},
	{faultLeakDelivery, stageFirst, kindHandle, callerHost, errHang.Error()},
	{faultLeakResult, "caller", kindHandle, callerNode, holds},
	{faultLeakResult, "caller", kindHandle, callerHost, holds},
	{faultOpen, "caller", kindNode, callerNode, errHang.Error()},
	{faultSwallow, stageFirst, kindPython, callerPython, errResults.Error()},
	{faultDouble, stageFirst, kindAsync, callerAsyncio, errResults.Error()},
	{faultChange, stageFirst, kindThreads, callerPython, errPayload.Error()},
	{faultSwap, stageFirst, kindGenerator, callerCommand, errResults.Error()},
	{faultLeakDelivery, stageFirst, kindPython, callerCommand, errHang.Error()},
}

// TestFaults plants each fault and checks that it is detected.
func TestFaults(t *testing.T) {
	for _, f := range faultCases {
		t.Run(f.fault+" in "+f.stage+", "+f.first+", "+f.caller, func(t *testing.T) {
			if python(f.first) || f.caller == callerPython {
				pythontest.Interpreter(t)
			}
			t.Parallel()
			c := base
			c[dimFirst], c[dimSecond], c[dimCaller], c[dimStream] = f.first, kindNode, f.caller, streamEmissions
			c[dimConcurrency] = at
			r := newRun(t, &c, 1, faultyRequest+1)
			defer os.RemoveAll(r.dir)
			r.fault, r.faultAt = f.fault, faultAt(f.stage, faultyRequest)
			if f.found == errHang.Error() || f.found == holds {
				r.bound = faultBound
			}
			err := r.do()
			if err == nil || !strings.Contains(err.Error(), f.found) {
				t.Fatalf("got %v, want %q", err, f.found)
			}
			if errors.Is(err, errHang) {
				r.checkDump(t)
			}
		})
	}
}

// TestFaultAtGates has a gated stage with a function for the end of each request, which must wait for
// the blocked requests there: each cell hangs.
func TestFaultAtGates(t *testing.T) {
	for _, f := range []struct{ shape, kind, caller string }{
		{shapeImageFirst, kindHandle, callerHost},
		{shapeTextFirst, kindNode, callerNode},
		{shapeImageFirst, kindPython, callerHost},
		{shapeAlone, kindHandle, callerHost},
		{shapeAlone, kindPython, callerNode},
	} {
		t.Run(f.shape+", "+f.kind+", "+f.caller, func(t *testing.T) {
			if python(f.kind) {
				pythontest.Interpreter(t)
			}
			t.Parallel()
			c := base
			c[dimShape], c[dimFirst], c[dimSecond], c[dimCaller] = f.shape, f.kind, f.kind, f.caller
			c[dimSlots], c[dimPace] = "1x4", paceGated
			r := newRun(t, &c, 1, faultyRequest+1)
			defer os.RemoveAll(r.dir)
			r.fault, r.bound = faultEnd, faultBound
			if err := r.do(); !errors.Is(err, errHang) {
				t.Fatalf("got %v, want %q", err, errHang)
			}
			r.checkDump(t)
		})
	}
}

// checkDump checks that the files of the watch have the waiting request and the stacks of each process.
func (r *run) checkDump(t *testing.T) {
	t.Helper()
	if r.fault != faultEnd && len(r.checker.waiting()) > 0 && !strings.Contains(r.text("waiting.json"), `"number": 9`) {
		t.Errorf("it waits for request %d: %s", faultyRequest, r.text("waiting.json"))
	}
	if !strings.Contains(r.text("status.json"), `"slots_free"`) {
		t.Errorf("the status: %s", r.text("status.json"))
	}
	files, err := filepath.Glob(filepath.Join(r.dir, "stacks-*"))
	if err != nil {
		t.Fatal(err)
	}
	all := r.text("host.log") // of omnibus run
	for _, f := range files {
		all += r.text(filepath.Base(f))
	}
	want := []string{"SIGQUIT", "goroutine "}
	if python(r.cell[dimFirst]) {
		want = append(want, "most recent call first")
	}
	for _, w := range want {
		if !strings.Contains(all, w) {
			t.Errorf("no stack has %q in %v", w, files)
		}
	}
}

func (r *run) text(name string) string {
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
