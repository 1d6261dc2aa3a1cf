package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"
)

// Bounds of Options.StoreBytes.
const (
	MinStoreBytes     = 1 * mib
	DefaultStoreBytes = 257 * mib
)

// MaxBusy bounds Options.Busy.
const MaxBusy = 1024

var (
	// ErrOptions reports options that Run or RunGPU refuses.
	ErrOptions = errors.New("bench: invalid options")
	// ErrNoMatch reports an Options.Match that matches no name.
	ErrNoMatch = errors.New("bench: nothing matches")
)

// Options choose rows or figures, and the time of the measurement. The zero value works.
type Options struct {
	// Match chooses rows, or figures of RunGPU, by their names; nil means all.
	Match *regexp.Regexp
	// Peer is the command line with which this program calls [Peer]; the description of a
	// process is appended as one argument.
	Peer []string
	// Progress, when set, is called before each row or scenario starts.
	Progress func(Progress)

	// Rounds and Slice are how often Run measures each side of a row, and for how long at a
	// time. Default 9, and 200 ms.
	Rounds int
	Slice  time.Duration
	// Busy is how many processes compute during Run. One for each core resembles users' stages.
	Busy int

	// Quick has RunGPU measure fewer rounds: for a first impression, not for a record.
	Quick bool
	// Driver is the driver that RunGPU measures: DriverEmul, which is the default, or DriverCUDA.
	Driver string
	// StoreBytes is the size of the largest stores of RunGPU. Default 257 MiB. A scenario that
	// needs more is skipped.
	StoreBytes int64
}

// Progress says which row or scenario starts.
type Progress struct {
	Scenario string
	Number   int // from 1
	Of       int
}

func (o Options) withDefaults() Options {
	if o.StoreBytes == 0 {
		o.StoreBytes = DefaultStoreBytes
	}
	if o.Driver == "" {
		o.Driver = DriverEmul
	}
	if o.Rounds == 0 {
		o.Rounds = DefaultRounds
	}
	if o.Slice == 0 {
		o.Slice = DefaultSlice
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	return o
}

// Validate reports whether numbers are out of their bounds.
func (o Options) Validate() error {
	if o = o.withDefaults(); o.StoreBytes < MinStoreBytes {
		return fmt.Errorf("%w: a store of %d bytes: use at least %d", ErrOptions, o.StoreBytes, MinStoreBytes)
	}
	if o.Busy < 0 || o.Busy > MaxBusy {
		return fmt.Errorf("%w: %d computing processes: use 0 to %d", ErrOptions, o.Busy, MaxBusy)
	}
	if o.Rounds < 1 || o.Rounds > MaxRounds {
		return fmt.Errorf("%w: %d rounds: use 1 to %d", ErrOptions, o.Rounds, MaxRounds)
	}
	if o.Slice < 0 || o.Slice > MaxSlice {
		return fmt.Errorf("%w: slices of %v: use up to %v", ErrOptions, o.Slice, MaxSlice)
	}
	return nil
}

// Peer is another process of Run or RunGPU. The description is the last argument of
// the command line. It runs until standard input ends.
func Peer(ctx context.Context, description string, stdin io.Reader) error {
	var spec peerSpec
	if err := json.Unmarshal([]byte(description), &spec); err != nil {
		return fmt.Errorf("bench: the description of a peer: %w", err)
	}
	if err := runPeer(ctx, spec, stdin); err != nil {
		return fmt.Errorf("bench: peer by %s: %w", spec.Carrier, err)
	}
	return nil
}
