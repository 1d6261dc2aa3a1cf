package bus

import (
	"encoding/json"
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// TensorFigures are the figures that the processes of a bus have reported.
type TensorFigures struct {
	mu       lockorder.Mutex[lockorder.TensorFigure]
	current  map[any]lane.Stats // by process
	departed lane.Stats         // sums of processes that have left
}

// Set replaces the figures of a process. The arguments are JSON; the errors wrap ErrPayload.
func (f *TensorFigures) Set(of any, arguments []byte) error {
	var figures lane.Stats
	if err := json.Unmarshal(arguments, &figures); err != nil {
		return fmt.Errorf("%w: arguments of tensors: %w", ErrPayload, err)
	}
	if err := figures.Validate(); err != nil {
		return fmt.Errorf("%w: arguments of tensors: %w", ErrPayload, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == nil {
		f.current = make(map[any]lane.Stats)
	}
	f.current[of] = figures
	return nil
}

// Remove adds the counters of a process that has left to the sums.
func (f *TensorFigures) Remove(of any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	figures := f.current[of]
	delete(f.current, of)
	figures.Open = 0
	f.departed = f.departed.Plus(figures)
}

func (f *TensorFigures) sum() lane.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.departed
	for _, figures := range f.current {
		sum = sum.Plus(figures)
	}
	return sum
}
