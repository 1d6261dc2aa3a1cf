package load

import (
	"fmt"
	"os"
	"slices"

	"github.com/omnibus-runtime/omnibus/bus"
)

// Faults that a stage or a caller of a cell has on purpose, which the checks must detect.
const (
	faultSwallow      = "swallow" // a stage emits one payload less
	faultDouble       = "double"  // ... one twice
	faultChange       = "change"  // ... one with a byte changed
	faultSwap         = "swap"    // ... two in the wrong order
	faultLeakDelivery = "leak-delivery"
	faultEnd          = "end"         // a slow stage has a function for the end of each request
	faultLeakResult   = "leak-result" // a caller does not finish results
	faultOpen         = "open"        // ... nor end a request
)

// Variables that plant a fault: its name, and its stage and request.
const (
	faultEnv   = "OMNIBUS_LOAD_FAULT"
	faultAtEnv = "OMNIBUS_LOAD_FAULT_AT"
)

// faultAt is the value of the second variable.
func faultAt(stage string, number int) string { return fmt.Sprintf("%s:%d", stage, number) }

func (w *work) hasFaultAt(tag uint64) bool {
	return w.fault != "" && os.Getenv(faultAtEnv) == faultAt(w.stage, numberOf(tag))
}

func (w *work) hasFault(fault string, d *bus.Delivery) bool {
	if w.fault != fault {
		return false
	}
	h, err := headerOf(d)
	return err == nil && w.hasFaultAt(h.tag)
}

func callerHasFault(fault string, p *plan) bool {
	return os.Getenv(faultEnv) == fault && os.Getenv(faultAtEnv) == faultAt("caller", p.Number)
}

// payloads makes the payloads, with the fault of the stage.
func (w *work) payloads(headers []header) [][]byte {
	out := make([][]byte, len(headers))
	for i, h := range headers {
		out[i] = h.payload()
	}
	if !w.hasFaultAt(headers[0].tag) {
		return out
	}
	switch w.fault {
	case faultSwallow:
		out = out[1:]
	case faultDouble:
		out = slices.Insert(out, 0, out[0])
	case faultChange:
		out[0][len(out[0])-1] ^= 1
	case faultSwap:
		out[0], out[1] = out[1], out[0]
	}
	return out
}
