package bus

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// methodTensors is the call by which a process tells the host its figures of tensors
// on GPUs, as lane.Stats in JSON: what it has counted since it connected. They are not
// the host's to count, since it does not see why tensors go another way.
const methodTensors = "tensors"

// tensorFigures are what the processes of a bus have told.
type tensorFigures struct {
	mu   sync.Mutex
	now  map[any]lane.Stats // by process
	gone lane.Stats         // of those that have left
}

// told takes the figures of a process, in place of those that it told before.
func (f *tensorFigures) told(of any, arguments []byte) error {
	var figures lane.Stats
	if err := json.Unmarshal(arguments, &figures); err != nil {
		return fmt.Errorf("%w: arguments of %s: %w", ErrPayload, methodTensors, err)
	}
	if err := figures.Validate(); err != nil {
		return fmt.Errorf("%w: arguments of %s: %w", ErrPayload, methodTensors, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil {
		f.now = make(map[any]lane.Stats)
	}
	f.now[of] = figures
	return nil
}

// leave keeps what a process has counted, which is gone, and tells no more.
func (f *tensorFigures) leave(of any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	figures := f.now[of]
	delete(f.now, of)
	figures.Open = 0
	f.gone = f.gone.Plus(figures)
}

func (f *tensorFigures) sum() lane.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.gone
	for _, figures := range f.now {
		sum = sum.Plus(figures)
	}
	return sum
}
