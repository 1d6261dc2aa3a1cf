package emul

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

const (
	defaultTotalBytes       = 8 << 30
	defaultGranularityBytes = 2 << 20
	maxDevices              = 64
)

// Options describe the machine. The zero value is one GPU with all features whose operations take
// no time.
//
// Delay, Fault and Refuse are called by several goroutines at once.
type Options struct {
	// Devices is the number of GPUs; 0 means 1, NoDevices none.
	Devices int
	// TotalBytes is the memory of each device: 8 GiB if it is 0. Allocations beyond it fail with
	// ErrOutOfMemory. Untouched memory costs no memory of the machine.
	TotalBytes int64
	// GranularityBytes is the unit of arena sizes: 2 MiB if it is 0. It is a multiple of the page
	// size.
	GranularityBytes int64

	// BytesPerSecond is the speed of copies; 0 means the speed of memory. Each stream has all of
	// it.
	BytesPerSecond int64
	// Delay returns the additional time of an operation. It passes before the operation has an
	// effect.
	Delay func(Step) time.Duration
	// Fault decides whether an operation fails: an error ends the device, as ErrSticky. It is
	// called when the delay is over.
	Fault func(Step) error
	// Refuse decides whether a call other than an operation fails, such as "NewArena": the names
	// are those of the methods. The call returns the error without further effect. Calls that close
	// or free are not refused.
	Refuse func(call string) error

	// Missing maps the features that the devices lack, as fields of Caps ("Arenas", "Handles",
	// "Words", "RegisterHost", "RegisterReadOnly", "Peers"), to the reasons. Without RegisterHost
	// there are no Words either.
	Missing map[string]string
	// Apart makes the driver act as another process: handles of other drivers in this process open,
	// as they would there.
	Apart bool
	// MIG marks all devices as parts of a GPU.
	MIG bool
}

// NoDevices is the number of devices of a machine without a GPU.
const NoDevices = -1

// Step is an operation that a stream is about to run.
type Step struct {
	cudaipc.Op

	Device cudaipc.UUID
	// Stream counts the streams of a driver, from 1 on.
	Stream int
}

func (o *Options) fill() error {
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.TotalBytes == 0 {
		o.TotalBytes = defaultTotalBytes
	}
	if o.GranularityBytes == 0 {
		o.GranularityBytes = defaultGranularityBytes
	}
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{cudaipc.ErrInvalid}, args...)...))
	}
	if o.Devices < NoDevices || o.Devices > maxDevices {
		wrong("%d devices: use 1 to %d, or NoDevices", o.Devices, maxDevices)
	}
	if o.TotalBytes < 0 || o.BytesPerSecond < 0 {
		wrong("%d bytes, %d bytes a second: neither can be negative", o.TotalBytes, o.BytesPerSecond)
	}
	if page := int64(os.Getpagesize()); o.GranularityBytes < 0 || o.GranularityBytes%page != 0 {
		wrong("granularity of %d bytes: use a multiple of %d", o.GranularityBytes, page)
	}
	for field := range o.Missing {
		switch field {
		case "Arenas", "Handles", "Words", "RegisterHost", "RegisterReadOnly", "Peers":
		default:
			wrong("%q cannot be missing: it is none of the abilities in Caps", field)
		}
	}
	o.Missing = withConsequences(o.Missing)
	return errors.Join(errs...)
}

// withConsequences adds the features that need a missing one.
func withConsequences(missing map[string]string) map[string]string {
	all := maps.Clone(missing)
	if why, without := missing["RegisterHost"]; without {
		for _, field := range []string{"RegisterReadOnly", "Words"} {
			if all[field] == "" {
				all[field] = why
			}
		}
	}
	return all
}

func (o *Options) lacks(field string) bool {
	_, missing := o.Missing[field]
	return missing
}

// UUID returns the UUID of the device with a number, from 0 on, in every process.
func UUID(device int) cudaipc.UUID {
	u := cudaipc.UUID{'e', 'm', 'u', 'l'}
	u[len(u)-1] = byte(device + 1)
	return u
}
