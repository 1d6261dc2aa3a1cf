package bus

import (
	"encoding/json"
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// TensorFigures are what the processes of a bus have told.
type TensorFigures struct {
	mu   lockorder.Mutex[lockorder.TensorFigure]
	now  map[any]lane.Stats // by process
	gone lane.Stats         // of those that have left
}

// Told takes the figures of a process, in place of those that it told before.
func (f *TensorFigures) Told(of any, arguments []byte) error {
	var figures lane.Stats
	if err := json.Unmarshal(arguments, &figures); err != nil {
		return fmt.Errorf("%w: arguments of tensors: %w", ErrPayload, err)
	}
	if err := figures.Validate(); err != nil {
		return fmt.Errorf("%w: arguments of tensors: %w", ErrPayload, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil {
		f.now = make(map[any]lane.Stats)
	}
	f.now[of] = figures
	return nil
}

// Leave keeps what a process has counted, which is gone, and tells no more.
func (f *TensorFigures) Leave(of any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	figures := f.now[of]
	delete(f.now, of)
	figures.Open = 0
	f.gone = f.gone.Plus(figures)
}

func (f *TensorFigures) sum() lane.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.gone
	for _, figures := range f.now {
		sum = sum.Plus(figures)
	}
	return sum
}
