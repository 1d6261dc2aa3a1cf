package lane

import (
	"context"
	"math/rand/v2"
)

// sendChecked sends numbered frames, alone and in batches.
func sendChecked(ctx context.Context, s *Sender, frames uint64) error {
	rng := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, s.maxFrame)
	for number := range frames {
		frame := checkedFrame(buf, number, rng)
		kind := Kind(number % 1000)
		if rng.IntN(3) > 0 && s.Append(kind, frame) == nil {
			continue // to be published with the next one
		}
		if err := s.Send(ctx, kind, frame); err != nil {
			return err
		}
	}
	s.Publish()
	return nil
}

// receiveChecked receives them, letting go of some at a time.
func receiveChecked(ctx context.Context, r *Receiver, frames uint64) error {
	for number := uint64(0); number < frames; {
		if err := r.Wait(ctx); err != nil {
			return err
		}
		for frame, kind, ok := r.Next(); ok; frame, kind, ok = r.Next() {
			if err := checkFrame(frame, kind, number); err != nil {
				return err
			}
			if number++; number%7 == 0 {
				r.Advance()
			}
		}
		r.Advance()
	}
	return nil
}
